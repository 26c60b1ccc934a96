#include "core/autograd/op_observer.h"

#include <vector>

namespace lockstep {
namespace {

thread_local std::vector<OpObserver*> observers;
thread_local bool telling = false;

}  // namespace

ObserveOps::ObserveOps(OpObserver* observer) : observer_(observer) {
  observers.push_back(observer);
}
ObserveOps::~ObserveOps() { std::erase(observers, observer_); }

bool internal::OpsAreObserved() { return !observers.empty() && !telling; }

void internal::TellObservers(void (*tell)(OpObserver&, const void*), const void* what) {
  struct Telling {
    Telling() { telling = true; }
    ~Telling() { telling = false; }
  };
  const Telling scope;
  for (OpObserver* const observer : std::vector(observers)) tell(*observer, what);
}

}  // namespace lockstep
