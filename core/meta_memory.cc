#include "core/meta_memory.h"

#include "core/error.h"

namespace lockstep {
namespace {
thread_local MetaMemoryListener* listener = nullptr;
}

MetaMemoryListener::MetaMemoryListener() {
  LS_CHECK(listener == nullptr, "this thread already has a MetaMemoryListener");
  listener = this;
}
MetaMemoryListener::~MetaMemoryListener() { listener = nullptr; }
MetaMemoryListener* MetaMemoryListener::OfThisThread() { return listener; }

}  // namespace lockstep
