#include "core/stream.h"

#include <array>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "core/error.h"

namespace lockstep {
namespace {

// On the host, all submitted work is already done.
class HostStreamBackend : public StreamBackend {
 public:
  Stream CreateStream(Device device) override { return {device, nullptr}; }
  void Synchronize(Stream) override {}
  void* CreateEvent(Device) override { return nullptr; }
  void DestroyEvent(Device, void*) noexcept override {}
  void RecordEvent(void*, Stream) override {}
  void WaitEvent(void*, Stream) override {}
  bool QueryEvent(Device, void*) override { return true; }
  void SynchronizeEvent(Device, void*) override {}
};

// Never destroyed: tensors with static storage may be freed after any static of ours.
auto& Backends() {
  using List = std::array<std::unique_ptr<StreamBackend>, kNumDeviceTypes>;
  static List& backends = *new List{std::make_unique<HostStreamBackend>(), nullptr,
                                    std::make_unique<HostStreamBackend>()};
  return backends;
}

// Only streams that differ from the default are listed: almost always none or one.
thread_local std::vector<Stream> current_streams;

void SetCurrent(Stream stream) {
  for (Stream& s : current_streams) {
    if (s.device == stream.device) {
      s = std::move(stream);
      return;
    }
  }
  current_streams.push_back(std::move(stream));
}

}  // namespace

Stream CurrentStream(Device device) {
  for (const Stream& s : current_streams) {
    if (s.device == device) return s;
  }
  return {device, nullptr};
}

StreamGuard::StreamGuard(Stream stream) : previous_(CurrentStream(stream.device)) {
  SetCurrent(std::move(stream));
}
StreamGuard::~StreamGuard() { SetCurrent(std::move(previous_)); }

StreamBackend& GetStreamBackend(DeviceType type) {
  auto& backend = Backends()[static_cast<size_t>(type)];
  LS_CHECK(backend != nullptr, "this build has no ", Name(type),
           " backend: use --device=cpu, or build with that backend");
  return *backend;
}

void RegisterStreamBackend(DeviceType type, std::unique_ptr<StreamBackend> backend) {
  Backends()[static_cast<size_t>(type)] = std::move(backend);
}

std::shared_ptr<void> StreamBackend::AllocateHost(int64_t bytes, Device) {
  void* data = std::malloc(static_cast<size_t>(bytes));
  if (data == nullptr && bytes > 0) {
    throw OutOfMemoryError(StrCat("out of memory on the host: cannot allocate ", bytes, " bytes"));
  }
  return {data, std::free};
}

void StreamBackend::CopyToHost(void* to, const void* from, int64_t bytes, Stream) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

void StreamBackend::CopyFromHost(void* to, const void* from, int64_t bytes, Stream) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

void Synchronize(Stream stream) { GetStreamBackend(stream.device.type).Synchronize(stream); }

Event::Event(Device device)
    : device_(device), event_(GetStreamBackend(device.type).CreateEvent(device)) {}
Event::~Event() { GetStreamBackend(device_.type).DestroyEvent(device_, event_); }
void Event::Record(Stream stream) { GetStreamBackend(device_.type).RecordEvent(event_, stream); }
void Event::Wait(Stream stream) { GetStreamBackend(device_.type).WaitEvent(event_, stream); }
bool Event::Query() { return GetStreamBackend(device_.type).QueryEvent(device_, event_); }
void Event::Synchronize() { GetStreamBackend(device_.type).SynchronizeEvent(device_, event_); }

}  // namespace lockstep
