#include "kernels/op_case/op_case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/philox.h"

namespace lockstep {
namespace {

std::vector<OpCase>& Registered() {
  static std::vector<OpCase> cases;
  return cases;
}

std::vector<OpCase> Sorted() {
  std::vector<OpCase> cases = Registered();
  std::sort(cases.begin(), cases.end(),
            [](const OpCase& a, const OpCase& b) { return a.name < b.name; });
  for (size_t i = 1; i < cases.size(); ++i) {
    if (cases[i].name == cases[i - 1].name) {
      throw Error(StrCat("two OpCases are named '", cases[i].name,
                         "'; an OpCase must have the name of its folder"));
    }
  }
  return cases;
}

DType InputDType(const InputSpec& spec, DType dtype) {
  return spec.index ? DType::kI32 : spec.dtype.value_or(dtype);
}

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Tolerance Twice(const Tolerance& t) { return {2 * t.relative, 2 * t.absolute, t.why}; }

}  // namespace

Tolerance DefaultTolerance(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return {1e-11, 1e-11, ""};
    case DType::kF32:
      return {1e-5, 1e-5, ""};
    case DType::kF16:
      return {2e-3, 2e-3, ""};
    case DType::kBF16:
      return {1.6e-2, 1.6e-2, ""};
    default:
      throw ArgumentError(StrCat("no tolerance is defined for ", dtype));
  }
}

std::map<DType, Tolerance> NoTolerance() {
  return {{DType::kF64, {}}, {DType::kF32, {}}, {DType::kF16, {}}, {DType::kBF16, {}}};
}

Tolerance ForwardTolerance(const OpCase& c, DType dtype) {
  auto it = c.tolerances.find(dtype);
  return it != c.tolerances.end() ? it->second : DefaultTolerance(dtype);
}

Tolerance GradientTolerance(const OpCase& c, DType dtype) {
  auto it = c.gradient_tolerances.find(dtype);
  return it != c.gradient_tolerances.end() ? it->second : Twice(ForwardTolerance(c, dtype));
}

bool RegisterOpCase(OpCase op_case) {
  Registered().push_back(std::move(op_case));
  return true;
}

const std::vector<OpCase>& AllOpCases() {
  static const std::vector<OpCase> cases = Sorted();
  return cases;
}

bool SelectsSample(const std::string& filter, const OpCase& c, const OpSample& sample) {
  return Contains(c.name, filter) || Contains(StrCat(c.name, "/", sample.name), filter);
}

std::vector<const OpCase*> FindOpCases(const std::string& filter) {
  std::vector<const OpCase*> found;
  std::string names;
  for (const OpCase& c : AllOpCases()) {
    names += StrCat(names.empty() ? "" : ", ", c.name);
    const std::vector<OpSample> samples = c.samples();
    if (Contains(c.name, filter) ||
        std::any_of(samples.begin(), samples.end(),
                    [&](const OpSample& s) { return SelectsSample(filter, c, s); })) {
      found.push_back(&c);
    }
  }
  LS_CHECK(!found.empty(), "--filter=", filter, " matches no op; there are: ", names);
  return found;
}

double RoundTo(DType dtype, double value) {
  switch (dtype) {
    case DType::kF64:
      return value;
    case DType::kF32:
      return static_cast<float>(value);
    case DType::kF16:
      return static_cast<double>(F16(static_cast<float>(value)));
    case DType::kBF16:
      return static_cast<double>(BF16(static_cast<float>(value)));
    case DType::kBool:
      return value != 0 ? 1 : 0;
    default:
      LS_CHECK(!IsFloating(dtype), "RoundTo does not know ", dtype);
      return std::trunc(value);
  }
}

RefTensor InputValues(const OpSample& sample, size_t index, DType dtype) {
  const InputSpec& spec = sample.inputs[index];
  const DType rounded = InputDType(spec, dtype);
  RefTensor values(spec.shape);
  const Philox random(HashName(sample.name));
  for (size_t i = 0; i < values.data.size(); ++i) {
    const Philox::Block block = random(index, i);
    const double unit = (block.v[0] * 0x1p-32 + (block.v[1] >> 11) * 0x1p-53);
    const double value = spec.low + (spec.high - spec.low) * unit;
    values.data[i] = spec.index ? std::floor(value) : RoundTo(rounded, value);
  }
  return values;
}

Tensor InputTensor(const InputSpec& spec, const RefTensor& values, DType dtype, Device device) {
  const Tensor dense =
      Tensor::FromVector(values.data, values.shape).To(InputDType(spec, dtype)).To(device);
  if (!spec.non_contiguous) return dense;
  LS_CHECK(spec.shape.ndim() >= 2,
           "a non-contiguous sample input needs two dimensions or more, not ", spec.shape);
  // First and last dimension swapped, inside a larger tensor: odd strides, an offset, and gaps that
  // show in whatever is computed from them.
  Shape base = spec.shape;
  std::swap(base[0], base[-1]);
  base[-1] += 2;
  const int64_t last = base[-1];
  const double gap = IsFloating(dense.dtype()) ? std::numeric_limits<double>::quiet_NaN() : 0;
  const Tensor strided =
      Tensor::Full(base, gap, dense.dtype(), device).Slice(-1, 1, last - 1).Transpose(0, -1);
  strided.CopyFrom(dense);
  return strided;
}

RefTensor ToRef(const Tensor& x) {
  RefTensor out(x.shape());
  out.data = x.Detach().To(kCpu).To(DType::kF64).ToVector<double>();
  return out;
}

std::function<Results<RefTensor>(RefSpan)> OfEach(std::function<double(double)> f) {
  return [f = std::move(f)](RefSpan in) {
    RefTensor y = in[0];
    for (double& v : y.data) v = f(v);
    return y;
  };
}

RefTensor FromElements(const Shape& shape, const std::function<double(int64_t)>& f) {
  RefTensor y(shape);
  for (size_t i = 0; i < y.data.size(); ++i) y.data[i] = f(static_cast<int64_t>(i));
  return y;
}

double BroadcastAt(const RefTensor& x, const Shape& shape, int64_t index) {
  int64_t offset = 0, step = 1;
  for (int i = shape.ndim() - 1, j = x.shape.ndim() - 1; j >= 0; --i, --j) {
    if (x.shape[j] != 1) offset += index % shape[i] * step;
    step *= x.shape[j];
    index /= shape[i];
  }
  return x.data[offset];
}

}  // namespace lockstep
