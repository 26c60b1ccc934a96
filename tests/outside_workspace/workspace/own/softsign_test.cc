// Checks the op by one call: values, gradients, equal bits, errors.  softsign_test [cpu|sim|cuda]
#include "own/softsign.h"

#include <cmath>
#include <cstdio>
#include <vector>

#include "core/cuda/device.h"
#include "tests/op_check.h"

using namespace lockstep;

namespace {

OpSample Sample(const std::string& name, const InputSpec& x) {
  return {.name = name,
          .inputs = {x},
          .run = [](TensorSpan in) { return own::Softsign(in[0]); },
          .reference =
              [](RefSpan in) {
                RefTensor y = in[0];
                for (double& v : y.data) v /= 1 + std::abs(v);
                return y;
              },
          .kinks = true};  // of the second derivative, at 0
}

OpCase Softsign() {
  OpCase c;
  c.name = "softsign";
  c.samples = [] {
    return std::vector{
        Sample("empty", {.shape = {0, 3}}), Sample("odd", {.shape = {7, 13}, .low = -4, .high = 4}),
        Sample("chunks", {.shape = {33001}, .low = -9, .high = 9}),
        Sample("transposed", {.shape = {5, 9}, .low = -4, .high = 4, .non_contiguous = true})};
  };
  c.errors = [] {
    return std::vector<ErrorSample>{
        {"integers", [](Device d) { own::Softsign(Tensor::Zeros({2}, DType::kI32, d)); },
         "softsign: x must be a floating tensor, got i32[2]"}};
  };
  return c;
}

}  // namespace

int main(int argc, char** argv) {
  const Device device = cuda::ParseDevice(argc > 1 ? argv[1] : "cpu");
  const check::Result result = check::All(Softsign(), device);
  if (result.passed()) {
    std::printf("softsign: ok, %lld elements, largest relative difference %.2g\n",
                static_cast<long long>(result.compared), result.max_relative);
  } else {
    std::puts(result.error.c_str());
  }
  return result.passed() ? 0 : 1;
}
