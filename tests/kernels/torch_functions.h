// torch's functions by Lockstep's: what the cases of tests/peers/make_torch_functions.py call.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/io/json.h"
#include "core/shape.h"
#include "core/tensor.h"

namespace lockstep::test {

// A call as torch has it: the tensors, and the other arguments by torch's names. Defaults are those
// of the call's function in Lockstep.
struct TorchCall {
  std::vector<Tensor> x;
  const Json& args;
  DType dtype;  // of the floating inputs, and of new floating tensors

  bool Has(const char* key) const;
  double Number(const char* key) const;  // "inf" is infinity
  int64_t Int(const char* key) const;
  bool Flag(const char* key) const;                  // false where it is not given
  std::vector<int64_t> Ints(const char* key) const;  // of a list or a number; empty if not given
  std::vector<int> Dims(const char* key = "dim") const;
  Shape Sizes(const char* key) const;
  std::string Text(const char* key) const;
  // The tensor, or an undefined one where there are fewer.
  Tensor Optional(size_t i) const { return i < x.size() ? x[i] : Tensor(); }
};

using TorchFunction = std::function<std::vector<Tensor>(const TorchCall&)>;

// By torch's names.
const std::map<std::string, TorchFunction>& TorchFunctions();

}  // namespace lockstep::test
