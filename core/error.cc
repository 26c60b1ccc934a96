#include "core/error.h"

namespace lockstep::internal {

void ThrowCheckFailure(const char* file, int line, const char* condition,
                       const std::string& message) {
  throw Error(StrCat("internal error at ", file, ":", line, ": ", condition, " does not hold",
                     message.empty() ? "" : ": ", message, ". This is a bug in Lockstep."));
}

}  // namespace lockstep::internal
