#include "tests/dist/worlds.h"

#include <thread>

#include "dist/control/socket.h"

namespace lockstep::dist {

int FreePort() { return PortOf(Listen("127.0.0.1", 0)); }

Rendezvous RendezvousOf(int rank, int size, int port) {
  Rendezvous r;
  r.rank = r.local_rank = rank;
  r.world_size = r.local_world_size = size;
  r.master_port = port;
  r.secret = "secret";
  r.source = "RANK";
  return r;
}

std::vector<std::string> InWorld(int size, const std::function<void(World&)>& body,
                                 const WorldOptions& options) {
  const int port = FreePort();
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      try {
        World world(RendezvousOf(r, size, port), options);
        body(world);
      } catch (const std::exception& e) {
        errors[static_cast<size_t>(r)] = e.what();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  return errors;
}

}  // namespace lockstep::dist
