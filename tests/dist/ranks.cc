#include "tests/dist/ranks.h"

#include <gmock/gmock.h>

#include <thread>

#include "dist/control/in_process_store.h"
#include "dist/control/tcp_store.h"
#include "dist/groups/gloo_group.h"
#include "dist/groups/in_process_group.h"

namespace lockstep::dist::test {
namespace {

using Maker = std::function<std::shared_ptr<ProcessGroup>(int rank)>;

std::string RunRank(const Maker& make, int rank, const std::function<void(ProcessGroup&)>& body) {
  try {
    const auto group = make(rank);
    body(*group);
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

std::ostream& operator<<(std::ostream& out, Kind kind) {
  switch (kind) {
    case Kind::kInProcess:
      return out << "InProcess";
    case Kind::kGloo:
      return out << "Gloo";
    case Kind::kGlooOverTcpStore:
      return out << "GlooOverTcpStore";
  }
  return out;
}

std::vector<std::string> ErrorsOf(Kind kind, int size,
                                  const std::function<void(ProcessGroup&)>& body,
                                  const GroupOptions& options) {
  const auto in_process_store = MakeInProcessStore();
  std::unique_ptr<TcpStoreServer> server;
  std::vector<std::shared_ptr<ProcessGroup>> in_process;
  Maker make;
  if (kind == Kind::kInProcess) {
    in_process = MakeInProcessGroups(size, options);
    make = [&](int rank) { return std::move(in_process[static_cast<size_t>(rank)]); };
  } else if (kind == Kind::kGloo) {
    make = [&](int rank) { return MakeGlooGroup(*in_process_store, rank, size, options); };
  } else {
    server = std::make_unique<TcpStoreServer>(TcpStoreAddress());
    make = [&](int rank) {
      const auto store = ConnectTcpStore(server->address(), std::chrono::seconds(30));
      return MakeGlooGroup(*store, rank, size, options);
    };
  }
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back(
        [&, rank] { errors[static_cast<size_t>(rank)] = RunRank(make, rank, body); });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

void RunRanks(Kind kind, int size, const std::function<void(ProcessGroup&)>& body,
              const GroupOptions& options) {
  EXPECT_THAT(ErrorsOf(kind, size, body, options), testing::Each("")) << kind << ", " << size;
}

}  // namespace lockstep::dist::test
