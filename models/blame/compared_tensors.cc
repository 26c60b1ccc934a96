#include "models/blame/compared_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/io/safetensors.h"

namespace lockstep::models {
namespace {

std::string IndexOf(const Shape& shape, int64_t element) {
  std::vector<int64_t> index(static_cast<size_t>(shape.ndim()));
  for (int i = shape.ndim(); i-- > 0; element /= shape[i]) {
    index[static_cast<size_t>(i)] = element % shape[i];
  }
  std::string text;
  for (const int64_t i : index) text += StrCat(text.empty() ? "" : ", ", i);
  return "[" + text + "]";
}

// Names in the order in which a step computes them: tokens, weights, activations, gradients; layer
// 10 after layer 2, and gradients from the last layer on.
bool IsComputedBefore(const std::string& a, const std::string& b) {
  const auto stage = [](const std::string& name) {
    int stage = 0;
    for (const char* kind : {"data.", "weights.", "activations."}) {
      if (name.starts_with(kind)) return stage;
      ++stage;
    }
    return stage;
  };
  // Of two numbers the longer is the larger.
  const auto key = [](const std::string& name) {
    std::string padded, digits;
    for (const char c : name + ".") {
      if (c >= '0' && c <= '9') {
        digits += c;
        continue;
      }
      if (!digits.empty()) padded += std::string(20 - std::min<size_t>(20, digits.size()), '0');
      padded += std::exchange(digits, "") + c;
    }
    return padded;
  };
  if (stage(a) != stage(b)) return stage(a) < stage(b);
  return stage(a) == 3 ? key(b) < key(a) : key(a) < key(b);
}

}  // namespace

std::optional<ComparedTensors> CompareTensors(const Tensor& a, const Tensor& b) {
  LS_CHECK(a.dtype() == b.dtype() && a.shape() == b.shape(), "CompareTensors: ", a.Describe(),
           " and ", b.Describe());
  const int64_t size = SizeOf(a.dtype());
  const auto* const bytes_a = static_cast<const std::byte*>(a.raw_data());
  const auto* const bytes_b = static_cast<const std::byte*>(b.raw_data());
  const auto of_a = a.To(DType::kF64).ToVector<double>(),
             of_b = b.To(DType::kF64).ToVector<double>();
  ComparedTensors result;
  for (int64_t i = 0; i < a.numel(); ++i) {
    const double x = of_a[static_cast<size_t>(i)], y = of_b[static_cast<size_t>(i)];
    result.scale = std::max(result.scale, std::abs(x));
    if (std::memcmp(bytes_a + i * size, bytes_b + i * size, static_cast<size_t>(size)) == 0)
      continue;
    if (result.differing++ == 0) {
      result.first = i;
      result.index = IndexOf(a.shape(), i);
      result.a = x;
      result.b = y;
    }
    // A NaN on one side is as far as can be.
    const double distance = std::isnan(x - y) ? INFINITY : std::abs(x - y);
    result.largest = std::max(result.largest, distance);
  }
  return result.differing == 0 ? std::nullopt : std::optional(result);
}

std::string CompareFiles(const std::string& a, const std::string& b, double tolerance,
                         bool* equal) {
  const auto file_a = SafetensorsFile::Open(a), file_b = SafetensorsFile::Open(b);
  std::vector<const SafetensorsEntry*> entries;
  for (const SafetensorsEntry& e : file_a.entries()) entries.push_back(&e);
  std::ranges::sort(entries, [](const SafetensorsEntry* x, const SafetensorsEntry* y) {
    return IsComputedBefore(x->name, y->name);
  });
  std::string text;
  int64_t compared = 0;
  double worst = 0;
  *equal = true;
  for (const SafetensorsEntry* const e : entries) {
    const SafetensorsEntry* const other = file_b.Find(e->name);
    if (other == nullptr) continue;
    ++compared;
    const Tensor x = e->ToTensor().To(DType::kF64), y = other->ToTensor().To(DType::kF64);
    if (!(x.shape() == y.shape())) {
      *equal = false;
      text += StrCat(e->name, " has the shape ", x.shape(), " in A and ", y.shape(), " in B\n");
      continue;
    }
    const auto difference = CompareTensors(x, y);
    if (!difference) continue;
    const double relative = difference->largest / std::max(difference->scale, 1e-30);
    worst = std::max(worst, relative);
    if (relative <= tolerance) continue;
    if (*equal) text += "the first to differ by more than the tolerance:\n";
    *equal = false;
    text += fmt::format("  {}: by {:.3g} of its largest element; first at {}: A {:.9g}, B {:.9g}\n",
                        e->name, relative, difference->index, difference->a, difference->b);
  }
  if (compared == 0) throw InputError(StrCat(a, " and ", b, " have no tensor's name in common"));
  return text + fmt::format(
                    "{} tensors compared; the largest difference is {:.3g} of a tensor's "
                    "largest element, {:.3g} is allowed\n",
                    compared, worst, tolerance);
}

}  // namespace lockstep::models
