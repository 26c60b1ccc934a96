// Copies of a model's tensors that can be written while training continues.
#pragma once

#include <cstdint>
#include <limits>
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
  // `device` is where the tensors are. Takes at most `max_bytes` of memory.
  explicit HostSnapshot(Device device, int64_t max_bytes = std::numeric_limits<int64_t>::max())
      : device_(device), max_bytes_(max_bytes), copied_(device) {}

  // Forgets the previous copies, which must not be used any more.
  void Begin();
  // A copy, on the CPU, of a contiguous tensor as it is once the work submitted so far to the
  // current stream is done. Its elements are there after Wait. If the host has no memory for a
  // copy, returns the tensor itself.
  Tensor Add(const Tensor& x);
  void End();
  // Whether all results of Add are copies.
  bool complete() const { return complete_; }
  // After End, on any thread: waits until all copies are complete. Throws the device's error.
  void Wait() { copied_.Synchronize(); }

  // How much host memory this holds; Release gives it back once the copies are no longer used.
  int64_t reserved_bytes() const;
  void Release() { blocks_.clear(); }

 private:
  struct Block {
    std::shared_ptr<void> memory;
    int64_t bytes = 0;
  };

  bool Reserve(int64_t bytes);

  const Device device_;
  const int64_t max_bytes_;
  bool complete_ = true;
  Event copied_;
  std::vector<Block> blocks_;
  size_t block_ = 0;  // that is being filled
  int64_t used_ = 0;  // bytes of it
};

}  // namespace lockstep::models
