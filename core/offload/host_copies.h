// Copies between a device and page-locked memory of the host, while the device computes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/stream.h"
#include "core/tensor.h"

namespace lockstep {

// A contiguous tensor in page-locked memory of the host, uninitialised, from which copies to
// `device` and back need not wait. It is a tensor on the CPU like any other. If `device` is the
// meta device, the tensor is there and counts as memory of the host (PlannedHostMemory); if it is
// the CPU, the tensor is an ordinary one.
Tensor HostTensor(const Shape& shape, DType dtype, Device device);

// For the meta device: stands for that much page-locked host memory, which a MetaMemoryListener is
// told of under the MetaMemoryLabel "host".
std::shared_ptr<void> PlannedHostMemory(int64_t bytes);

// While one exists, it is told of the copies of its thread's HostCopies, and of what the device
// computes with them (ComputeSpan). At most one per thread.
class CopyListener {
 public:
  enum class Track { kToDevice, kToHost, kCompute };
  struct Span {
    Track track;
    std::string name;
    int64_t bytes;                      // 0 for kCompute
    std::shared_ptr<Event> begin, end;  // recorded before and after the work
  };

  CopyListener();
  virtual ~CopyListener();
  CopyListener(const CopyListener&) = delete;
  CopyListener& operator=(const CopyListener&) = delete;

  virtual void OnSpan(Span span) = 0;  // once the work has been submitted

  static CopyListener* OfThisThread();
};

// Two streams of a device, one for each direction, since buses can do both at once. On the CPU and
// on the meta device all of this does nothing. For one thread at a time.
class HostCopies {
 public:
  struct Copy {
    void* host;  // from HostTensor, or AllocateHost of the device's StreamBackend
    void* device;
    int64_t bytes;
  };
  using Done = std::unique_ptr<Event>;  // null if there was nothing to copy

  explicit HostCopies(Device device) : device_(device) {}
  ~HostCopies();  // waits for the copies
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  Device device() const { return device_; }
  // Submit copies that run after all work submitted to the current stream so far, and after `after`
  // if it is not null. Memory is theirs until the stream that frees or overwrites it waits for the
  // result: Await. The name is for listeners.
  Done ToDevice(std::span<const Copy> copies, std::string_view name, Event* after = nullptr) {
    return Submit(CopyListener::Track::kToDevice, copies, name, after);
  }
  Done ToHost(std::span<const Copy> copies, std::string_view name) {
    return Submit(CopyListener::Track::kToHost, copies, name, nullptr);
  }
  // The current stream's work from now on comes after the copies. Empties `done`.
  void Await(Done& done) const;

  // The streams of the copies; on a GPU.
  const Stream& to_device() { return StreamOf(to_device_); }
  const Stream& to_host() { return StreamOf(to_host_); }

 private:
  const Stream& StreamOf(std::optional<Stream>& stream);
  Done Submit(CopyListener::Track track, std::span<const Copy> copies, std::string_view name,
              Event* after);

  Device device_;
  std::optional<Stream> to_device_, to_host_;
};

// Names the work that the current stream of a device gets within its scope, for listeners; without
// a listener it costs a comparison.
class ComputeSpan {
 public:
  ComputeSpan(Device device, std::string_view name);
  ~ComputeSpan();
  ComputeSpan(const ComputeSpan&) = delete;
  ComputeSpan& operator=(const ComputeSpan&) = delete;

 private:
  Device device_;
  std::string name_;
  std::shared_ptr<Event> begin_;  // null without a listener
};

}  // namespace lockstep
