// Who sees the tensors of collectives: traces of what ranks exchange.
#pragma once

#include <string>

#include "core/tensor.h"
#include "dist/collective.h"

namespace lockstep::dist {

// Told of the collectives of all groups of this process, by the threads that call them; not of
// sends and receives. `group` and the call's sequence number name it on all ranks. While somebody
// observes, a call returns once its result is there.
class CallObserver {
 public:
  virtual ~CallObserver() = default;
  // `input`: what this rank gives, also where the result takes its place.
  virtual void OnCall(const std::string& group, const Collective& call, const std::string& purpose,
                      const Tensor& input) = 0;
  virtual void OnResult(const std::string& group, const Collective& call, const Tensor& output) = 0;
};

// While it lives, the observer is told; at most one at a time in a process.
class ObserveCalls {
 public:
  explicit ObserveCalls(CallObserver* observer);
  ~ObserveCalls();
  ObserveCalls(const ObserveCalls&) = delete;
  ObserveCalls& operator=(const ObserveCalls&) = delete;

  static CallObserver* observer();  // null: nobody observes
};

}  // namespace lockstep::dist
