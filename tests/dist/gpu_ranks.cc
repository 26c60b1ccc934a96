#include "tests/dist/gpu_ranks.h"

#include <gmock/gmock-matchers.h>

#include <thread>

#include "core/cuda/handles.h"
#include "dist/groups/nccl_group.h"
#include "tests/dist/in_process.h"

namespace lockstep::dist {

std::vector<std::string> ErrorsOnGpus(int size, const std::function<void(GpuRank)>& body,
                                      const GroupOptions& options) {
  auto controls = MakeLocalPlanes(size);
  std::vector<std::string> errors(controls.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < controls.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        GpuRank rank = {std::move(controls[r]), options};
        rank.control->WaitUntilOpen();
        rank.options.device = {DeviceType::kCuda, static_cast<int>(r)};
        cuda::SetDevice(rank.options.device);
        const cuda::OwnedStream stream(rank.options.device);
        const StreamGuard guard(stream);
        body(std::move(rank));
      } catch (const std::exception& e) {
        errors[r] = e.what();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  return errors;
}

std::vector<std::string> ErrorsOnGpus(int size, const std::function<void(ProcessGroup&)>& body,
                                      const GroupOptions& options) {
  return ErrorsOnGpus(
      size,
      [&](GpuRank r) {
        const auto group = MakeNcclGroup(std::move(r.control), r.options);
        body(*group);
      },
      options);
}

void RunOnGpus(int size, const std::function<void(ProcessGroup&)>& body,
               const GroupOptions& options) {
  EXPECT_THAT(ErrorsOnGpus(size, body, options), testing::Each("")) << size << " GPUs";
}

}  // namespace lockstep::dist
