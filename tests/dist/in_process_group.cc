#include "tests/dist/in_process_group.h"

#include <exception>
#include <thread>

#include "dist/groups/host_group.h"
#include "dist/groups/tcp_transport.h"
#include "tests/dist/local_planes.h"

namespace lockstep::dist {
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
