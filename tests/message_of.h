// What an error says.
#pragma once

#include <string>

#include "core/error.h"

namespace lockstep::test {

// The text of the E that `f` throws, or "no error"; any other exception propagates.
template <class E = ArgumentError, class F>
std::string MessageOf(const F& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace lockstep::test
