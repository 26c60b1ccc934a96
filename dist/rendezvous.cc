#include "dist/rendezvous.h"

#include <charconv>
#include <cstdlib>

#include "core/error.h"

namespace lockstep::dist {
namespace {

constexpr int kDefaultPort = 29500;

// The names that a launcher uses for the same four numbers.
struct Launcher {
  const char *rank, *world_size, *local_rank, *local_world_size;
};

constexpr Launcher kLaunchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr},
};
constexpr const Launcher& kSlurm = kLaunchers[2];

// Reads a whole number in [low, high].
std::optional<int> ReadNumber(const Environment& environment, const char* name, int low, int high) {
  if (name == nullptr) return std::nullopt;
  const auto text = environment(name);
  if (!text) return std::nullopt;
  int value = 0;
  const char* const end = text->data() + text->size();
  const auto [at, code] = std::from_chars(text->data(), end, value);
  if (code != std::errc() || at != end || value < low || value > high) {
    throw InputError(StrCat("the environment variable ", name, " is '", *text,
                            "'; it must be a whole number from ", low, " to ", high));
  }
  return value;
}

void CheckBelow(const char* name, int value, const char* limit_name, int limit) {
  if (value < limit) return;
  throw InputError(StrCat("the environment contradicts itself: ", name, " is ", value, ", but ",
                          limit_name, " is ", limit, "; ranks count from 0"));
}

void ReadRanks(const Environment& environment, const Launcher& names, Rendezvous* r) {
  constexpr int kMost = 1 << 20;
  r->rank = *ReadNumber(environment, names.rank, 0, kMost);
  const auto size = ReadNumber(environment, names.world_size, 1, kMost);
  if (!size) {
    throw InputError(StrCat("the environment variable ", names.rank, " is set, but ",
                            names.world_size, " is not; a launcher sets both"));
  }
  r->world_size = *size;
  CheckBelow(names.rank, r->rank, names.world_size, r->world_size);
  const auto local_size = ReadNumber(environment, names.local_world_size, 1, kMost);
  const auto local_rank = ReadNumber(environment, names.local_rank, 0, kMost);
  if (local_size) {
    CheckBelow(StrCat("one less than ", names.local_world_size).c_str(), *local_size - 1,
               names.world_size, r->world_size);
  }
  // Without a word about machines there is one.
  r->local_rank = local_rank.value_or(r->rank);
  r->local_world_size = local_size.value_or(r->world_size);
  CheckBelow(names.local_rank, r->local_rank,
             local_size ? names.local_world_size : names.world_size, r->local_world_size);
}

void ReadMaster(const Environment& environment, bool slurm, Rendezvous* r) {
  if (const auto host = environment("MASTER_ADDR")) {
    r->master_addr = *host;
  } else if (const auto nodes = environment("SLURM_JOB_NODELIST"); slurm && nodes) {
    r->master_addr = FirstHost(*nodes);
  } else if (r->local_world_size < r->world_size) {
    throw InputError(StrCat("the environment variable MASTER_ADDR is not set, and only ",
                            r->local_world_size, " of ", r->world_size,
                            " ranks are on this machine; set it to the host of rank 0"));
  }
  const auto port = ReadNumber(environment, "MASTER_PORT", 1, 65535);
  const auto job = slurm ? ReadNumber(environment, "SLURM_JOB_ID", 0, 2147483647) : std::nullopt;
  // Jobs that share a node should not meet.
  r->master_port = port ? *port : job ? 20000 + *job % 10000 : kDefaultPort;
}

}  // namespace

std::optional<std::string> ProcessEnvironment(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

Rendezvous ReadRendezvous(const Environment& environment) {
  Rendezvous r;
  if (!environment("RANK") && environment("WORLD_SIZE")) {
    throw InputError(
        "the environment variable WORLD_SIZE is set, but RANK is not; a launcher sets both");
  }
  for (const Launcher& names : kLaunchers) {
    if (!environment(names.rank)) continue;
    r.source = names.rank;
    ReadRanks(environment, names, &r);
    ReadMaster(environment, &names == &kSlurm, &r);
    break;
  }
  r.secret = environment("LOCKSTEP_SECRET").value_or("");
  r.store_folder = environment("LOCKSTEP_STORE_DIR").value_or("");
  return r;
}

std::string FirstHost(const std::string& list) {
  const size_t bracket = list.find('[');
  const size_t comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  const size_t end = list.find_first_of(",-]", bracket);
  if (end == std::string::npos || end == bracket + 1) {
    throw InputError(StrCat("SLURM_JOB_NODELIST is '", list,
                            "', which is not a list of hosts; set MASTER_ADDR"));
  }
  const size_t close = list.find(']', bracket);
  const size_t rest = close == std::string::npos ? close : list.find(',', close);
  const std::string suffix =
      close == std::string::npos ? "" : list.substr(close + 1, rest - close - 1);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1) + suffix;
}

}  // namespace lockstep::dist
