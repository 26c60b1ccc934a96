// The checks that follow from just an OpCase. op_test runs all of them, gradcheck those of
// gradients. For an op outside of Lockstep, All is the one call to make.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/op_case/op_case.h"

namespace lockstep::check {

struct Result {
  std::string error;  // empty: passed
  // Over all elements compared; relative to the larger of |want| and the rms of the wanted tensor.
  double max_absolute = 0, max_relative = 0;
  int64_t compared = 0;
  // From Orders only: of the bits of results and gradients, and whether the simulated GPU that
  // computed them says that a real one may have others.
  std::optional<uint64_t> hash;
  bool approximated = false;

  bool passed() const { return error.empty(); }
};

// A check of one sample, such as "Gradient/odd/f32".
struct NamedCheck {
  std::string name;
  std::function<Result()> run;
};

// All checks of a case on the CPU, or those of its kernels on a CUDA device. They refer to the
// case.
std::vector<NamedCheck> Checks(const OpCase& c, Device device);

// Runs these. The error has a line for each that failed; the largest differences are those of all.
Result All(const OpCase& c, Device device);

// The declaration itself: names, dtypes, tolerances, and that there are an empty and a
// non-contiguous sample (or error samples of that name).
Result Declaration(const OpCase& c);

// Outputs against the reference, which sees the inputs as the dtype holds them.
Result Forward(const OpCase& c, const OpSample& s, DType dtype, Device device);

// The f64 backward against finite differences (four points, error O(h^4)) of the op's own f64
// forward and of the reference: every element of small inputs; elements and random directions of
// large ones.
Result FiniteDifferences(const OpCase& c, const OpSample& s, Device device);

// The backward in `dtype` against the CPU's f64 backward at the same values.
Result Gradient(const OpCase& c, const OpSample& s, DType dtype, Device device);

// Gradients added to existing values: a leaf's own gradient, a slice of a bucket, and an f32
// destination for 16-bit leaves; nothing around the destination is touched.
Result Accumulation(const OpCase& c, const OpSample& s, DType dtype, Device device);

// Gradients of only some inputs have the bits that all together have.
Result Subsets(const OpCase& c, const OpSample& s, DType dtype, Device device);

// Same bits, forward and backward, again and at 1, 2 and 3 threads; inputs stay as they are.
Result Determinism(const OpCase& c, const OpSample& s, DType dtype, Device device);

// On a CUDA device, forward and backward in each order of threads that the simulator knows (a real
// GPU has only its own): results against the reference, gradients against the CPU's f64 backward,
// and every order's bits are the first one's, of which the result has a hash; inputs stay as they
// are.
Result Orders(const OpCase& c, const OpSample& s, DType dtype, Device device);

// As Forward and Gradient, with contiguous inputs that start one element into their memory, as
// slices do: kernels that read 16 bytes at a time must not.
Result Unaligned(const OpCase& c, const OpSample& s, DType dtype, Device device);

// Writing to an input or output between forward and backward is refused, or changes nothing.
Result Overwriting(const OpCase& c, const OpSample& s, DType dtype, Device device);

// On the meta device: the same shapes and dtypes, forward and backward, and no memory.
Result Meta(const OpCase& c, const OpSample& s, DType dtype);

// The sample throws an Error that contains its message, in which "cpu" stands for the device.
Result ErrorMessage(const ErrorSample& sample, Device device);

// Whether the sample has inputs whose gradient is checked.
bool HasGradient(const OpCase& c, const OpSample& s);

// The dtypes of a case that a device computes in: CUDA devices have no f64.
std::vector<DType> DTypesOn(const OpCase& c, Device device);

}  // namespace lockstep::check
