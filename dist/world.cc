#include "dist/world.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/io/file.h"
#include "core/io/json.h"
#include "dist/control/file_store.h"
#include "dist/control/in_process_store.h"
#include "dist/control/socket.h"
#include "dist/data_parallel/content_hash.h"
#include "dist/groups/collective.h"

namespace lockstep::dist {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr char kRefusal[] = "world/refusal";
// How often waiting ranks look for a refusal.
constexpr auto kPollInterval = std::chrono::milliseconds(200);

// A hash of the program's file, so that ranks of different builds are detected at the start.
const std::string& BuildId() {
  static const std::string id = [] {
    try {
      const std::string file = ReadFile("/proc/self/exe");
      return StrCat(HashBytes(std::as_bytes(std::span(file))));
    } catch (const Error&) {
      return std::string();  // unknown: not compared
    }
  }();
  return id;
}

// What a rank publishes about itself.
struct Claim {
  int size = 0;
  std::string host, build, meeting;
  int64_t process = 0;

  // nullopt if no rank wrote the text.
  static std::optional<Claim> Parse(const std::string& text) {
    try {
      const json j = TryParseJson(text);
      return Claim{j.at("size").get<int>(), j.at("host").get<std::string>(),
                   j.at("build").get<std::string>(), j.at("meeting").get<std::string>(),
                   j.at("process").get<int64_t>()};
    } catch (const json::exception&) {
      return std::nullopt;
    }
  }
  std::string ToText() const {
    return DumpJson(json{{"size", size},
                         {"host", host},
                         {"build", build},
                         {"meeting", meeting},
                         {"process", process}});
  }
  std::string Who() const { return StrCat("process ", process, " on ", host); }
  // Whether its process ran on this machine and has ended.
  bool HasEnded() const {
    return host == HostName() && process > 0 && kill(static_cast<pid_t>(process), 0) != 0 &&
           errno == ESRCH;
  }
};

Claim ClaimOf(int size) {
  static std::atomic<int> joins{0};
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  Claim claim{size, HostName(), BuildId(), "", getpid()};
  claim.meeting = StrCat(claim.host, "/", claim.process, "/", ++joins, "/",
                         std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
  return claim;
}

// Reaches all ranks.
class RefusedError : public StoreError {
 public:
  using StoreError::StoreError;
};

// The store was left behind by earlier processes and is about to end.
class StaleStoreError : public StoreError {
 public:
  using StoreError::StoreError;
};

std::string NoClaim(const std::string& text, int rank) {
  return StrCat("the store holds ", Quoted(text), " where rank ", rank,
                " identifies itself: does another program, or another build of this one, use the ",
                "same store? Choose another MASTER_PORT, or another folder");
}

std::string LaunchHint(const Rendezvous& r) {
  if (r.source == "SLURM_PROCID") return "; start the program by srun, which starts all tasks";
  return "; were they started, and with the same MASTER_ADDR and MASTER_PORT?";
}

}  // namespace

World::World(const Rendezvous& rendezvous, std::chrono::milliseconds timeout)
    : rendezvous_(rendezvous) {
  if (size() == 1) {
    store_ = MakeInProcessStore();
    meeting_ = ClaimOf(1).meeting;
    return;
  }
  const auto deadline = Clock::now() + timeout;
  while (true) {
    try {
      Open(deadline);
      Join(deadline);
      return;
    } catch (const StaleStoreError&) {
      if (Clock::now() + kPollInterval >= deadline) throw;
    } catch (const StoreError&) {
      // The others poll every kPollInterval and have yet to read the refusal.
      if (server_ != nullptr) std::this_thread::sleep_for(5 * kPollInterval);
      throw;
    }
    // Give the stale server time to end.
    std::this_thread::sleep_for(kPollInterval);
  }
}

World::~World() = default;

void World::Open(Deadline deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  const Rendezvous& r = rendezvous_;
  if (!r.store_folder.empty()) {
    store_ = OpenFileStore(r.store_folder, rank(), left);
    return;
  }
  if (rank() == 0) Serve();
  Connect(deadline);
}

TcpStoreAddress World::Address(int choice) const {
  const Rendezvous& r = rendezvous_;
  std::string secret = r.secret;
  // A run id is easy to guess, so it may replace a secret only on the loopback device.
  if (!r.run_id.empty() && (!secret.empty() || IsLoopback(r.master_addr))) {
    secret += "/" + r.run_id;
  }
  return {r.master_addr, r.master_port + choice, secret};
}

void World::Serve() {
  for (int choice = 0; server_ == nullptr; ++choice) {
    try {
      server_ = std::make_unique<TcpStoreServer>(Address(choice));
    } catch (const StoreError&) {
      if (choice + 1 == rendezvous_.port_choices) throw;
    }
  }
}

void World::Connect(Deadline deadline) {
  const auto left = [&] {
    return std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  };
  if (server_ != nullptr || rendezvous_.port_choices == 1) {
    store_ = ConnectTcpStore(server_ != nullptr ? server_->address() : Address(0), left());
    return;
  }
  store_ = nullptr;  // its server has ended
  // Rank 0 listens, or soon will, on one of these ports; other programs may listen on the rest
  // and never answer.
  auto patience = std::chrono::milliseconds(50);
  TcpStoreAddress address = Address(0);
  for (int choice = 0; store_ == nullptr; ++choice) {
    if (choice == rendezvous_.port_choices) {
      choice = 0;
      patience = std::min(2 * patience, std::chrono::milliseconds(2000));
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    address.port = rendezvous_.master_port + choice;
    try {
      store_ = ConnectTcpStore(address, std::min(patience, left()));
    } catch (const NoDescriptorsError&) {
      // Other ports would need a descriptor too. If rank 0 has none left, this gives it some
      // time.
      store_ = ConnectTcpStore(address, left());
    } catch (const StoreError&) {
      if (left() <= patience) throw;
    }
  }
}

void World::Refuse(const std::string& reason) {
  throw RefusedError(store_->SetIfAbsent(kRefusal, reason));
}

void World::Join(Deadline deadline) {
  try {
    Meet(deadline);
  } catch (const RefusedError&) {
    throw;
  } catch (const StaleStoreError&) {
    throw;
  } catch (const StoreError& e) {
    if (rank() == 0) throw;
    throw StaleStoreError(e.what());  // its server has ended
  }
}

void World::Meet(Deadline deadline) {
  const Claim mine = ClaimOf(size());
  const std::string there = store_->SetIfAbsent(RankKey("world/rank", rank()), mine.ToText());
  if (there != mine.ToText()) {
    const auto other = Claim::Parse(there);
    if (!other) Refuse(NoClaim(there, rank()));
    const std::string rank_variable = rendezvous_.source.empty() ? "RANK" : rendezvous_.source;
    const std::string reason =
        StrCat("the environment contradicts itself: rank ", rank(), " is claimed by ", other->Who(),
               " and by ", mine.Who(), "; each process needs a ", rank_variable, " of its own");
    if (rank() != 0 && other->HasEnded()) throw StaleStoreError(reason);
    Refuse(reason);
  }
  std::vector<int> missing;
  for (int r = 0; r < size(); ++r) WaitFor(r, deadline, &missing);
  if (!missing.empty()) {
    Refuse(StrCat(ListRanks(missing), " of ", size(), " did not reach ", store_->Describe(),
                  " in time", LaunchHint(rendezvous_)));
  }
}

// Waits in short steps and looks for refusals in between.
void World::WaitFor(int r, Clock::time_point deadline, std::vector<int>* missing) {
  std::optional<std::string> value;
  do {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    value = store_->Get(RankKey("world/rank", r),
                        std::clamp(left, std::chrono::milliseconds(0), kPollInterval));
    const auto refusal = store_->Get(kRefusal, std::chrono::milliseconds(0));
    if (refusal) throw RefusedError(*refusal);
  } while (!value && Clock::now() < deadline);
  if (!value) {
    missing->push_back(r);
    return;
  }
  const auto theirs = Claim::Parse(*value);
  if (!theirs) Refuse(NoClaim(*value, r));
  if (r == 0) meeting_ = theirs->meeting;
  if (theirs->size != size()) {
    Refuse(StrCat("ranks disagree on the world size: it is ", size(), " on rank ", rank(), " and ",
                  theirs->size, " on rank ", r, "; set the same world size for all"));
  }
  if (theirs->build != BuildId() && !theirs->build.empty() && !BuildId().empty()) {
    Refuse(StrCat("rank ", r, " on ", theirs->host,
                  " runs a different build of the program than rank ", rank(), " on ", HostName(),
                  ": copy the same file to all machines"));
  }
}

}  // namespace lockstep::dist
