// Tensors as text.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ostream>

#include "core/tensor.h"

namespace lockstep {
namespace {

constexpr int64_t kWhole = 1000;  // elements of a tensor that is shown as a whole
constexpr int64_t kEdge = 3;      // else along each dimension, at either end
constexpr int kDigits = 4;
constexpr size_t kWidth = 75;  // of a line

std::string Printf(const char* format, int digits, double value) {
  if (std::isnan(value)) return "nan";  // without the sign that printf shows
  char text[400];                       // the largest f64 has 309 digits
  std::snprintf(text, sizeof(text), format, digits, value);
  return text;
}

// Copies what is shown of `from` to `to`, whose longer dimensions are cut to both their ends.
void CopyEnds(const Tensor& from, const Tensor& to, int dim = 0) {
  if (dim == from.ndim()) return to.CopyFrom(from);
  if (from.dim(dim) == to.dim(dim)) return CopyEnds(from, to, dim + 1);
  const int64_t n = from.dim(dim);
  CopyEnds(from.Slice(dim, 0, kEdge), to.Slice(dim, 0, kEdge), dim + 1);
  CopyEnds(from.Slice(dim, n - kEdge, n), to.Slice(dim, kEdge, 2 * kEdge), dim + 1);
}

// Digits after the point that `text`, which has one, does not need are taken away from its end.
void TrimZeros(std::string& text) {
  while (text.back() == '0') text.pop_back();
}

size_t Decimals(const std::string& text) { return text.size() - 1 - text.find('.'); }

std::vector<std::string> FixedPoint(const std::vector<double>& values) {
  std::vector<std::string> out;
  size_t decimals = 0;
  for (const double v : values) {
    std::string& text = out.emplace_back(Printf("%#.*f", kDigits, v));
    if (!std::isfinite(v)) continue;
    TrimZeros(text);
    decimals = std::max(decimals, Decimals(text));
  }
  for (size_t i = 0; i < out.size(); ++i) {
    if (std::isfinite(values[i])) out[i].append(decimals - Decimals(out[i]), ' ');
  }
  return out;
}

std::vector<std::string> Scientific(const std::vector<double>& values) {
  int digits = 0;
  for (const double v : values) {
    if (!std::isfinite(v)) continue;
    std::string text = Printf("%#.*e", kDigits, v);
    text.resize(text.find('e'));
    TrimZeros(text);
    digits = std::max(digits, static_cast<int>(Decimals(text)));
  }
  std::vector<std::string> out;
  for (const double v : values) out.push_back(Printf("%#.*e", digits, v));
  return out;
}

std::vector<std::string> Floats(const std::vector<double>& values) {
  double least = INFINITY, largest = 0;
  for (const double v : values) {
    if (!std::isfinite(v) || v == 0) continue;
    least = std::min(least, std::fabs(v));
    largest = std::max(largest, std::fabs(v));
  }
  const bool extreme = largest >= 1e8 || least < 1e-4 || largest > 1000 * least;
  return largest > 0 && extreme ? Scientific(values) : FixedPoint(values);
}

// The texts have equal width.
std::vector<std::string> Texts(const Tensor& shown) {
  std::vector<std::string> out;
  if (IsFloating(shown.dtype())) {
    out = Floats(shown.To(DType::kF64).ToVector<double>());
  } else {
    for (const int64_t v : shown.To(DType::kI64).ToVector<int64_t>()) {
      out.push_back(shown.dtype() != DType::kBool ? std::to_string(v) : v != 0 ? "true" : "false");
    }
  }
  size_t width = 0;
  for (const std::string& text : out) width = std::max(width, text.size());
  for (std::string& text : out) text.insert(0, width - text.size(), ' ');
  return out;
}

class Writer {
 public:
  Writer(const Shape& shape, const Shape& shown, const std::vector<std::string>& texts)
      : shape_(shape), shown_(shown), next_(texts.begin()) {
    Write(0);
  }
  const std::string& text() const { return out_; }

 private:
  void Write(int dim) {
    if (dim == shape_.ndim()) {
      Append(*next_++);
      return;
    }
    out_ += '[';
    for (int64_t i = 0; i < shown_[dim]; ++i) {
      if (i > 0) Separate(dim);
      if (i == kEdge && shown_[dim] < shape_[dim]) {
        Append("...");
        Separate(dim);
      }
      Write(dim + 1);
    }
    out_ += ']';
  }

  // Numbers stand side by side, rows below each other, matrices with an empty line between them.
  void Separate(int dim) {
    const int below = shape_.ndim() - 1 - dim;
    out_ += below == 0 ? ", " : "," + std::string(static_cast<size_t>(below), '\n');
    if (below > 0) out_.append(static_cast<size_t>(dim) + 1, ' ');
  }

  void Append(const std::string& text) {
    const size_t begin = out_.rfind('\n') + 1;  // 0 in the first line
    if (out_.ends_with(", ") && out_.size() - begin + text.size() + 1 > kWidth) {
      out_.back() = '\n';
      out_.append(static_cast<size_t>(shape_.ndim()), ' ');
    }
    out_ += text;
  }

  const Shape& shape_;
  const Shape& shown_;
  std::vector<std::string>::const_iterator next_;
  std::string out_;
};

}  // namespace

std::string ToString(const Tensor& x) {
  if (!x.defined() || x.device().is_meta()) return x.Describe();
  if (x.numel() == 0) return "[] " + x.Describe();
  Shape shown = x.shape();
  for (int i = 0; i < x.ndim() && x.numel() > kWhole; ++i) {
    shown[i] = std::min(shown[i], 2 * kEdge);
  }
  Tensor some = x.Detach();
  if (!(shown == x.shape())) {
    some = Tensor::Empty(shown, x.dtype(), x.device());
    CopyEnds(x.Detach(), some);
  }
  const std::string text = Writer(x.shape(), shown, Texts(some.To(kCpu))).text();
  return text + " " + x.Describe();
}

std::ostream& operator<<(std::ostream& out, const Tensor& x) { return out << ToString(x); }

}  // namespace lockstep
