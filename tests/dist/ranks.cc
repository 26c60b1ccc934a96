#include "tests/dist/ranks.h"

#include <gmock/gmock-matchers.h>

#include <thread>

#include "dist/groups/host_group.h"
#include "dist/groups/tcp_transport.h"

namespace lockstep::dist::test {
namespace {

std::string RunRank(End end, const std::function<void(ProcessGroup&)>& body,
                    const GroupOptions& options) {
  try {
    const auto group = MakeHostGroup(std::move(end.transport), std::move(end.control), options);
    body(*group);
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

Ends MakeEnds(int size, const LocalPlanesOptions& options) {
  Ends ends;
  for (auto& control : MakeLocalPlanes(size, options)) {
    control->WaitUntilOpen();
    auto transport = MakeTcpTransport(control, "world", AllRanks(size));
    ends.push_back({std::move(control), std::move(transport)});
  }
  return ends;
}

std::vector<std::string> ErrorsOf(int size, const std::function<void(ProcessGroup&)>& body,
                                  const GroupOptions& options) {
  auto ends = MakeEnds(size);
  std::vector<std::string> errors(ends.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ends.size(); ++r) {
    threads.emplace_back([&, r] { errors[r] = RunRank(std::move(ends[r]), body, options); });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

void RunRanks(int size, const std::function<void(ProcessGroup&)>& body,
              const GroupOptions& options) {
  EXPECT_THAT(ErrorsOf(size, body, options), testing::Each("")) << size;
}

}  // namespace lockstep::dist::test
