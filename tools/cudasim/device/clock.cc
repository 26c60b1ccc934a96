#include <chrono>

#include "cudasim/thread.h"

long long clock64() {  // NOLINT: CUDA's type
  return std::chrono::steady_clock::now().time_since_epoch().count();
}
