#include "dist/world.h"

#include <filesystem>
#include <thread>
#include <utility>

#include "core/system/environment.h"
#include "dist/control/handshake.h"

namespace lockstep::dist {
namespace {

std::string LaunchHint(const Rendezvous& r) {
  if (r.source == "SLURM_PROCID") return "; start the program by srun, which starts all tasks";
  return "; were all ranks started, and with the same MASTER_ADDR and MASTER_PORT?";
}

// Where the other ranks reach this one: the address from which it reaches rank 0's machine, whose
// name may become known only after a while.
std::string OwnAddress(const Rendezvous& r, std::chrono::steady_clock::time_point deadline) {
  const auto interface = EnvironmentVariable("LOCKSTEP_INTERFACE");
  if (interface) return AddressOfInterface(*interface);
  while (true) {
    try {
      return AddressTowards(r.master_addr, r.master_port);
    } catch (const NoDescriptorsError&) {
      throw;
    } catch (const ConnectionError&) {
      if (std::chrono::steady_clock::now() > deadline) throw;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

std::string PathOfRootFile(const Rendezvous& r, int port) {
  return r.store_folder.empty() ? RootFile::PathOf(port) : r.store_folder + "/rank-0";
}

// The run's id tells runs at neighbouring ports apart; it is easy to guess, and is no secret.
std::string WithRunId(const Rendezvous& r, const std::string& secret) {
  return r.run_id.empty() ? secret : StrCat(secret, "/", r.run_id);
}

}  // namespace

World::World(const Rendezvous& rendezvous, const WorldOptions& options) : rendezvous_(rendezvous) {
  const Rendezvous& r = rendezvous_;
  ControlPlane::Options o;
  o.rank = r.rank;
  o.claim = Claim::Of(r.world_size);
  o.timeout = options.timeout;
  o.heartbeat = options.heartbeat;
  o.hint = LaunchHint(r);
  if (!r.source.empty()) o.rank_variable = r.source;
  if (size() > 1) {
    o.claim.address = OwnAddress(r, std::chrono::steady_clock::now() + options.timeout);
    LS_CHECK(!r.secret.empty() || !r.store_folder.empty() || IsLoopback(o.claim.address), "rank ",
             r.rank, " at ", o.claim.address,
             " can be reached from other machines and needs a secret: set LOCKSTEP_SECRET to the "
             "same value on all ranks, for example that of `openssl rand -hex 16`");
    o.listeners.push_back(Listen(o.claim.address, 0));
    o.claim.port = PortOf(o.listeners[0]);
    if (r.rank == 0) {
      Serve(&o);
    } else {
      o.root = Search();
    }
  }
  control_ = std::make_shared<ControlPlane>(std::make_shared<EventLoop>(), std::move(o));
  control_->WaitUntilOpen();
}

// Rank 0 listens where the others look for it.
void World::Serve(ControlPlane::Options* o) {
  const Rendezvous& r = rendezvous_;
  const bool in_folder = !r.store_folder.empty();
  const int choices = in_folder ? 1 : r.port_choices;
  for (int choice = 0; o->listeners.size() == 1; ++choice) {
    try {
      o->listeners.push_back(Listen(r.master_addr, in_folder ? 0 : r.master_port + choice));
    } catch (const NoDescriptorsError&) {
      throw;
    } catch (const ConnectionError&) {
      if (choice + 1 == choices) throw;
    }
  }
  RootAddress root{NumericAddress(r.master_addr), PortOf(o->listeners[1]), r.secret};
  if (root.secret.empty()) root.secret = handshake::RandomSecret();
  if (in_folder) std::filesystem::create_directories(r.store_folder);
  if (in_folder || r.secret.empty()) {
    root_file_ = std::make_unique<RootFile>(PathOfRootFile(r, root.port), root);
  }
  root.secret = WithRunId(r, root.secret);
  o->root = [root] { return root; };
}

// How the others find it.
std::function<RootAddress()> World::Search() const {
  const Rendezvous& r = rendezvous_;
  if (!r.store_folder.empty()) {
    return [r] {
      RootAddress root = RootFile::Read(PathOfRootFile(r, 0));
      root.secret = WithRunId(r, root.secret);
      return root;
    };
  }
  return [r, next = 0]() mutable {
    // Other programs may listen on some of the ports.
    const int port = r.master_port + next++ % r.port_choices;
    RootAddress root{NumericAddress(r.master_addr), port, r.secret,
                     /*uncertain=*/r.port_choices > 1};
    if (r.secret.empty()) root = RootFile::Read(PathOfRootFile(r, port));
    root.secret = WithRunId(r, root.secret);
    return root;
  };
}

}  // namespace lockstep::dist
