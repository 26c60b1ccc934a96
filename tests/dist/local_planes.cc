#include "tests/dist/local_planes.h"

#include <utility>

namespace lockstep::dist {

std::vector<std::shared_ptr<ControlPlane>> MakeLocalPlanes(int size,
                                                           const LocalPlanesOptions& options) {
  std::vector<std::shared_ptr<EventLoop>> loops;
  for (int i = 0; i < options.loops; ++i) loops.push_back(std::make_shared<EventLoop>());
  RootAddress root{.host = "127.0.0.1", .secret = handshake::RandomSecret()};
  const RankTree tree(size, options.fan_out);
  std::vector<std::shared_ptr<ControlPlane>> planes;
  for (int rank = 0; rank < size; ++rank) {
    ControlPlane::Options o;
    o.rank = rank;
    o.claim = Claim::Of(size);
    o.claim.address = root.host;
    if (options.data || rank == 0 || !tree.Children(rank).empty()) {
      o.listeners.push_back(Listen(root.host, 0));
      o.claim.port = PortOf(o.listeners[0]);
    }
    if (rank == 0) root.port = o.claim.port;
    o.root = [root] { return root; };
    o.timeout = options.timeout;
    o.heartbeat = options.heartbeat;
    o.fan_out = options.fan_out;
    o.on_open = [rank, on_open = options.on_open](const std::string& refusal) {
      on_open(rank, refusal);
    };
    planes.push_back(std::make_shared<ControlPlane>(loops[static_cast<size_t>(rank) % loops.size()],
                                                    std::move(o)));
  }
  return planes;
}

}  // namespace lockstep::dist
