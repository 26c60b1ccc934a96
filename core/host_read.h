// Asynchronous reads from a device, for values that are looked at later: losses, norms.
#pragma once

#include <memory>

#include "core/stream.h"
#include "core/tensor.h"

namespace lockstep {

// The elements of a tensor as they are once the work submitted so far to the current stream of its
// device is done. Reading a training step's loss this way does not stop the host from submitting
// the next step. Movable, not copyable. On the CPU the elements are copied at once.
class HostRead {
 public:
  HostRead() = default;  // undefined
  // x: contiguous, not on the meta device. It may be freed or overwritten by later work.
  explicit HostRead(const Tensor& x);
  ~HostRead();
  HostRead(HostRead&& other) noexcept = default;
  HostRead& operator=(HostRead&& other) noexcept;

  bool defined() const { return host_.defined(); }
  // Whether Get would return at once.
  bool Ready();
  // The elements, on the CPU. Waits for them; throws the device's error.
  const Tensor& Get();

 private:
  void Finish() noexcept;

  Tensor host_;
  std::unique_ptr<Event> event_;  // null: the elements are there
};

}  // namespace lockstep
