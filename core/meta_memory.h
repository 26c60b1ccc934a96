// Tracks the memory that tensors on the meta device would take, for memory planning.
#pragma once

#include <cstdint>

#include "core/device.h"

namespace lockstep {

// While one exists, it is told of the storages that its thread allocates and frees on the meta
// device. At most one per thread.
class MetaMemoryListener {
 public:
  // `device`: what the meta device stands for meanwhile, where devices take different memory.
  explicit MetaMemoryListener(Device device = kCpu);
  virtual ~MetaMemoryListener();
  MetaMemoryListener(const MetaMemoryListener&) = delete;
  MetaMemoryListener& operator=(const MetaMemoryListener&) = delete;

  // `id` identifies the storage until OnFree. An id that is freed but was never allocated belongs
  // to a storage that is older than the listener, to a slice, or to wrapped memory. A storage whose
  // memory was reserved or released is allocated when its memory is taken.
  virtual void OnAllocate(const void* id, int64_t bytes) = 0;
  virtual void OnFree(const void* id) = 0;

  static MetaMemoryListener* OfThisThread();
  Device device() const { return device_; }

 private:
  const Device device_;
};

// The device itself or, for the meta device, the one that it stands for on this thread.
Device PlannedDevice(Device device);

// While one exists, what its thread allocates has this name. If labels are nested, the innermost
// counts.
class MetaMemoryLabel {
 public:
  // A string literal.
  explicit MetaMemoryLabel(const char* name);
  ~MetaMemoryLabel();
  MetaMemoryLabel(const MetaMemoryLabel&) = delete;
  MetaMemoryLabel& operator=(const MetaMemoryLabel&) = delete;

  // The name of what this thread allocates now; null: none.
  static const char* OfThisThread();

 private:
  const char* const outer_;
};

}  // namespace lockstep
