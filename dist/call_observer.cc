#include "dist/call_observer.h"

#include <atomic>

#include "core/error.h"

namespace lockstep::dist {
namespace {

std::atomic<CallObserver*> current = nullptr;

}  // namespace

ObserveCalls::ObserveCalls(CallObserver* observer) {
  CallObserver* nobody = nullptr;
  LS_CHECK(current.compare_exchange_strong(nobody, observer), "collectives are observed already");
}
ObserveCalls::~ObserveCalls() { current = nullptr; }
CallObserver* ObserveCalls::observer() { return current; }

}  // namespace lockstep::dist
