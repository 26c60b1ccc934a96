#include "dist/world.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

#include "dist/file_store.h"
#include "dist/in_process_store.h"
#include "dist/tcp_store.h"

namespace lockstep::dist {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr char kRefusal[] = "world/refusal";
// How often ranks that wait look for it.
constexpr auto kStep = std::chrono::milliseconds(200);

std::string KeyOf(int rank) { return StrCat("world/rank/", rank); }

std::string Here() {
  std::array<char, 256> host = {};
  gethostname(host.data(), host.size() - 1);
  return StrCat("process ", getpid(), " on ", host.data());
}

std::string List(const std::vector<int>& ranks) {
  constexpr size_t kShown = 16;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(kShown, ranks.size()); ++i) {
    text += StrCat(i == 0 ? "" : ", ", ranks[i]);
  }
  if (ranks.size() > kShown) text += StrCat(" and ", ranks.size() - kShown, " more");
  return text;
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
    return;
  }
  const Rendezvous& r = rendezvous_;
  const auto deadline = Clock::now() + timeout;
  if (!r.store_folder.empty()) {
    store_ = OpenFileStore(r.store_folder, rank(), timeout);
  } else {
    TcpStoreAddress address{r.master_addr, r.master_port, r.secret};
    if (rank() == 0) {
      server_ = std::make_unique<TcpStoreServer>(address);
      address = server_->address();
    }
    store_ = ConnectTcpStore(address, timeout);
  }
  try {
    Join(std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()));
  } catch (const StoreError&) {
    // The others have yet to read why: they ask every kStep.
    if (server_ != nullptr) std::this_thread::sleep_for(5 * kStep);
    throw;
  }
}

World::~World() = default;

void World::Refuse(const std::string& reason) {
  throw StoreError(store_->SetIfAbsent(kRefusal, reason));
}

void World::Join(std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  static std::atomic<int> joins{0};
  const std::string mine = json{{"who", Here()}, {"size", size()}, {"join", ++joins}}.dump();
  const std::string there = store_->SetIfAbsent(KeyOf(rank()), mine);
  if (there != mine) {
    const std::string who = json::parse(there, nullptr, false).value("who", "another process");
    const std::string rank_variable = rendezvous_.source.empty() ? "RANK" : rendezvous_.source;
    Refuse(StrCat("the environment contradicts itself: rank ", rank(), " is claimed by ", who,
                  " and by ", Here(), "; each process needs a ", rank_variable, " of its own"));
  }
  std::vector<int> missing;
  for (int r = 0; r < size(); ++r) WaitFor(r, deadline, &missing);
  if (!missing.empty()) {
    Refuse(StrCat(List(missing), " of ", size(), " did not come to ", store_->Describe(),
                  " in time", LaunchHint(rendezvous_)));
  }
}

// In short steps, between which it looks for refusals.
void World::WaitFor(int r, Clock::time_point deadline, std::vector<int>* missing) {
  std::optional<std::string> value;
  do {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    value = store_->Get(KeyOf(r), std::clamp(left, std::chrono::milliseconds(0), kStep));
    const auto refusal = store_->Get(kRefusal, std::chrono::milliseconds(0));
    if (refusal) throw StoreError(*refusal);
  } while (!value && Clock::now() < deadline);
  if (!value) {
    missing->push_back(r);
    return;
  }
  const int theirs = json::parse(*value, nullptr, false).value("size", 0);
  if (theirs != size()) {
    Refuse(StrCat("ranks disagree on how many they are: ", size(), " by rank ", rank(), ", ",
                  theirs, " by rank ", r, "; set the same world size for all"));
  }
}

}  // namespace lockstep::dist
