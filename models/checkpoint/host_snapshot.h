// Copies of a model's tensors that can be written while training continues.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/stream.h"
#include "core/tensor.h"

namespace lockstep::models {

// One set of copies at a time, in host memory that is kept for the next one (page-locked, if the
// tensors are on a GPU): a snapshot of the same tensors allocates nothing. Begin, Add and End are
// for one thread.
class HostSnapshot {
 public:
  // `device`: where the tensors are.
  explicit HostSnapshot(Device device) : device_(device), copied_(device) {}

  // Forgets the previous copies, which must not be used any more.
  void Begin();
  // A copy, on the CPU, of a contiguous tensor as it is once the work submitted so far to the
  // current stream is done. Its elements are there after Wait.
  Tensor Add(const Tensor& x);
  void End();
  // By any thread, after End: until all copies are complete. Throws the device's error.
  void Wait() { copied_.Synchronize(); }

  // Host memory that this holds.
  int64_t reserved_bytes() const;

 private:
  struct Block {
    std::shared_ptr<void> memory;
    int64_t bytes = 0;
  };

  const Device device_;
  Event copied_;
  std::vector<Block> blocks_;
  size_t block_ = 0;  // that is being filled
  int64_t used_ = 0;  // bytes of it
};

}  // namespace lockstep::models
