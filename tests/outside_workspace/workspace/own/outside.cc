// A program of another project: uses Lockstep's tensors, and catches its errors.
#include <cstdio>
#include <vector>

#include "core/error.h"
#include "core/tensor.h"

int main() {
  using lockstep::Tensor;
  const Tensor x = Tensor::FromVector(std::vector<float>{-1, 0, 1, 2}, {2, 2});
  const float* last = x.Slice(0, 1, 2).View({2}).data<float>();
  if (last[0] != 1 || last[1] != 2) {
    std::printf("the second row is %g, %g; expected 1, 2\n", last[0], last[1]);
    return 1;
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
