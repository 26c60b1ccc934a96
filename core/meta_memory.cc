#include "core/meta_memory.h"

#include <utility>

#include "core/error.h"

namespace lockstep {
namespace {
thread_local MetaMemoryListener* listener = nullptr;
thread_local const char* label = nullptr;
}  // namespace

MetaMemoryListener::MetaMemoryListener(Device device) : device_(device) {
  LS_CHECK(listener == nullptr, "this thread already has a MetaMemoryListener");
  listener = this;
}
MetaMemoryListener::~MetaMemoryListener() { listener = nullptr; }
MetaMemoryListener* MetaMemoryListener::OfThisThread() { return listener; }

Device PlannedDevice(Device device) {
  return device.is_meta() && listener != nullptr ? listener->device() : device;
}

MetaMemoryLabel::MetaMemoryLabel(const char* name) : outer_(std::exchange(label, name)) {}
MetaMemoryLabel::~MetaMemoryLabel() { label = outer_; }
const char* MetaMemoryLabel::OfThisThread() { return label; }

}  // namespace lockstep
