// What tensors on the meta device would take, for those that plan memory.
#pragma once

#include <cstdint>

namespace lockstep {

// While one exists, it hears of the storages that its thread makes and drops on the meta device. At
// most one per thread.
class MetaMemoryListener {
 public:
  MetaMemoryListener();
  virtual ~MetaMemoryListener();
  MetaMemoryListener(const MetaMemoryListener&) = delete;
  MetaMemoryListener& operator=(const MetaMemoryListener&) = delete;

  // `id` is the storage's own until OnFree. An id that is freed but was not heard of before belongs
  // to a storage that is older than the listener, a slice, or memory of somebody else.
  virtual void OnAllocate(const void* id, int64_t bytes) = 0;
  virtual void OnFree(const void* id) = 0;

  static MetaMemoryListener* OfThisThread();
};

}  // namespace lockstep
