// The bytes behind tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/device.h"
#include "core/stream.h"

namespace lockstep {

// A handle to a stable control block: tensors keep pointing to it while its memory is released and
// re-materialised (sharding, offload). A storage may be a slice of another one, whose memory it
// then uses. Handles are cheap to copy and share the block. Only the reference count is
// thread-safe.
class Storage {
 public:
  Storage() = default;

  // Uninitialised memory of the device's allocator; none on the meta device.
  static Storage Allocate(int64_t bytes, Device device);
  // The same, but released: without memory until Materialize.
  static Storage Reserve(int64_t bytes, Device device);
  // Wraps foreign memory, which `owner` keeps alive.
  static Storage Wrap(void* data, int64_t bytes, Device device, std::shared_ptr<void> owner);
  // Bytes [offset, offset + bytes) of this storage. A slice has its own version counter, so its
  // version checks do not see writes through the whole.
  Storage Slice(int64_t offset, int64_t bytes) const;

  bool defined() const { return block_ != nullptr; }
  // Null if empty or on the meta device. Throws Error if the memory was released.
  void* data() const;
  int64_t bytes() const;
  Device device() const;
  bool is_slice() const;
  // True if this handle is the only one and the memory is neither sliced nor wrapped: its owner may
  // then write in place without being noticed.
  bool unique() const;
  bool SameBlock(const Storage& other) const { return block_ == other.block_; }

  // Increases with every storage that the process makes, so it tells which of two is older. A slice
  // has the serial of the whole.
  uint64_t serial() const;
  static uint64_t NextSerial();  // a lower bound for the next storage's, on any thread

  // Counts writes, so that a saved tensor can tell whether it was overwritten.
  uint64_t version() const;
  void BumpVersion() const;

  // Gives the memory back: contents are lost, tensors remain. Not for slices or wrapped memory.
  void Release() const;
  // Allocates fresh, uninitialised memory after Release; does nothing if there is memory.
  void Materialize() const;
  bool released() const;  // for a slice: whether the whole is

  // Records that work on `stream` uses the memory, which is not reused before that work is done.
  void RecordUse(Stream stream) const;

 private:
  struct Block;
  std::shared_ptr<Block> block_;
};

}  // namespace lockstep
