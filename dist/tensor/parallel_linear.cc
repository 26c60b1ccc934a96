#include "dist/tensor/parallel_linear.h"

#include <array>

#include "core/autograd/engine.h"
#include "core/autograd/node.h"
#include "core/autograd/saved_tensor.h"
#include "core/meta_memory.h"
#include "kernels/matmul/matmul.h"
#include "kernels/matrix.h"

namespace lockstep::dist {
namespace {

// Whether the bits of a product depend on how many rows or columns are computed with it. Then there
// is a call for each virtual part, so that the shapes are those of any number of ranks.
bool ShapeDecidesBits(const Tensor& x) { return !PlannedDevice(x.device()).is_cpu(); }

// Writes part j of `own` to where PartAlong finds it, or adds it.
void WritePart(const GradTarget& to, int dim, std::span<const int64_t> segments, int64_t own,
               int64_t j, const Tensor& part) {
  const std::array<int64_t, 1> all = {to.tensor.dim(dim)};
  int64_t begin = 0, at = 0;
  for (const int64_t size : segments.empty() ? all : segments) {
    const int64_t n = size / own;
    const Tensor place = to.tensor.Slice(dim, begin + j * n, begin + (j + 1) * n);
    GradTarget{place, to.accumulate}.Write(part.Slice(dim, at, at + n));
    begin += size;
    at += n;
  }
}

// linear_forward, for each part of the outputs by itself if need be.
void ForwardOfOutputs(const TensorRanks& ranks, const LinearForwardArgs& args,
                      std::span<const int64_t> segments) {
  const Stream stream = CurrentStream(args.x.device());
  if (!ShapeDecidesBits(args.x)) return linear_forward(stream, args);
  const int64_t own = ranks.own();
  for (int64_t j = 0; j < own; ++j) {
    LinearForwardArgs part = args;
    part.weight = PartAlong(args.weight, 0, segments, own, j);
    if (args.bias.defined()) part.bias = PartAlong(args.bias, 0, segments, own, j);
    part.y = Tensor::Empty({args.x.dim(0), part.weight.dim(0)}, args.y.dtype(), args.y.device());
    if (args.pre_activation.defined()) part.pre_activation = Tensor::EmptyLike(part.y);
    linear_forward(stream, part);
    WritePart({args.y}, 1, segments, own, j, part.y);
    if (args.pre_activation.defined()) {
      WritePart({args.pre_activation}, 1, segments, own, j, part.pre_activation);
    }
  }
}

// The weight's gradient of linear_backward, for each part of dimension `dim` of the weight: of the
// outputs (0), or the inputs (1).
void WeightGradient(const TensorRanks& ranks, const Tensor& x, const Tensor& dy,
                    const GradTarget& dw, int dim, std::span<const int64_t> segments) {
  const Stream stream = CurrentStream(dy.device());
  if (!ShapeDecidesBits(dy)) {
    return linear_backward(stream, {.x = x, .dy = dy, .dweight = dw});
  }
  const int64_t own = ranks.own();
  for (int64_t j = 0; j < own; ++j) {
    LinearBackwardArgs part{.x = x, .dy = dy};
    Tensor& cut = dim == 0 ? part.dy : part.x;
    cut = PartAlong(cut, 1, segments, own, j);
    part.dweight.tensor =
        Tensor::Empty({part.dy.dim(1), part.x.dim(1)}, AccumulationDType(dy.dtype()), dy.device());
    linear_backward(stream, part);
    WritePart(dw, dim, segments, own, j, part.dweight.tensor);
  }
}

// dx = dy weight, for each part of the inputs.
void GradientOfInputs(const TensorRanks& ranks, const Tensor& dy, const Tensor& weight,
                      const GradTarget& dx) {
  const Stream stream = CurrentStream(dy.device());
  const Tensor to = AsMatrix(dx.tensor);
  if (!ShapeDecidesBits(dy)) {
    return linear_backward(stream, {.weight = weight, .dy = dy, .dx = {to, dx.accumulate}});
  }
  const int64_t own = ranks.own();
  for (int64_t j = 0; j < own; ++j) {
    LinearBackwardArgs part{.weight = PartAlong(weight, 1, {}, own, j), .dy = dy};
    part.dx.tensor = Tensor::Empty({dy.dim(0), part.weight.dim(1)}, dy.dtype(), dy.device());
    linear_backward(stream, part);
    WritePart({to, dx.accumulate}, 1, {}, own, j, part.dx.tensor);
  }
}

class ColumnLinearNode : public Node {
 public:
  ColumnLinearNode(TensorRanksPtr ranks, const Tensor& x, const Tensor& weight,
                   const Tensor& pre_activation, Activation activation,
                   std::vector<int64_t> segments)
      : Node("column_linear"),
        ranks_(std::move(ranks)),
        x_(Save(x, "the input of column_linear")),
        weight_(Save(weight, "the weight of column_linear")),
        pre_activation_(Save(pre_activation, "the pre-activation of column_linear")),
        activation_(activation),
        segments_(std::move(segments)) {}

  void Backward(Gradients& grads) override {
    const Stream stream = CurrentStream(grads[0].device());
    const Tensor dy = GradientBeforeActivation(stream, grads[0]);
    if (grads.needs(1)) {
      WeightGradient(*ranks_, AsMatrix(ranks_->GatherSequence(x_.Unpack())), dy,
                     grads.OpenAnyDType(1), 0, segments_);
    }
    if (grads.needs(2)) linear_backward(stream, {.dy = dy, .dbias = grads.OpenAnyDType(2)});
    if (!grads.needs(0)) return;
    const Tensor weight = weight_.Unpack();
    const int64_t own = ranks_->own();
    const Tensor dx = ranks_->SumOwn([&](int64_t j) {
      return PartialProduct(PartAlong(dy, 1, segments_, own, j),
                            PartAlong(weight, 0, segments_, own, j), /*transpose_b=*/false,
                            ranks_->PartialDType(dy.dtype()));
    });
    const Shape shape = WithLast(grads[0].shape(), weight.dim(1));
    grads.Put(0, ranks_->ScatterSum(dx.View(shape), dy.dtype()));
  }

 private:
  Tensor GradientBeforeActivation(Stream stream, const Tensor& grad) const {
    const bool overwrite = MayOverwrite(grad);
    const Tensor dy = AsMatrix(grad.Contiguous());
    if (activation_ == Activation::kNone) return dy;
    const Tensor d_pre = overwrite ? dy : Tensor::EmptyLike(dy);
    if (overwrite) dy.storage().BumpVersion();
    linear_backward_activation(stream, {activation_, pre_activation_.Unpack(), dy, d_pre});
    return d_pre;
  }

  const TensorRanksPtr ranks_;
  const SavedTensor &x_, &weight_, &pre_activation_;
  const Activation activation_;
  const std::vector<int64_t> segments_;
};

class RowLinearNode : public Node {
 public:
  RowLinearNode(TensorRanksPtr ranks, const Tensor& x, const Tensor& weight)
      : Node("row_linear"),
        ranks_(std::move(ranks)),
        x_(Save(x, "the input of row_linear")),
        weight_(Save(weight, "the weight of row_linear")) {}

  void Backward(Gradients& grads) override {
    const Tensor dy = AsMatrix(ranks_->GatherSequence(grads[0].Contiguous()));
    if (grads.needs(1)) {
      WeightGradient(*ranks_, AsMatrix(x_.Unpack()), dy, grads.OpenAnyDType(1), 1, {});
    }
    if (grads.needs(0)) {
      GradientOfInputs(*ranks_, dy, weight_.Unpack(), grads.Open(0));
    }
  }

 private:
  const TensorRanksPtr ranks_;
  const SavedTensor &x_, &weight_;
};

void Check(const char* op, const Tensor& x, const Tensor& weight) {
  LS_CHECK(x.defined() && x.ndim() == 3 && IsFloating(x.dtype()), op,
           ": x must be a floating tensor [B, T, K], got ", x.Describe());
  LS_CHECK(weight.defined() && weight.ndim() == 2 && weight.dim(1) == x.dim(2) &&
               weight.dtype() == x.dtype() && weight.device() == x.device(),
           op, ": this rank's part of the weight must be ", x.dtype(), "[N, ", x.dim(2), "] on ",
           x.device(), " for x ", x.Describe(), ", got ", weight.Describe());
}

}  // namespace

Tensor PartialProduct(const Tensor& a, const Tensor& b, bool transpose_b, DType dtype) {
  const auto batch = [](const Tensor& x) { return x.View({1, x.dim(0), x.dim(1)}); };
  const Tensor c = Tensor::Empty({a.dim(0), b.dim(transpose_b ? 0 : 1)}, dtype, a.device());
  matmul_slot(CurrentStream(a.device()),
              {.transpose_b = transpose_b, .a = batch(a), .b = batch(b), .c = batch(c)});
  return c;
}

Tensor ColumnProduct(const TensorRanksPtr& ranks, const Tensor& x, const Tensor& weight,
                     const Tensor& bias, Activation activation,
                     const std::vector<int64_t>& segments) {
  Check("column_linear", x, weight);
  const bool record = NeedsGrad({&x, &weight, &bias});
  const Tensor part = x.Detach().Contiguous();
  LinearForwardArgs args;
  args.weight = weight.Detach().Contiguous();
  if (bias.defined()) args.bias = bias.Detach().Contiguous();
  const Tensor input = GradEnabled() ? ranks->GatherSequence(part) : part;
  args.x = AsMatrix(input);
  args.activation = activation;
  Tensor y = Tensor::Empty(WithLast(input.shape(), weight.dim(0)), x.dtype(), x.device());
  args.y = AsMatrix(y);
  if (record && activation != Activation::kNone) args.pre_activation = Tensor::EmptyLike(args.y);
  const auto save = [&] {
    return std::make_shared<ColumnLinearNode>(ranks, weight.requires_grad() ? part : Tensor(),
                                              x.requires_grad() ? args.weight : Tensor(),
                                              args.pre_activation, activation, segments);
  };
  // If possible before the product: a recomputed forward may end there.
  std::shared_ptr<ColumnLinearNode> node;
  if (record && activation == Activation::kNone) node = save();
  ForwardOfOutputs(*ranks, args, segments);
  if (record && !node) node = save();
  Record(node, {&x, &weight, &bias}, {&y});
  ops::OfferActivation(args.pre_activation, y);
  return y;
}

Tensor RowProduct(const TensorRanksPtr& ranks, const Tensor& x, const Tensor& weight) {
  Check("row_linear", x, weight);
  const Tensor input = x.Detach().Contiguous(), matrix = weight.Detach().Contiguous();
  std::shared_ptr<RowLinearNode> node;
  if (NeedsGrad({&x, &weight})) {
    node = std::make_shared<RowLinearNode>(ranks, weight.requires_grad() ? input : Tensor(),
                                           x.requires_grad() ? matrix : Tensor());
  }
  const int64_t own = ranks->own();
  const Tensor sum =
      ranks
          ->SumOwn([&](int64_t j) {
            return PartialProduct(PartAlong(AsMatrix(input), 1, {}, own, j),
                                  PartAlong(matrix, 1, {}, own, j), /*transpose_b=*/true,
                                  ranks->PartialDType(x.dtype()));
          })
          .View(WithLast(x.shape(), weight.dim(0)));
  Tensor y = GradEnabled() ? ranks->ScatterSum(sum, x.dtype()) : ranks->Sum(sum, x.dtype());
  Record(node, {&x, &weight}, {&y});
  return y;
}

ColumnLinear::ColumnLinear(const nn::Linear& replaced, std::vector<int64_t> segments,
                           TensorRanksPtr ranks)
    : ranks_(std::move(ranks)),
      segments_(std::move(segments)),
      activation_(replaced.activation()),
      weight_(replaced.weight()),
      bias_(replaced.bias()) {
  for (int64_t& size : segments_) size /= ranks_->size();
  ShareParameter("weight", weight_);
  if (bias_) ShareParameter("bias", bias_);
}

Tensor ColumnLinear::Forward(const Tensor& x) {
  return ColumnProduct(ranks_, x, *weight_, bias_ ? bias_->value() : Tensor(), activation_,
                       segments_);
}

RowLinear::RowLinear(const nn::BranchLinear& replaced, TensorRanksPtr ranks)
    : ranks_(std::move(ranks)), weight_(replaced.weight()), bias_(replaced.bias()) {
  ShareParameter("weight", weight_);
  if (bias_) ShareParameter("bias", bias_);
}

ops::Branch RowLinear::Forward(ops::Branch x) {
  ops::Branch y = RowProduct(ranks_, ops::Complete(x), *weight_);
  if (bias_) y.bias = nn::OpenBias(*bias_);
  return y;
}

QuantizedColumnLinear::QuantizedColumnLinear(const nn::QuantizedLinear& replaced,
                                             std::vector<int64_t> segments, TensorRanksPtr ranks)
    : QuantizedWeight(replaced, {0, ranks->size(), segments, ranks->own()}),
      ranks_(std::move(ranks)),
      segments_(std::move(segments)),
      activation_(replaced.activation()) {
  for (int64_t& size : segments_) size /= ranks_->size();
}

Tensor QuantizedColumnLinear::Forward(const Tensor& x) {
  return nn::WithDequantized(*this, x.dtype(), [&](const Tensor& weight) {
    return ByChunks(x, [&](const Tensor& chunk) {
      return ColumnProduct(ranks_, chunk, weight, bias() ? bias()->value() : Tensor(), activation_,
                           segments_);
    });
  });
}

QuantizedRowLinear::QuantizedRowLinear(const nn::QuantizedBranchLinear& replaced,
                                       TensorRanksPtr ranks)
    : QuantizedWeight(replaced, {1, ranks->size(), {}, ranks->own()}), ranks_(std::move(ranks)) {}

ops::Branch QuantizedRowLinear::Forward(ops::Branch branch) {
  const Tensor x = ops::Complete(branch);
  ops::Branch y = nn::WithDequantized(*this, x.dtype(), [&](const Tensor& weight) {
    return ByChunks(x, [&](const Tensor& chunk) { return RowProduct(ranks_, chunk, weight); });
  });
  if (bias()) y.bias = nn::OpenBias(*bias());
  return y;
}

}  // namespace lockstep::dist
