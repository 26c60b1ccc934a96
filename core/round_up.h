// Division of sizes.
#pragma once

#include <cstdint>

namespace lockstep {

// Of numbers that are not negative.
constexpr int64_t DivideUp(int64_t n, int64_t by) { return (n + by - 1) / by; }
constexpr int64_t RoundUp(int64_t n, int64_t multiple) { return DivideUp(n, multiple) * multiple; }

}  // namespace lockstep
