#include "kernels/rotary_embedding/rotary_embedding.h"

#include <cmath>
#include <numbers>

#include "core/autograd/engine.h"
#include "core/autograd/node.h"
#include "core/math.h"
#include "kernels/checks.h"

namespace lockstep {
namespace {

void Check(int64_t head_size, const RotaryOptions& o) {
  LS_CHECK(head_size > 0 && head_size % 2 == 0,
           "rotary_embedding turns pairs: the size of a head must be even, got ", head_size);
  LS_CHECK(o.theta > 0 && std::isfinite(o.theta), "rotary_embedding: theta must be positive, got ",
           o.theta);
  if (o.scaling == RotaryScaling::kNone) return;
  LS_CHECK(o.factor > 0 && std::isfinite(o.factor),
           "rotary_embedding: the scaling factor must be positive, got ", o.factor);
  if (o.scaling == RotaryScaling::kLinear) return;
  LS_CHECK(o.low > 0 && o.low < o.high && std::isfinite(o.high),
           "rotary_embedding: the scaling's low and high must be positive and low less than high, "
           "got ",
           o.low, " and ", o.high);
  LS_CHECK(o.original_length > 0, "rotary_embedding: the original length must be positive, got ",
           o.original_length);
}

double Scale(double frequency, const RotaryOptions& o) {
  switch (o.scaling) {
    case RotaryScaling::kNone:
      return frequency;
    case RotaryScaling::kLinear:
      return frequency / o.factor;
    case RotaryScaling::kLlama3:
      break;
  }
  const double periods =
      static_cast<double>(o.original_length) * frequency / (2 * std::numbers::pi);
  if (periods < o.low) return frequency / o.factor;
  if (periods > o.high) return frequency;
  const double kept = (periods - o.low) / (o.high - o.low);
  return (1 - kept) * frequency / o.factor + kept * frequency;
}

}  // namespace

std::vector<double> RotaryFrequencies(int64_t head_size, const RotaryOptions& options) {
  Check(head_size, options);
  std::vector<double> out(static_cast<size_t>(head_size / 2));
  for (size_t i = 0; i < out.size(); ++i) {
    const double exponent = -2 * static_cast<double>(i) / static_cast<double>(head_size);
    out[i] = Scale(math::Pow(options.theta, exponent), options);
  }
  return out;
}

namespace ops {
namespace {

// Where the heads of x go: to x itself, if nothing else can see it any more.
Tensor Destination(const Tensor& x, bool overwrite) {
  if (!overwrite) return Tensor::EmptyLike(x);
  x.storage().BumpVersion();
  return x.Detach();
}

// Handed over, not opened: the bits do not depend on what else holds the gradient.
void Backward(int64_t rotated, int64_t first_position, const SavedTensors& saved,
              Gradients& grads) {
  const bool overwrite = MayOverwrite(grads[0]);
  const Tensor& dy = grads[0];
  const Tensor dx = Destination(dy, overwrite);
  RotaryEmbeddingArgs args;
  args.table = saved[0];
  const Shape heads{dy.dim(0), dy.dim(1), dy.numel() == 0 ? 0 : -1, args.table.dim(1)};
  args.x = dy.Detach().View(heads);
  args.rotated = rotated;
  args.first_position = first_position;
  args.positions = saved[1];
  args.backwards = true;
  args.y = dx.View(heads);
  rotary_embedding(CurrentStream(dy.device()), args);
  grads.Put(0, dx);
}

}  // namespace

Tensor RotaryTable(int64_t positions, int64_t head_size, const RotaryOptions& options, DType dtype,
                   Device device) {
  LS_CHECK(positions >= 0, "rotary_embedding: the number of positions must not be negative, got ",
           positions);
  const std::vector<double> frequencies = RotaryFrequencies(head_size, options);
  if (device.is_meta()) return Tensor::Empty({positions, head_size}, dtype, device);
  const size_t half = frequencies.size();
  std::vector<double> values(static_cast<size_t>(positions) * 2 * half);
  for (size_t p = 0; p < static_cast<size_t>(positions); ++p) {
    for (size_t i = 0; i < half; ++i) {
      const double turned = static_cast<double>(p) * frequencies[i];
      const double angle = options.reverse ? -turned : turned;
      values[p * 2 * half + i] = math::Cos(angle);
      values[p * 2 * half + half + i] = math::Sin(angle);
    }
  }
  return Tensor::FromVector(values, {positions, head_size}).To(dtype).To(device);
}

Tensor RotaryEmbedding(Tensor x, const Tensor& table, int64_t rotated, int64_t first_position,
                       const Tensor& positions) {
  const DType wide = x.defined() ? AccumulationDType(x.dtype()) : DType::kF32;
  LS_CHECK(x.defined() && IsFloating(x.dtype()) && (x.ndim() == 3 || x.ndim() == 4),
           "rotary_embedding: x must be a floating [B, T, N * D] or [B, T, N, D], got ",
           x.Describe());
  LS_CHECK(table.defined() && table.ndim() == 2 && table.dim(1) > 0 && table.dim(1) % 2 == 0 &&
               table.dtype() == wide && table.device() == x.device(),
           "rotary_embedding: the table must be ", wide, "[positions, D] on ", x.device(),
           " with an even D, as RotaryTable makes it, got ", table.Describe());
  const int64_t d = table.dim(1);
  LS_CHECK(x.ndim() == 4 ? x.dim(3) == d : x.dim(2) % d == 0,
           "rotary_embedding: x must be [B, T, N * ", d, "] or [B, T, N, ", d,
           "] for this table, got ", x.Describe());
  const int64_t heads = x.ndim() == 4 ? x.dim(2) : x.dim(2) / d;
  LS_CHECK(rotated >= 0 && rotated <= heads, "rotary_embedding: cannot turn ", rotated, " of ",
           heads, " heads");
  LS_CHECK(table.dim(0) > 0 || x.numel() == 0, "rotary_embedding: the table has no positions");
  CheckPositions("rotary_embedding", positions, x.dim(0), x.dim(1), x.device(), table.dim(0));
  LS_CHECK(
      positions.defined() || (first_position >= 0 && first_position <= table.dim(0) - x.dim(1)),
      "rotary_embedding: positions ", first_position, " to ", first_position + x.dim(1),
      " do not fit a table of ", table.dim(0));
  const bool overwrite = x.storage().unique() && x.is_contiguous();
  const Tensor input = x.Detach().Contiguous();
  Tensor y = Destination(input, overwrite);
  const Shape shape{x.dim(0), x.dim(1), heads, d};
  RotaryEmbeddingArgs args;
  args.x = input.View(shape);
  args.table = table.Detach().Contiguous();
  args.rotated = rotated;
  args.first_position = first_position;
  if (positions.defined()) args.positions = positions.Contiguous();
  args.y = y.View(shape);
  rotary_embedding(CurrentStream(x.device()), args);
  RecordOp("rotary_embedding", {&x}, {&y},
           {{args.table, "the table of rotary_embedding"},
            {args.positions, "the positions of rotary_embedding"}},
           [rotated, first_position](const SavedTensors& saved, Gradients& grads) {
             Backward(rotated, first_position, saved, grads);
           });
  return y;
}

}  // namespace ops
}  // namespace lockstep
