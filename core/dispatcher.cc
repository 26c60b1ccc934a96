#include "core/dispatcher.h"

namespace lockstep::internal {

constinit thread_local SlotObserver* slot_observer = nullptr;

void ThrowEmptySlot(const char* name, Device device) {
  throw Error(StrCat(name, ": no ", Name(device.type), " kernel in this build"));
}

}  // namespace lockstep::internal
