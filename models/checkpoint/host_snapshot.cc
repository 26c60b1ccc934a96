#include "models/checkpoint/host_snapshot.h"

#include <algorithm>

#include "core/error.h"

namespace lockstep::models {
namespace {

constexpr int64_t kBlock = 8 << 20;
constexpr int64_t kAlignment = 64;

}  // namespace

void HostSnapshot::Begin() {
  block_ = 0;
  used_ = 0;
  complete_ = true;
}

// Another block; false where there is no memory for it.
bool HostSnapshot::Reserve(int64_t bytes) {
  const int64_t room = std::max(bytes, kBlock);
  if (room > max_bytes_ - reserved_bytes()) return false;
  try {
    blocks_.push_back({GetStreamBackend(device_.type).AllocateHost(room, device_), room});
  } catch (const OutOfMemoryError&) {
    return false;
  }
  return true;
}

Tensor HostSnapshot::Add(const Tensor& x) {
  LS_CHECK(x.is_contiguous() && (x.device() == device_ || x.device().is_cpu()),
           "a snapshot of tensors on ", device_, " cannot copy ", x.Describe());
  const int64_t bytes = x.bytes();
  for (; block_ < blocks_.size() && used_ + bytes > blocks_[block_].bytes; ++block_) used_ = 0;
  StreamBackend& backend = GetStreamBackend(x.device().type);
  if (block_ == blocks_.size() && !Reserve(bytes)) {
    complete_ = false;
    return x;
  }
  const Block& block = blocks_[block_];
  std::byte* const to = static_cast<std::byte*>(block.memory.get()) + used_;
  used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const Stream stream = CurrentStream(x.device());
  backend.CopyToHost(to, x.raw_data(), bytes, stream);
  if (!x.device().is_cpu()) x.storage().RecordUse(stream);
  return Tensor::FromStorage(Storage::Wrap(to, bytes, kCpu, block.memory), x.dtype(), x.shape());
}

void HostSnapshot::End() { copied_.Record(CurrentStream(device_)); }

int64_t HostSnapshot::reserved_bytes() const {
  int64_t bytes = 0;
  for (const Block& block : blocks_) bytes += block.bytes;
  return bytes;
}

}  // namespace lockstep::models
