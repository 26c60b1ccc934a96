#include "dist/call_observer.h"

#include <atomic>

#include "core/error.h"

namespace lockstep::dist {
namespace {

std::atomic<CallObserver*> current = nullptr;

}  // namespace

ObserveCalls::ObserveCalls(CallObserver* observer) {
  LS_CHECK(current.exchange(observer) == nullptr, "collectives are observed already");
}
ObserveCalls::~ObserveCalls() { current = nullptr; }
CallObserver* ObserveCalls::observer() { return current; }

}  // namespace lockstep::dist
