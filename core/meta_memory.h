// Tracks the memory that tensors on the meta device would take, for memory planning.
#pragma once

#include <cstdint>

namespace lockstep {

// While one exists, it is told of the storages that its thread allocates and frees on the meta
// device. At most one per thread.
class MetaMemoryListener {
 public:
  MetaMemoryListener();
  virtual ~MetaMemoryListener();
  MetaMemoryListener(const MetaMemoryListener&) = delete;
  MetaMemoryListener& operator=(const MetaMemoryListener&) = delete;

  // `id` identifies the storage until OnFree. An id that is freed but was never allocated belongs
  // to a storage that is older than the listener, to a slice, or to wrapped memory.
  virtual void OnAllocate(const void* id, int64_t bytes) = 0;
  virtual void OnFree(const void* id) = 0;
  // Instead of OnAllocate, for a storage whose memory was reserved or released and is taken again.
  virtual void OnMaterialize(const void* id, int64_t bytes) { OnAllocate(id, bytes); }

  static MetaMemoryListener* OfThisThread();
};

}  // namespace lockstep
