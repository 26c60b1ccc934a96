#include "tests/dist/in_process.h"

#include <exception>
#include <thread>
#include <utility>

#include "dist/groups/host_group.h"
#include "dist/groups/tcp_transport.h"

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

namespace {

// Whether another rank's error caused this one.
bool IsConsequence(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const CollectiveError& e) {
    return e.cause() == CollectiveError::Cause::kAborted;
  } catch (...) {
    return false;
  }
}

std::exception_ptr RunRank(const std::function<void(ProcessGroup&)>& body, ProcessGroup& group) {
  try {
    body(group);
    return nullptr;
  } catch (const std::exception& e) {
    group.Abort(e.what());
    return std::current_exception();
  } catch (...) {
    group.Abort("an unknown exception");
    return std::current_exception();
  }
}

}  // namespace

std::vector<std::shared_ptr<ProcessGroup>> MakeInProcessGroups(int size,
                                                               const GroupOptions& options) {
  LS_CHECK(size >= 1, "an in-process group needs at least one rank, got ", size);
  std::vector<std::shared_ptr<ProcessGroup>> groups;
  for (auto& plane : MakeLocalPlanes(size)) {
    plane->WaitUntilOpen();
    auto transport = MakeTcpTransport(plane, options.name, AllRanks(size));
    groups.push_back(MakeHostGroup(std::move(transport), std::move(plane), options));
  }
  return groups;
}

void RunInProcess(int size, const std::function<void(ProcessGroup&)>& body,
                  const GroupOptions& options) {
  auto groups = MakeInProcessGroups(size, options);
  std::vector<std::exception_ptr> errors(groups.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < groups.size(); ++r) {
    threads.emplace_back([&, r] {
      errors[r] = RunRank(body, *groups[r]);
      groups[r].reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const bool consequences : {false, true}) {
    for (const std::exception_ptr& error : errors) {
      if (error && IsConsequence(error) == consequences) std::rethrow_exception(error);
    }
  }
}

}  // namespace lockstep::dist
