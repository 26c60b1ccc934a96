// The bytes behind tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/device.h"
#include "core/stream.h"

namespace lockstep {

// A stable control block: tensors keep pointing at it while its memory is released and
// re-materialised (sharding, offload). It may be a slice of another storage, whose memory it then
// uses. Handles are shared and cheap to copy; not thread-safe but for the reference count.
class Storage {
 public:
  Storage() = default;

  // Uninitialised memory of the device's allocator; none on the meta device.
  static Storage Allocate(int64_t bytes, Device device);
  // Memory of somebody else, kept alive by `owner`.
  static Storage Wrap(void* data, int64_t bytes, Device device, std::shared_ptr<void> owner);
  // Bytes [offset, offset + bytes) of this storage, with a version counter of its own: a write
  // through the whole is not seen by the version checks of its slices.
  Storage Slice(int64_t offset, int64_t bytes) const;

  bool defined() const { return block_ != nullptr; }
  // Null if empty or on the meta device. Throws Error if the memory was released.
  void* data() const;
  int64_t bytes() const;
  Device device() const;
  bool is_slice() const;
  // True if this handle is the only one and nothing slices or wraps the memory: then its owner may
  // write in place unseen.
  bool unique() const;
  bool SameBlock(const Storage& other) const { return block_ == other.block_; }

  // Counts the writes, so that a saved tensor can tell that it was overwritten.
  uint64_t version() const;
  void BumpVersion() const;

  // Gives the memory back; contents are lost, tensors stay. Not for slices or wrapped memory.
  void Release() const;
  // Takes fresh, uninitialised memory after Release; does nothing if there is memory.
  void Materialize() const;
  bool released() const;  // of a slice: whether the whole is

  // Notes that work on `stream` uses the memory: it is not reused before that work is done.
  void RecordUse(Stream stream) const;

 private:
  struct Block;
  std::shared_ptr<Block> block_;
};

}  // namespace lockstep
