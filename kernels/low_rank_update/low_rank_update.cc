#include "kernels/low_rank_update/low_rank_update.h"

#include "core/autograd/node.h"
#include "core/autograd/saved_tensor.h"
#include "kernels/matmul/matmul.h"
#include "kernels/matrix.h"
#include "kernels/scale/scale.h"

namespace lockstep::ops {
namespace {

// f(block, its place in the matrix [N, K]) for those that add something.
template <class F>
void ForEachBlock(const std::vector<LowRankBlock>& blocks, const Tensor& matrix, const F& f) {
  int64_t row = 0, column = 0;
  for (const LowRankBlock& block : blocks) {
    if (block.b.defined()) {
      const int64_t rank = block.b.dim(1);
      f(block, matrix.Slice(0, row, row + block.columns).Slice(1, column, column + rank));
      column += rank;
    }
    row += block.columns;
  }
}

// scale b of each block, along the diagonal.
Tensor Diagonal(const std::vector<LowRankBlock>& blocks, int64_t n, const Tensor& x) {
  const Tensor matrix = Tensor::Zeros({n, x.dim(-1)}, x.dtype(), x.device());
  ForEachBlock(blocks, matrix, [](const LowRankBlock& block, const Tensor& place) {
    place.CopyFrom(Scale(block.b.Detach(), block.scale));
  });
  return matrix;
}

class LowRankUpdateNode : public Node {
 public:
  LowRankUpdateNode(const Tensor& x, const Tensor& matrix, const std::vector<LowRankBlock>& blocks)
      : Node("low_rank_update"),
        x_(Save(x, "the input of low_rank_update")),
        matrix_(Save(matrix, "the matrix of low_rank_update")),
        blocks_(blocks) {
    for (LowRankBlock& block : blocks_) {
      if (block.b.defined()) block.b = Tensor::Empty(block.b.shape(), block.b.dtype(), kMeta);
    }
  }

  void Backward(Gradients& grads) override {
    const Tensor dy = AsMatrix(grads[0]);
    const Stream stream = CurrentStream(dy.device());
    if (grads.needs(0)) grads.Put(0, grads[0]);
    const Tensor matrix = matrix_.Unpack();
    if (const auto [dx, accumulate] = grads.Open(1); dx.defined()) {
      matmul_slot(stream, {.a = dy, .b = matrix, .c = AsMatrix(dx), .accumulate = accumulate});
    }
    bool any = false;
    for (size_t i = 2; i < grads.inputs(); ++i) any |= grads.needs(i);
    if (!any) return;
    // Transposed, so that of dy and x only the small one is: x^T dy.
    const Tensor product =
        Tensor::Empty({matrix.dim(1), matrix.dim(0)}, AccumulationDType(dy.dtype()), dy.device());
    matmul_slot(stream, {.transpose_a = true, .a = AsMatrix(x_.Unpack()), .b = dy, .c = product});
    size_t input = 2;
    ForEachBlock(blocks_, product.Transpose(0, 1),
                 [&](const LowRankBlock& block, const Tensor& place) {
                   const GradTarget db = grads.OpenAnyDType(input++);
                   if (db.tensor.defined()) db.Write(Scale(place, block.scale));
                 });
  }
  bool SplitsByInput() const override { return true; }

 private:
  const SavedTensor &x_, &matrix_;
  std::vector<LowRankBlock> blocks_;  // without memory
};

void Check(const Tensor& y, const Tensor& x, const std::vector<LowRankBlock>& blocks) {
  LS_CHECK(y.defined() && IsFloating(y.dtype()) && y.ndim() >= 1,
           "low_rank_update: y must be a floating tensor [..., N], got ", y.Describe());
  Shape rows = y.shape();
  if (x.defined() && x.ndim() == y.ndim()) rows[-1] = x.dim(-1);
  LS_CHECK(x.defined() && x.shape() == rows,
           "low_rank_update: x must be [..., K] with the rows of y, ", y.Describe(), ", got ",
           x.Describe());
  LS_CHECK(x.dtype() == y.dtype() && x.device() == y.device(),
           "low_rank_update: all must have the same dtype and device, got ", y.Describe(), " and ",
           x.Describe(), ": cast one of them");
  int64_t columns = 0, ranks = 0;
  for (const LowRankBlock& block : blocks) {
    columns += block.columns;
    if (!block.b.defined()) continue;
    LS_CHECK(block.b.ndim() == 2 && block.b.dim(0) == block.columns &&
                 block.b.dtype() == y.dtype() && block.b.device() == y.device(),
             "low_rank_update: b must be ", y.dtype(), "[", block.columns, ", rank] on ",
             y.device(), " for a block of ", block.columns, " columns, got ", block.b.Describe());
    ranks += block.b.dim(1);
  }
  LS_CHECK(columns == y.dim(-1) && ranks == x.dim(-1), "low_rank_update: the blocks have ", columns,
           " columns and ranks of ", ranks, " together, but y is ", y.Describe(), " and x is ",
           x.Describe());
}

}  // namespace

Tensor LowRankUpdate(Tensor y, const Tensor& x, const std::vector<LowRankBlock>& blocks) {
  Check(y, x, blocks);
  const Tensor input = x.Detach().Contiguous(), matrix = Diagonal(blocks, y.dim(-1), x);
  const bool overwrite = y.storage().unique() && y.is_contiguous();
  Tensor sum = overwrite ? y.Detach() : y.Detach().Clone();
  std::vector<const Tensor*> inputs = {&y, &x};
  for (const LowRankBlock& block : blocks) {
    if (block.b.defined()) inputs.push_back(&block.b);
  }
  // Before the product, which a recomputed forward that has all it needs then spares.
  std::shared_ptr<LowRankUpdateNode> node;
  if (NeedsGrad(inputs)) node = std::make_shared<LowRankUpdateNode>(input, matrix, blocks);
  if (overwrite) sum.storage().BumpVersion();
  matmul_slot(CurrentStream(y.device()), {.transpose_b = true,
                                          .a = AsMatrix(input),
                                          .b = matrix,
                                          .c = AsMatrix(sum),
                                          .accumulate = true});
  Tensor* const output = &sum;
  Record(node, inputs, std::span(&output, 1));
  return sum;
}

}  // namespace lockstep::ops
