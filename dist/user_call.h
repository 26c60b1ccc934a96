// What a program called that led to a collective.
#pragma once

#include <string>

namespace lockstep::dist {

// Within its scope this thread is in a call that all ranks make, such as "SaveTraining": the
// purpose of the collectives in it, which errors name and ranks compare. Of nested ones the
// outermost counts.
class UserCall {
 public:
  explicit UserCall(const char* name);  // a literal
  ~UserCall();
  UserCall(const UserCall&) = delete;
  UserCall& operator=(const UserCall&) = delete;

  static const char* Current();  // "": none

 private:
  const char* const previous_;
};

// "bucket 1 ('wte.weight') in Backward"; just "SaveTraining" where there is no other purpose.
std::string WithUserCall(const std::string& purpose);

}  // namespace lockstep::dist
