#include "dist/control/rendezvous.h"

#include <charconv>
#include <numeric>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/philox.h"

namespace lockstep::dist {
namespace {

constexpr int kMaxRanks = 1 << 20;  // ranks, nodes
constexpr int kLastPort = 65535;
// Where another program may hold the port: torchrun's agent, or another job of Slurm on the node.
constexpr int kPortChoices = 8;

// The names that a launcher uses for the same four numbers, and the variable that tells it from
// others that set some of them, too.
struct Launcher {
  const char *mark, *rank, *world_size, *local_rank, *local_world_size;
};

constexpr Launcher kLaunchers[] = {
    {"RANK", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    // Before Slurm: within its jobs, mpirun starts a proxy on each node by srun, whose variables
    // the ranks inherit.
    {"MPI_LOCALRANKID", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    // The script of a batch job has a SLURM_PROCID, too, and the SLURM_NTASKS that were asked for,
    // but is no step: what it starts without srun is a process on its own.
    {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr},
    {"PMI_RANK", "PMI_RANK", "PMI_SIZE", nullptr, nullptr},
};
constexpr const Launcher& kSlurm = kLaunchers[3];

// Reads a whole number in [low, high].
std::optional<int> ReadNumber(const Environment& environment, const char* name, int low, int high) {
  if (name == nullptr) return std::nullopt;
  const auto text = Lookup(environment, name);
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

// The tasks of each node: "2(x3),1" means three nodes with two tasks each and one with one.
std::vector<int> TasksOfNodes(const std::string& list) {
  std::vector<int> tasks;
  const char* at = list.data();
  const char* const end = at + list.size();
  while (at < end) {
    int count = 0, nodes = 1;
    auto read = std::from_chars(at, end, count);
    if (read.ec != std::errc() || count < 0) return {};
    at = read.ptr;
    if (std::string_view(at, end).starts_with("(x")) {
      read = std::from_chars(at + 2, end, nodes);
      if (read.ec != std::errc() || nodes < 0 || nodes > kMaxRanks || read.ptr == end ||
          *read.ptr != ')') {
        return {};
      }
      at = read.ptr + 1;
    }
    tasks.insert(tasks.end(), static_cast<size_t>(nodes), count);
    if (at < end && *at++ != ',') return {};
  }
  return tasks;
}

// srun's number of tasks on this node, if it is consistent with its other variables.
std::optional<int> SlurmTasksHere(const Environment& environment, int world_size, int local_rank) {
  const auto node = ReadNumber(environment, "SLURM_NODEID", 0, kMaxRanks);
  for (const char* const name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
    const auto list = Lookup(environment, name);
    if (!node || !list) continue;
    const std::vector<int> tasks = TasksOfNodes(*list);
    const auto all = std::accumulate(tasks.begin(), tasks.end(), int64_t{0});
    if (all != world_size || *node >= std::ssize(tasks)) continue;
    const int here = tasks[static_cast<size_t>(*node)];
    if (local_rank < here) return here;
  }
  return std::nullopt;
}

void ReadRanks(const Environment& environment, const Launcher& names, Rendezvous* r) {
  r->rank = *ReadNumber(environment, names.rank, 0, kMaxRanks);
  const auto size = ReadNumber(environment, names.world_size, 1, kMaxRanks);
  if (!size) {
    throw InputError(StrCat("the environment variable ", names.rank, " is set, but ",
                            names.world_size, " is not; a launcher sets both"));
  }
  r->world_size = *size;
  CheckBelow(names.rank, r->rank, names.world_size, r->world_size);
  const auto local_rank = ReadNumber(environment, names.local_rank, 0, kMaxRanks);
  // If nothing is said about machines, there is one.
  r->local_rank = local_rank.value_or(r->rank);
  std::optional<int> local_size;
  const char* limit = names.world_size;
  if (&names == &kSlurm) {
    local_size = SlurmTasksHere(environment, r->world_size, r->local_rank);
    r->processors = ReadNumber(environment, "SLURM_CPUS_ON_NODE", 1, kMaxRanks).value_or(0);
  } else {
    local_size = ReadNumber(environment, names.local_world_size, 1, kMaxRanks);
    if (local_size) limit = names.local_world_size;
  }
  if (local_size) {
    CheckBelow(StrCat("one less than ", limit).c_str(), *local_size - 1, names.world_size,
               r->world_size);
  }
  r->local_world_size = local_size.value_or(r->world_size);
  CheckBelow(names.local_rank, r->local_rank, limit, r->local_world_size);
}

// Those of the step, which may have some of the job's.
std::optional<std::string> SlurmNodes(const Environment& environment) {
  const auto of_step = Lookup(environment, "SLURM_STEP_NODELIST");
  return of_step ? of_step : Lookup(environment, "SLURM_JOB_NODELIST");
}

// A port that no other step is likely to use, and an id that tells them apart if one does.
void ReadSlurmPort(const Environment& environment, Rendezvous* r) {
  const auto job = Lookup(environment, "SLURM_JOB_ID");
  if (!job) return;
  r->run_id = StrCat(*job, ".", Lookup(environment, "SLURM_STEP_ID").value_or("0"));
  constexpr int kFirst = 20000, kPorts = 10000;
  r->master_port = kFirst + static_cast<int>(HashName(r->run_id) % (kPorts - kPortChoices));
  r->port_choices = kPortChoices;
}

void ReadMaster(const Environment& environment, bool slurm, Rendezvous* r) {
  if (const auto host = Lookup(environment, "MASTER_ADDR")) {
    r->master_addr = *host;
  } else if (const auto nodes = SlurmNodes(environment); slurm && nodes) {
    r->master_addr = FirstHost(*nodes);
  } else if (r->local_world_size < r->world_size) {
    throw InputError(StrCat("the environment variable MASTER_ADDR is not set, and only ",
                            r->local_world_size, " of ", r->world_size,
                            " ranks are on this machine; set it to the host of rank 0"));
  }
  const auto port = ReadNumber(environment, "MASTER_PORT", 1, kLastPort);
  r->master_port = port.value_or(kDefaultMasterPort);
  if (slurm && !port) ReadSlurmPort(environment, r);
}

// PyTorch's torchrun serves its own store, with another protocol, at MASTER_PORT. All ranks know
// that port, and therefore where else to look.
void ReadAgent(const Environment& environment, Rendezvous* r) {
  if (Lookup(environment, "TORCHELASTIC_USE_AGENT_STORE") != "True") return;
  r->run_id = StrCat(Lookup(environment, "TORCHELASTIC_RUN_ID").value_or(""), ":", r->master_port);
  const bool above = r->master_port + kPortChoices <= kLastPort;
  r->master_port += above ? 1 : -kPortChoices;
  r->port_choices = kPortChoices;
  if (r->local_world_size == r->world_size) r->master_addr = "127.0.0.1";
}

}  // namespace

Rendezvous ReadRendezvous(const Environment& environment) {
  Rendezvous r;
  if (!Lookup(environment, "RANK") && Lookup(environment, "WORLD_SIZE")) {
    throw InputError(
        "the environment variable WORLD_SIZE is set, but RANK is not; a launcher sets both");
  }
  for (const Launcher& names : kLaunchers) {
    if (!Lookup(environment, names.mark) || !Lookup(environment, names.rank)) continue;
    r.source = names.rank;
    ReadRanks(environment, names, &r);
    ReadMaster(environment, &names == &kSlurm, &r);
    ReadAgent(environment, &r);
    break;
  }
  if (r.source.empty() && Lookup(environment, "PMIX_RANK")) {
    throw InputError(
        "the environment variable PMIX_RANK is set, so this is one of several processes, but no "
        "variable says of how many: start them by mpirun, srun or launch, or set RANK and "
        "WORLD_SIZE");
  }
  r.secret = Lookup(environment, "LOCKSTEP_SECRET").value_or("");
  r.store_folder = Lookup(environment, "LOCKSTEP_STORE_DIR").value_or("");
  return r;
}

std::string FirstHost(const std::string& list) {
  const size_t bracket = list.find('[');
  const size_t comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  const size_t end = list.find_first_of(",-]", bracket);
  if (end == std::string::npos || end == bracket + 1) {
    throw InputError(StrCat("Slurm's list of nodes is '", list,
                            "', which is not a list of hosts; set MASTER_ADDR"));
  }
  const size_t close = list.find(']', bracket);
  const size_t rest = close == std::string::npos ? close : list.find(',', close);
  const std::string suffix =
      close == std::string::npos ? "" : list.substr(close + 1, rest - close - 1);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1) + suffix;
}

}  // namespace lockstep::dist
