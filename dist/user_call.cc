#include "dist/user_call.h"

#include "core/error.h"

namespace lockstep::dist {
namespace {
thread_local const char* current = "";
}  // namespace

UserCall::UserCall(const char* name) : previous_(current) {
  if (*current == '\0') current = name;
}
UserCall::~UserCall() { current = previous_; }

const char* UserCall::Current() { return current; }

std::string WithUserCall(const std::string& purpose) {
  if (*current == '\0') return purpose;
  return purpose.empty() ? current : StrCat(purpose, " in ", current);
}

}  // namespace lockstep::dist
