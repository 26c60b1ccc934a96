#include "core/storage.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

#include "core/allocator.h"
#include "core/error.h"
#include "core/meta_memory.h"

namespace lockstep {

namespace {
std::atomic<uint64_t> next_serial{1};
}  // namespace

struct Storage::Block {
  const uint64_t serial = next_serial.fetch_add(1, std::memory_order_relaxed);
  void* data = nullptr;
  int64_t bytes = 0;
  Device device;
  Stream stream;  // the stream the memory was allocated for
  Allocator* allocator = nullptr;
  std::shared_ptr<void> owner;   // for wrapped memory
  std::shared_ptr<Block> whole;  // of a slice
  int64_t offset = 0;            // of a slice, in bytes
  bool released = false;
  uint64_t version = 0;
  std::vector<Stream> used_by;  // other than `stream`

  ~Block() { FreeMemory(); }

  // The block that owns the memory: this one, or the one that it is a slice of.
  Block& root() {
    Block* block = this;
    while (block->whole) block = block->whole.get();
    return *block;
  }

  void TakeMemory() {
    if (!device.is_meta()) {
      stream = CurrentStream(device);
      data = allocator->Allocate(bytes, stream);
    }
    released = false;
  }

  // Makes `stream` wait for the work submitted to `other`. If no event can be created, the host
  // waits. If that fails, too, the device has failed and runs nothing any more: its next use
  // throws.
  void WaitFor(const Stream& other) const noexcept {
    try {
      Event event(device);
      event.Record(other);
      event.Wait(stream);
      return;
    } catch (const std::exception&) {
    }
    try {
      Synchronize(other);
    } catch (const std::exception&) {
    }
  }

  void FreeMemory() noexcept {
    if (device.is_meta() && !released) {
      if (auto* listener = MetaMemoryListener::OfThisThread()) listener->OnFree(this);
      released = true;
    }
    if (allocator == nullptr || released) return;
    // The allocating stream waits for the others, so that reuse on it comes after them.
    for (const Stream& other : used_by) WaitFor(other);
    used_by.clear();
    allocator->Free(data, bytes, stream);
    data = nullptr;
    released = true;
  }
};

namespace {

void CheckDefined(const Storage& storage) {
  LS_CHECK(
      storage.defined(),
      "this tensor is undefined and has neither a device nor data: it was default-constructed or "
      "moved from; check defined() first");
}

}  // namespace

Storage Storage::Allocate(int64_t bytes, Device device) {
  const Storage s = Reserve(bytes, device);
  s.block_->TakeMemory();
  if (device.is_meta()) {
    if (auto* listener = MetaMemoryListener::OfThisThread())
      listener->OnAllocate(s.block_.get(), bytes);
  }
  return s;
}

Storage Storage::Reserve(int64_t bytes, Device device) {
  Storage s;
  s.block_ = std::make_shared<Block>();
  s.block_->bytes = bytes;
  s.block_->device = device;
  s.block_->released = true;
  if (!device.is_meta()) s.block_->allocator = &GetAllocator(device);
  return s;
}

Storage Storage::Wrap(void* data, int64_t bytes, Device device, std::shared_ptr<void> owner) {
  Storage s;
  s.block_ = std::make_shared<Block>();
  s.block_->data = data;
  s.block_->bytes = bytes;
  s.block_->device = device;
  s.block_->owner = std::move(owner);
  return s;
}

Storage Storage::Slice(int64_t offset, int64_t bytes) const {
  LS_CHECK(offset >= 0 && bytes >= 0 && offset <= this->bytes() - bytes, "slice of ", bytes,
           " bytes at ", offset, " is outside a storage of ", this->bytes(), " bytes");
  Storage s;
  s.block_ = std::make_shared<Block>();
  s.block_->bytes = bytes;
  s.block_->device = device();
  s.block_->whole = block_;
  s.block_->offset = offset;
  return s;
}

void* Storage::data() const {
  CheckDefined(*this);
  const Block* block = block_.get();
  int64_t offset = 0;
  while (block->whole) {
    offset += block->offset;
    block = block->whole.get();
  }
  if (block->released) {
    throw Error(StrCat("the memory of this tensor (", block->bytes, " bytes on ", block->device,
                       ") was released; call Materialize() on its storage first"));
  }
  return block->data == nullptr ? nullptr : static_cast<char*>(block->data) + offset;
}

int64_t Storage::bytes() const { return block_ ? block_->bytes : 0; }
Device Storage::device() const {
  CheckDefined(*this);
  return block_->device;
}
bool Storage::is_slice() const { return block_ && block_->whole != nullptr; }
bool Storage::unique() const {
  return block_ && block_.use_count() == 1 && block_->whole == nullptr && block_->owner == nullptr;
}
uint64_t Storage::serial() const { return block_ ? block_->root().serial : 0; }
uint64_t Storage::NextSerial() { return next_serial.load(std::memory_order_relaxed); }
uint64_t Storage::version() const { return block_ ? block_->version : 0; }
void Storage::BumpVersion() const {
  if (block_) ++block_->version;
}

void Storage::Release() const {
  LS_CHECK(defined() && (block_->allocator != nullptr || (device().is_meta() && !is_slice())),
           "only memory that the storage allocated itself can be released");
  block_->FreeMemory();
}
void Storage::Materialize() const {
  if (!released()) return;
  LS_CHECK(!is_slice(),
           "the storage that this one is a slice of was released: call Materialize() on that one");
  block_->TakeMemory();
  if (device().is_meta()) {
    if (auto* listener = MetaMemoryListener::OfThisThread())
      listener->OnAllocate(block_.get(), bytes());
  }
}
bool Storage::released() const { return block_ && block_->root().released; }

void Storage::RecordUse(Stream stream) const {
  if (!block_) return;
  Block& block = block_->root();
  if (block.stream == stream) return;
  if (std::find(block.used_by.begin(), block.used_by.end(), stream) == block.used_by.end()) {
    block.used_by.push_back(std::move(stream));
  }
}

}  // namespace lockstep
