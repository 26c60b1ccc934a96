#include "core/offload/host_copies.h"

#include <utility>

#include "core/error.h"
#include "core/meta_memory.h"

namespace lockstep {
namespace {

thread_local CopyListener* listener = nullptr;

std::shared_ptr<Event> Recorded(Device device, const Stream& stream) {
  auto event = std::make_shared<Event>(device);
  event->Record(stream);
  return event;
}

}  // namespace

Tensor HostTensor(const Shape& shape, DType dtype, Device device) {
  if (device.is_cpu()) return Tensor::Empty(shape, dtype);
  const int64_t bytes = shape.numel() * SizeOf(dtype);
  if (device.is_meta()) {
    return Tensor::FromStorage(Storage::Wrap(nullptr, bytes, kMeta, PlannedHostMemory(bytes)),
                               dtype, shape);
  }
  std::shared_ptr<void> memory = GetStreamBackend(device.type).AllocateHost(bytes, device);
  void* data = memory.get();
  return Tensor::FromStorage(Storage::Wrap(data, bytes, kCpu, std::move(memory)), dtype, shape);
}

std::shared_ptr<void> PlannedHostMemory(int64_t bytes) {
  MetaMemoryListener* const listens = MetaMemoryListener::OfThisThread();
  if (listens == nullptr) return nullptr;
  std::shared_ptr<void> memory(new char, [](void* id) {
    if (auto* const now = MetaMemoryListener::OfThisThread()) now->OnFree(id);
    delete static_cast<char*>(id);
  });
  const MetaMemoryLabel label("host");
  listens->OnAllocate(memory.get(), bytes);
  return memory;
}

CopyListener::CopyListener() {
  LS_CHECK(listener == nullptr, "this thread already has a CopyListener");
  listener = this;
}
CopyListener::~CopyListener() { listener = nullptr; }
CopyListener* CopyListener::OfThisThread() { return listener; }

HostCopies::~HostCopies() {
  for (const auto& stream : {to_device_, to_host_}) {
    if (!stream) continue;
    try {
      Synchronize(*stream);
    } catch (const Error&) {
      // The device has failed, and copies nothing any more.
    }
  }
}

const Stream& HostCopies::StreamOf(std::optional<Stream>& stream) {
  if (!stream) stream = GetStreamBackend(device_.type).CreateStream(device_);
  return *stream;
}

HostCopies::Done HostCopies::Submit(CopyListener::Track track, std::span<const Copy> copies,
                                    std::string_view name, Event* after) {
  if (copies.empty() || !device_.is_cuda()) return nullptr;
  const bool to_host = track == CopyListener::Track::kToHost;
  const Stream& stream = StreamOf(to_host ? to_host_ : to_device_);
  StreamBackend& backend = GetStreamBackend(device_.type);
  Event now(device_);
  now.Record(CurrentStream(device_));
  now.Wait(stream);
  if (after != nullptr) after->Wait(stream);
  const auto begin = listener != nullptr ? Recorded(device_, stream) : nullptr;
  int64_t bytes = 0;
  for (const Copy& copy : copies) {
    bytes += copy.bytes;
    if (to_host) {
      backend.CopyToHost(copy.host, copy.device, copy.bytes, stream);
    } else {
      backend.CopyFromHost(copy.device, copy.host, copy.bytes, stream);
    }
  }
  auto done = std::make_unique<Event>(device_);
  done->Record(stream);
  if (begin) {
    listener->OnSpan({track, std::string(name), bytes, begin, Recorded(device_, stream)});
  }
  return done;
}

void HostCopies::Await(Done& done) const {
  if (done) done->Wait(CurrentStream(device_));
  done = nullptr;
}

ComputeSpan::ComputeSpan(Device device, std::string_view name) : device_(device) {
  if (listener == nullptr || !device.is_cuda()) return;
  name_ = name;
  begin_ = Recorded(device, CurrentStream(device));
}

ComputeSpan::~ComputeSpan() {
  if (!begin_ || listener == nullptr) return;
  try {
    listener->OnSpan({CopyListener::Track::kCompute, std::move(name_), 0, std::move(begin_),
                      Recorded(device_, CurrentStream(device_))});
  } catch (const Error&) {
    // The device has failed, and its next use says so.
  }
}

}  // namespace lockstep
