// One rank of a small run: sums tensors over the ranks, step after step, and checks the sums.
// Misbehaves on request.
//   rank STEPS [RANK STEP WHAT]
// WHAT: kill, exit, throw, skip, resize, swap, hang or pause.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>

#include "core/tensor.h"
#include "dist/groups/pause.h"
#include "dist/launch/launch.h"
#include "dist/world.h"

namespace lockstep::dist {
namespace {

constexpr int64_t kCount = 100'000;

struct Fault {
  int rank = -1;
  int64_t step = 0;
  std::string what;
};

void CheckedSum(ProcessGroup& group, int64_t step) {
  const Tensor x =
      Tensor::Full({kCount}, static_cast<double>(step % 100 + group.rank()), DType::kF32);
  group.AllReduce(x)->Wait();
  const auto size = static_cast<float>(group.size());
  const float expected = size * static_cast<float>(step % 100) + size * (size - 1) / 2;
  const float* const y = x.data<float>();
  for (int64_t i = 0; i < kCount; ++i) {
    if (y[i] != expected) {
      std::cout << "WRONG DATA: " << y[i] << " instead of " << expected << std::endl;
      std::_Exit(3);
    }
  }
}

void Misbehave(ProcessGroup& group, const std::string& what) {
  const Tensor x = Tensor::Full({kCount}, 1, DType::kF32);
  if (what == "kill") kill(getpid(), SIGKILL);
  if (what == "exit") std::_Exit(0);
  if (what == "throw") throw InputError("shard 3 is truncated");
  if (what == "resize") group.AllReduce(x.Slice(0, 0, kCount / 2))->Wait();
  if (what == "swap") group.Broadcast(x, 0)->Wait();
  const Pause pause(what == "pause" ? &group : nullptr, "writing a checkpoint");
  if (what == "pause") std::cout << "pauses" << std::endl;
  if (what == "hang" || what == "pause") std::this_thread::sleep_for(std::chrono::hours(1));
}

void Run(int64_t steps, const Fault& fault) {
  const char* const join = std::getenv("TEST_JOIN_SECONDS");
  WorldOptions world_options;
  world_options.timeout = std::chrono::seconds(join == nullptr ? 120 : std::atoi(join));
  if (const char* const heartbeat = std::getenv("TEST_HEARTBEAT_SECONDS")) {
    world_options.heartbeat = std::chrono::seconds(std::atoi(heartbeat));
  }
  World world(ReadRendezvous(), world_options);
  GroupOptions options;
  if (const char* const timeout = std::getenv("TEST_TIMEOUT_SECONDS")) {
    options.timeout = std::chrono::seconds(std::atoi(timeout));
  }
  const auto group = world.Group(options);
  for (int64_t step = 1; step <= steps; ++step) {
    if (group->rank() == fault.rank && step == fault.step) Misbehave(*group, fault.what);
    CheckedSum(*group, step);
    std::cout << "step " << step << std::endl;
  }
}

}  // namespace
}  // namespace lockstep::dist

int main(int argc, char** argv) {
  try {
    lockstep::dist::Fault fault;
    if (argc == 5) fault = {std::atoi(argv[2]), std::atoll(argv[3]), argv[4]};
    lockstep::dist::Run(std::atoll(argv[1]), fault);
    return 0;
  } catch (const std::exception& error) {
    lockstep::dist::TellLauncher(error);
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
