// What the checks of op_check.h share: inputs, runs of an op, and comparisons. For those files and
// golden/ops_test.cc only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "core/philox.h"
#include "tests/op_check.h"

namespace lockstep::check {

// ---- Comparing ----

// Keeps the first error.
void Fail(Result& result, const std::string& error);

// Adds all elements to the result, and fails it where some are outside the tolerance.
void Compare(Result& result, const std::string& what, const RefTensor& got, const RefTensor& want,
             const Tolerance& t);

// The tolerance is that of the less exact of the dtype under test and the one the result has.
DType LessExact(DType a, DType b);

// ---- Running ----

std::vector<bool> AllNeeds(const OpSample& s);
std::vector<RefTensor> Values(const OpSample& s, DType dtype);
std::vector<Tensor> Inputs(const OpSample& s, const std::vector<RefTensor>& values, DType dtype,
                           Device device);
void RequireGradients(std::vector<Tensor>& inputs, const std::vector<bool>& needs);

// A root gradient: multiples of 1/128 in [-1, 1], which every floating dtype holds exactly.
RefTensor RootGradient(const Shape& shape, size_t output);
Tensor ToTensor(const RefTensor& values, DType dtype, Device device);

struct Roots {
  std::vector<Tensor> tensors, grads;
};
Roots MakeRoots(const std::vector<Tensor>& outputs);
std::vector<Tensor> Gradients(const std::vector<Tensor>& inputs, const std::vector<bool>& needs);

struct Run {
  std::vector<Tensor> inputs, outputs, grads;  // an undefined gradient: not asked for
};

// Forward, and backward if any input needs a gradient.
Run RunOn(const OpSample& s, std::vector<Tensor> inputs, const std::vector<bool>& needs);
Run RunAll(const OpSample& s, const std::vector<RefTensor>& values, const std::vector<bool>& needs,
           DType dtype, Device device);

// Runs a check and turns what it throws into a failure.
template <class F>
Result Guarded(const F& check) {
  Result result;
  try {
    check(result);
  } catch (const std::exception& error) {
    Fail(result, StrCat("threw: ", error.what()));
  }
  return result;
}

// ---- Comparing runs ----

// HashName over numbers. NaNs are one: which of two operands hands on its bits is not defined.
class Hash {
 public:
  void Add(double x);
  void Add(const Run& run);  // results and gradients
  uint64_t value() const { return hash_; }

 private:
  void Add(const Tensor& x);

  uint64_t hash_ = HashName("");
};

void CompareBits(Result& result, const std::string& what, const Tensor& got, const Tensor& want);
void CompareRuns(Result& result, const std::string& when, const Run& got, const Run& want);
void CompareOutputs(Result& result, const OpCase& c, DType dtype, const Run& run,
                    const std::vector<RefTensor>& want);
// Against the CPU's f64 backward.
void CompareGradients(Result& result, const OpCase& c, DType dtype, const Run& got,
                      const Run& want);

}  // namespace lockstep::check
