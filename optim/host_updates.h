// Updates of parameters whose values or optimizer state are in the host's memory.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/offload/host_copies.h"
#include "kernels/update.h"

namespace lockstep::optim {

// A call of an update's arithmetic.
struct UpdateCall {
  std::function<void(std::span<const UpdateTensors>)> update;
  // Whether an element's update depends on nothing but that element: then parts of a tensor may be
  // updated by themselves.
  bool elementwise = true;
  // Which of the tensors are in page-locked memory of the host (HostTensor): the values; the
  // states, masters and averages.
  bool values_on_host = false, states_on_host = false;
  std::vector<UpdateTensors> tensors{};

  bool needs_host() const;
};

// Brings what is on the host to one of two buffers on the device, one piece of the call after the
// other; updates it there, by the same kernels and hence to the same bits; and brings it back. The
// copies are on streams of their own: while a piece is updated, the next one arrives, and the one
// before returns. All of it is submitted to the device, and can be part of a CUDA graph. Events and
// buffers live as long as a call of Run.
class HostUpdates {
 public:
  // A buffer has at most `buffer_bytes`, and at most an eighth of what is moved if that is more
  // than 1 MiB, but always enough for the largest tensors that an update needs whole.
  HostUpdates(Device device, int64_t buffer_bytes) : buffer_bytes_(buffer_bytes), copies_(device) {}

  // Work that the current stream gets from then on runs after the updates and the copies back.
  void Run(std::span<const UpdateCall> calls);

 private:
  struct Piece;
  struct Loaded;
  int64_t BufferBytesFor(std::span<const UpdateCall> calls) const;
  std::vector<Piece> Cut(std::span<const UpdateCall> calls) const;
  Loaded Load(const Piece& piece, const Tensor& buffer, Event* after);

  const int64_t buffer_bytes_;
  HostCopies copies_;
};

}  // namespace lockstep::optim
