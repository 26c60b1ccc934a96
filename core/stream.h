// Streams and events. On the CPU work is done when a call returns, so both are empty there.
#pragma once

#include <cstdint>
#include <memory>

#include "core/device.h"

namespace lockstep {

// A queue of work on one device. Copies share the queue, which is destroyed with the last of them,
// once its work is done: whatever still holds a stream (a guard, memory that the stream used) can
// use it.
struct Stream {
  Device device;
  // On CUDA, a cudaStream_t; null is the device's default stream. To refer to a foreign queue,
  // which its owner must keep until all copies are gone: {std::shared_ptr<void>(), handle}.
  std::shared_ptr<void> handle;

  bool operator==(const Stream&) const = default;
};

// The calling thread's stream on a device: the default stream, or the innermost guard's.
Stream CurrentStream(Device device);

// Makes a stream current on its device for this thread and scope.
class StreamGuard {
 public:
  explicit StreamGuard(Stream stream);
  ~StreamGuard();
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;

 private:
  Stream previous_;
};

// What a device must provide besides kernels. The CPU's backend is built in; others register
// theirs.
class StreamBackend {
 public:
  virtual ~StreamBackend() = default;
  virtual Stream CreateStream(Device device) = 0;
  virtual void Synchronize(Stream stream) = 0;
  // `device`: the event's. Any thread may call this, whichever device it used before.
  virtual void* CreateEvent(Device device) = 0;
  virtual void DestroyEvent(Device device, void* event) noexcept = 0;
  virtual void RecordEvent(void* event, Stream stream) = 0;
  virtual void WaitEvent(void* event, Stream stream) = 0;
  virtual bool QueryEvent(Device device, void* event) = 0;
  virtual void SynchronizeEvent(Device device, void* event) = 0;
  // Host memory that `device` can write to asynchronously: the destination of CopyToHost.
  virtual std::shared_ptr<void> AllocateHost(int64_t bytes, Device device);
  // Copies device memory to `to`, which is from AllocateHost, after the work already submitted to
  // the stream. The bytes are there once an event recorded after the copy has completed.
  virtual void CopyToHost(void* to, const void* from, int64_t bytes, Stream stream);
  // The same in the other direction, from such memory, which must not be written to before the copy
  // has completed.
  virtual void CopyFromHost(void* to, const void* from, int64_t bytes, Stream stream);
};

// Throws ArgumentError naming the device if the build has no backend for it.
StreamBackend& GetStreamBackend(DeviceType type);
void RegisterStreamBackend(DeviceType type, std::unique_ptr<StreamBackend> backend);

// Waits until all work submitted to the stream is done; throws the device's pending error.
void Synchronize(Stream stream);

// A point in a stream's work that other streams, or the host, can wait for.
class Event {
 public:
  explicit Event(Device device);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void Record(Stream stream);
  void Wait(Stream stream);  // the stream waits, not the host
  bool Query();              // true once the recorded work is done
  void Synchronize();        // the host waits

 private:
  Device device_;
  void* event_;
};

}  // namespace lockstep
