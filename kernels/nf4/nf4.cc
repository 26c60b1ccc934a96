#include "kernels/nf4/nf4.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/autograd/engine.h"
#include "core/autograd/node.h"
#include "core/math.h"
#include "core/round_up.h"
#include "kernels/matrix.h"
#include "kernels/nf4/nf4_quantize_cpu.h"

namespace lockstep {
Nf4Matrix Nf4Matrix::Empty(const Shape& shape, bool double_quantized, Device device) {
  LS_CHECK(shape.ndim() == 2, "nf4: a quantised weight must be a matrix [rows, columns], got ",
           shape);
  Nf4Matrix m{.shape = shape, .double_quantized = double_quantized};
  m.data = Tensor::Empty({m.layout().bytes}, DType::kU8, device);
  return m;
}

Nf4Matrix::Layout Nf4Matrix::layout() const {
  constexpr int64_t kF32 = sizeof(float), kAlignment = 16;  // of codes, for wide accesses
  Layout l{.blocks = DivideUp(shape.numel(), kNf4Block)};
  int64_t end = 0;
  if (double_quantized) {
    l.groups = DivideUp(l.blocks, kNf4Group);
    l.offset = kF32 * 256;
    l.group_scales = l.offset + kF32;
    end = l.group_scales + kF32 * l.groups;
  } else {
    end = kF32 * l.blocks;
  }
  l.codes = RoundUp(end, kAlignment);
  l.bytes = l.codes + DivideUp(shape.numel(), 2);
  if (double_quantized) {
    l.scales = l.bytes;
    l.bytes += l.blocks;
  }
  return l;
}

const std::array<float, 256>& DynamicMap() {
  static const std::array<float, 256> map = [] {
    constexpr int kExponents = 7;
    std::array<float, 256> m{};
    size_t count = 0;
    for (int i = 0; i < kExponents; ++i) {
      // The midpoints of 2^i equal parts of [0.1, 1], whose ends are counted from the nearer one.
      const int parts = 1 << i;
      const float step = (1.0f - 0.1f) / static_cast<float>(parts);
      const auto end = [=](int j) {
        return j < (parts + 1) / 2 ? std::fma(step, static_cast<float>(j), 0.1f)
                                   : std::fma(-step, static_cast<float>(parts - j), 1.0f);
      };
      const auto power = static_cast<float>(math::Pow(10.0, i - (kExponents - 1)));
      for (int j = 0; j < parts; ++j) {
        const float value = power * ((end(j) + end(j + 1)) / 2);
        m[count++] = value;
        m[count++] = -value;
      }
    }
    m[count++] = 0;
    m[count++] = 1;
    LS_INVARIANT(count == m.size());
    std::ranges::sort(m);
    return m;
  }();
  return map;
}

namespace ops {
namespace {

int64_t RowsOf(std::span<const Nf4Matrix> weight) {
  int64_t rows = 0;
  for (const Nf4Matrix& m : weight) rows += m.rows();
  return rows;
}

// The length of a panel: `size` rows or columns of `bytes` each are cut into equal panels, in
// multiples of 64.
int64_t PanelOf(int64_t size, int64_t bytes) {
  constexpr int64_t kUnit = 64;
  if (size * bytes <= kNf4PanelBytes) return std::max<int64_t>(size, 1);
  const int64_t most = std::max<int64_t>(kNf4PanelBytes / (bytes * kUnit), 1) * kUnit;
  return RoundUp(DivideUp(size, DivideUp(size, most)), kUnit);
}

// out [m, n] = the weight from (row, column) on.
void DequantizePanel(Stream stream, std::span<const Nf4Matrix> weight, int64_t row, int64_t column,
                     const Tensor& out) {
  int64_t first = 0;  // row of the weight that is row 0 of the matrix
  for (const Nf4Matrix& m : weight) {
    const int64_t begin = std::max(row, first), end = std::min(row + out.dim(0), first + m.rows());
    if (begin < end) {
      nf4_dequantize(stream, {m, begin - first, column, out.Slice(0, begin - row, end - row)});
    }
    first += m.rows();
  }
}

class Nf4LinearNode : public Node {
 public:
  // Only the shape of x is needed.
  explicit Nf4LinearNode(std::span<const Nf4Matrix> weight)
      : Node("nf4"), weight_(weight.begin(), weight.end()) {
    for (Nf4Matrix& m : weight_) {
      Save(std::exchange(m.data, Tensor()), "the 4-bit weight of nf4");
    }
  }

  void Backward(Gradients& grads) override {
    const Stream stream = CurrentStream(grads[0].device());
    const Tensor dy = AsMatrix(grads[0]);
    if (grads.needs(0)) BackwardX(stream, dy, grads);
    if (grads.needs(1)) linear_backward(stream, {.dy = dy, .dbias = grads.OpenAnyDType(1)});
  }

  bool SplitsByInput() const override { return true; }

 private:
  // dx = dy weight, a panel of columns at a time.
  void BackwardX(Stream stream, const Tensor& dy, Gradients& grads) {
    for (size_t i = 0; i < weight_.size(); ++i) weight_[i].data = saved()[i];
    const Shape& shape = grads.spec(0).shape;
    const int64_t rows = dy.dim(1), columns = shape[-1];
    const int64_t panel = PanelOf(columns, rows * SizeOf(dy.dtype()));
    LinearBackwardArgs args{.dy = dy};
    if (panel >= columns) {
      const auto [dx, accumulate] = grads.Open(0);
      args.weight = Tensor::Empty({rows, columns}, dy.dtype(), dy.device());
      DequantizePanel(stream, weight_, 0, 0, args.weight);
      args.dx = {AsMatrix(dx), accumulate};
      linear_backward(stream, args);
    } else {
      Tensor dx = Tensor::Empty(shape, dy.dtype(), dy.device());
      for (int64_t at = 0; at < columns; at += panel) {
        const int64_t n = std::min(panel, columns - at);
        args.weight = Tensor::Empty({rows, n}, dy.dtype(), dy.device());
        DequantizePanel(stream, weight_, 0, at, args.weight);
        args.dx.tensor = Tensor::Empty({dy.dim(0), n}, dy.dtype(), dy.device());
        linear_backward(stream, args);
        AsMatrix(dx).Slice(1, at, at + n).CopyFrom(args.dx.tensor);
        args.weight = args.dx.tensor = Tensor();
      }
      grads.Put(0, std::move(dx));
    }
    for (Nf4Matrix& m : weight_) m.data = Tensor();
  }

  std::vector<Nf4Matrix> weight_;  // whose data is saved
};

void CheckMatrix(const Nf4Matrix& m) {
  LS_CHECK(m.shape.ndim() == 2 && m.data.defined(),
           "nf4: the weight has no values yet: quantise one, or load it");
  LS_CHECK(m.data.dtype() == DType::kU8 && m.data.shape() == Shape({m.layout().bytes}) &&
               m.data.is_contiguous(),
           "nf4: a weight of shape ", m.shape, " has u8[", m.layout().bytes, "] of data, got ",
           m.data.Describe());
}

void Check(const Tensor& x, std::span<const Nf4Matrix> weight, const Tensor& bias) {
  LS_CHECK(x.defined() && IsFloating(x.dtype()) && x.ndim() >= 1,
           "nf4: x must be a floating tensor [..., K], got ", x.Describe());
  LS_CHECK(!weight.empty(), "nf4: the weight must have at least one matrix");
  for (const Nf4Matrix& m : weight) {
    CheckMatrix(m);
    LS_CHECK(m.columns() == x.dim(-1), "nf4: each matrix of the weight must be [N, ", x.dim(-1),
             "] (out, in) for x of shape ", x.shape(), ", got ", m.shape);
    LS_CHECK(m.data.device() == x.device(), "nf4: x and weight must be on the same device, got ",
             x.Describe(), " and ", m.data.Describe());
  }
  if (!bias.defined()) return;
  LS_CHECK(bias.shape() == Shape({RowsOf(weight)}), "nf4: bias must be [", RowsOf(weight),
           "] for a weight of that many rows, got ", bias.Describe());
  LS_CHECK(bias.dtype() == x.dtype() && bias.device() == x.device(),
           "nf4: x and bias must have the same dtype and device, got ", x.Describe(), " and ",
           bias.Describe(), ": cast one of them");
}

}  // namespace

Nf4Matrix Nf4Quantize(const Tensor& weight, bool double_quantized) {
  LS_CHECK(weight.defined() && IsFloating(weight.dtype()) && weight.ndim() == 2,
           "nf4: what is quantised must be a floating matrix [rows, columns], got ",
           weight.Describe());
  if (weight.device().is_meta()) {
    return Nf4Matrix::Empty(weight.shape(), double_quantized, kMeta);
  }
  Nf4Matrix m = Nf4Matrix::Empty(weight.shape(), double_quantized);
  cpu::Nf4QuantizeInto(weight.Detach().To(kCpu).Contiguous(), m);
  m.data = m.data.To(weight.device());
  return m;
}

Tensor Nf4Dequantize(const Nf4Matrix& matrix, DType dtype) {
  CheckMatrix(matrix);
  LS_CHECK(IsFloating(dtype), "nf4: a weight is dequantised to a floating dtype, not to ", dtype);
  const Tensor out = Tensor::Empty(matrix.shape, dtype, matrix.data.device());
  nf4_dequantize(CurrentStream(out.device()), {matrix, 0, 0, out});
  return out;
}

Tensor Nf4Linear(const Tensor& x, std::span<const Nf4Matrix> weight, const Tensor& bias) {
  Check(x, weight, bias);
  const Stream stream = CurrentStream(x.device());
  const int64_t rows = RowsOf(weight), columns = x.dim(-1);
  Tensor y = Tensor::Empty(WithLast(x.shape(), rows), x.dtype(), x.device());
  LinearForwardArgs args;
  args.x = AsMatrix(x.Detach().Contiguous());
  const Tensor all = AsMatrix(y), whole_bias = bias.defined() ? bias.Detach().Contiguous() : bias;
  const int64_t panel = PanelOf(rows, columns * SizeOf(x.dtype()));
  for (int64_t at = 0; at < rows; at += panel) {
    const int64_t n = std::min(panel, rows - at);
    args.weight = Tensor::Empty({n, columns}, x.dtype(), x.device());
    DequantizePanel(stream, weight, at, 0, args.weight);
    if (bias.defined()) args.bias = whole_bias.Slice(0, at, at + n);
    args.y = n == rows ? all : Tensor::Empty({all.dim(0), n}, x.dtype(), x.device());
    linear_forward(stream, args);
    if (n < rows) all.Slice(1, at, at + n).CopyFrom(args.y);
    args.weight = args.y = Tensor();  // before the next panel is allocated
  }
  Record(NeedsGrad({&x, &bias}) ? std::make_shared<Nf4LinearNode>(weight) : nullptr, {&x, &bias},
         {&y});
  return y;
}

}  // namespace ops
}  // namespace lockstep
