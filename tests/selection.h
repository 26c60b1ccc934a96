// Tests that try everything of a kind (each file operation, each drawn plan, each kernel in each
// order of threads) take a selection in plain `bazel test //...`, and all of it with --config=all.
#pragma once

#include <cstdlib>

namespace lockstep::test {

inline bool TakesAll() { return std::getenv("LOCKSTEP_TEST_ALL") != nullptr; }

}  // namespace lockstep::test
