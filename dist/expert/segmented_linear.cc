#include "dist/expert/segmented_linear.h"

#include <array>
#include <bit>

#include "core/autograd/node.h"
#include "core/autograd/saved_tensor.h"
#include "core/slots.h"
#include "kernels/grouped_linear/grouped_linear.h"

namespace lockstep::dist {
namespace {

int64_t CountOf(const ExpertSegments& segments) { return std::ssize(segments.offsets); }

Tensor RowsOf(const ExpertSegments& segments, const Tensor& x, int64_t s) {
  return x.Slice(0, segments.begin[static_cast<size_t>(s)],
                 segments.begin[static_cast<size_t>(s) + 1]);
}

class SegmentedLinearNode : public Node {
 public:
  // x and weight are undefined where no gradient needs them. Its inputs are x and the weights.
  SegmentedLinearNode(const Tensor& x, const Tensor& weight, int64_t weights,
                      const ExpertSegments& segments)
      : Node("segmented_linear"),
        x_(Save(x, "the input of segmented_linear")),
        weight_(Save(weight, "the weight of segmented_linear")),
        weights_(weights),
        segments_(segments) {}

  void Backward(Gradients& grads) override {
    const Tensor dy = grads[0].Contiguous();
    if (const auto [dx, accumulate] = grads.Open(0); dx.defined()) {
      const Tensor weight = weight_.Unpack();
      for (int64_t s = 0; s < CountOf(segments_); ++s) {
        GroupedLinearBackwardArgs args = ArgsOf(dy, s);
        args.weight = weight;
        args.dx = {RowsOf(segments_, dx, s), accumulate};
        grouped_linear_backward(CurrentStream(dy.device()), args);
      }
    }
    Tensor x;
    for (int64_t i = 0; i < weights_; ++i) {
      const auto input = static_cast<size_t>(1 + i);
      if (!grads.needs(input)) continue;
      if (!x.defined()) x = x_.Unpack();
      const GradTarget dw = grads.OpenAnyDType(input);
      if (!dw.accumulate) {
        AddInto(dw.tensor, dy, x, i, weights_);
      } else {
        const Tensor sum = Tensor::EmptyLike(dw.tensor);
        AddInto(sum, dy, x, i, weights_);
        dw.Write(sum);
      }
    }
  }
  bool SplitsByInput() const override { return true; }

 private:
  GroupedLinearBackwardArgs ArgsOf(const Tensor& dy, int64_t s) const {
    GroupedLinearBackwardArgs args;
    args.dy = RowsOf(segments_, dy, s);
    args.offsets = segments_.offsets[static_cast<size_t>(s)];
    return args;
  }

  // `to` = the sum of segments s, s + n, s + 2 n, ...
  void AddInto(const Tensor& to, const Tensor& dy, const Tensor& x, int64_t s, int64_t n) const {
    const Stream stream = CurrentStream(to.device());
    if (n == CountOf(segments_)) {
      GroupedLinearBackwardArgs args = ArgsOf(dy, s);
      args.x = RowsOf(segments_, x, s);
      args.dweight = {to};
      grouped_linear_backward(stream, args);
      return;
    }
    AddInto(to, dy, x, s, 2 * n);
    const Tensor other = Tensor::EmptyLike(to);
    AddInto(other, dy, x, s + n, 2 * n);
    accumulate_slot(stream, other, to);
  }

  const SavedTensor &x_, &weight_;
  const int64_t weights_;
  const ExpertSegments segments_;
};

}  // namespace

Tensor SegmentedLinear(const Tensor& rows, const std::vector<Tensor>& weights,
                       const ExpertSegments& segments) {
  const int64_t n = CountOf(segments), copies = std::ssize(weights);
  LS_CHECK(n >= 1 && std::has_single_bit(static_cast<uint64_t>(n)) &&
               std::ssize(segments.begin) == n + 1,
           "SegmentedLinear needs a power of two of segments, got ", n);
  LS_CHECK(copies >= 1 && n % copies == 0,
           "SegmentedLinear needs a weight, or a power of two of copies of it, of at most ", n,
           ", as many as there are segments: got ", copies);
  const Tensor& weight = weights[0];
  LS_CHECK(rows.defined() && rows.ndim() == 2 && rows.dim(0) == segments.begin.back() &&
               weight.defined() && weight.ndim() == 3 && weight.dim(2) == rows.dim(1) &&
               weight.dtype() == rows.dtype() && weight.device() == rows.device(),
           "SegmentedLinear of ", segments.begin.back(), " rows got ", rows.Describe(), " and ",
           weight.Describe());
  const Tensor x = rows.Detach().Contiguous(), w = weight.Detach().Contiguous();
  Tensor y = Tensor::Empty({x.dim(0), w.dim(1)}, x.dtype(), x.device());
  std::vector<const Tensor*> edges = {&rows};
  for (const Tensor& copy : weights) edges.push_back(&copy);
  // Before the products, which a recomputed forward that has all it needs then spares.
  std::shared_ptr<SegmentedLinearNode> node;
  if (NeedsGrad(edges)) {
    node = std::make_shared<SegmentedLinearNode>(weight.requires_grad() ? x : Tensor(),
                                                 rows.requires_grad() ? w : Tensor(), copies,
                                                 segments);
  }
  for (int64_t s = 0; s < n; ++s) {
    grouped_linear_forward(CurrentStream(x.device()),
                           {RowsOf(segments, x, s), w, segments.offsets[static_cast<size_t>(s)],
                            RowsOf(segments, y, s)});
  }
  const std::array<Tensor*, 1> outputs = {&y};
  Record(node, edges, outputs);
  return y;
}

}  // namespace lockstep::dist
