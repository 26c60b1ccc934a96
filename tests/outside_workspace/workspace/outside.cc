// A program of another project: differentiates with Lockstep, and catches its errors.
#include <cmath>
#include <cstdio>
#include <vector>

#include "core/error.h"
#include "core/tensor.h"
#include "kernels/gelu/gelu.h"

int main() {
  using lockstep::Tensor;
  const Tensor x = Tensor::FromVector(std::vector<float>{-1, 0, 1, 2}, {2, 2});
  const std::vector<float> y = lockstep::ops::Gelu(x).ToVector<float>();
  const double want[] = {-0.158808, 0, 0.841192, 1.954598};
  for (int i = 0; i < 4; ++i) {
    if (!(std::abs(y[i] - want[i]) < 1e-5)) {
      std::printf("gelu(%d) = %g, expected %g\n", i - 1, y[i], want[i]);
      return 1;
    }
  }
  try {
    x.View({3});
    std::printf("View({3}) of 4 elements did not throw\n");
    return 1;
  } catch (const lockstep::Error& error) {
    std::printf("outside: ok\n");
  }
  return 0;
}
