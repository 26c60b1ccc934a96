#include "kernels/expert_dispatch/expert_dispatch.h"

#include "core/autograd/node.h"
#include "core/autograd/saved_tensor.h"

namespace lockstep::ops {
namespace {

class DispatchNode : public Node {
 public:
  explicit DispatchNode(const Tensor& places)
      : Node("dispatch"), places_(places, "the order of dispatch") {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>&,
                std::span<GradSink> sinks) override {
    const Tensor dy = grads[0].Contiguous(), places = places_.Unpack();
    const GradSink::Target dx = sinks[0].Open({places.dim(0), dy.dim(1)}, dy.dtype(), dy.device());
    sum_slots(CurrentStream(dy.device()), {dy, {}, places, dx.tensor, dx.accumulate});
  }
  void Release() override { places_.Reset(); }

 private:
  SavedTensor places_;
};

class CombineNode : public Node {
 public:
  // y is kept for the gradient of the gates, the gates for that of y.
  CombineNode(const Tensor& y, const Tensor& gates, const ExpertOrder& order)
      : Node("combine"),
        y_(y, "the rows of combine"),
        gates_(gates, "the gates of combine"),
        rows_(order.rows, "the order of combine"),
        places_(order.places, "the order of combine") {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>& needs,
                std::span<GradSink> sinks) override {
    const Tensor dout = grads[0].Contiguous(), places = places_.Unpack();
    const Stream stream = CurrentStream(dout.device());
    if (needs[0]) {
      const GradSink::Target dy =
          sinks[0].Open({places.numel(), dout.dim(1)}, dout.dtype(), dout.device());
      gather_rows(stream,
                  {dout, gates_.Unpack(), rows_.Unpack(), places.dim(1), dy.tensor, dy.accumulate});
    }
    if (needs[1]) {
      const Tensor y = y_.Unpack();
      const DType wide = AccumulationDType(y.dtype());
      const GradSink::Target dgates = sinks[1].Open(places.shape(), wide, y.device());
      gate_gradients(stream, {y, dout, places, dgates.tensor, dgates.accumulate});
    }
  }
  void Release() override {
    y_.Reset();
    gates_.Reset();
    rows_.Reset();
    places_.Reset();
  }

 private:
  SavedTensor y_, gates_, rows_, places_;
};

void CheckRows(const char* op, const char* what, const Tensor& x, int64_t rows) {
  LS_CHECK(x.defined() && x.ndim() == 2 && IsFloating(x.dtype()) && x.dim(0) == rows, op, ": ",
           what, " must be a floating [", rows, ", C], got ", x.Describe());
}

}  // namespace

ExpertOrder SortByExpert(const Tensor& experts, int64_t n_expert) {
  LS_CHECK(experts.defined() && experts.ndim() == 2 && experts.dtype() == DType::kI32,
           "sort_by_expert: the experts must be i32 [N, k], got ", experts.Describe());
  LS_CHECK(n_expert >= 1, "sort_by_expert: there must be an expert, got ", n_expert);
  const auto empty = [&](const Shape& shape) {
    return Tensor::Empty(shape, DType::kI32, experts.device());
  };
  const ExpertOrder order{empty({n_expert + 1}), empty({experts.numel()}), empty(experts.shape())};
  sort_by_expert(CurrentStream(experts.device()),
                 {experts.Contiguous(), order.offsets, order.rows, order.places});
  return order;
}

Tensor Dispatch(const Tensor& x, const ExpertOrder& order) {
  CheckRows("dispatch", "x", x, order.places.dim(0));
  Tensor y = Tensor::Empty({order.rows.numel(), x.dim(1)}, x.dtype(), x.device());
  gather_rows(CurrentStream(x.device()),
              {x.Detach().Contiguous(), {}, order.rows, order.places.dim(1), y, false});
  if (NeedsGrad({&x})) Record(std::make_shared<DispatchNode>(order.places), {&x}, {&y});
  return y;
}

Tensor Combine(const Tensor& y, const Tensor& gates, const ExpertOrder& order) {
  CheckRows("combine", "y", y, order.rows.numel());
  const DType wide = AccumulationDType(y.dtype());
  LS_CHECK(gates.defined() && gates.shape() == order.places.shape() && gates.dtype() == wide,
           "combine: the gates must be ", wide, order.places.shape(), ", got ", gates.Describe());
  const Tensor rows = y.Detach().Contiguous(), weights = gates.Detach().Contiguous();
  Tensor out = Tensor::Empty({order.places.dim(0), y.dim(1)}, y.dtype(), y.device());
  const auto save = [&] {
    return std::make_shared<CombineNode>(gates.requires_grad() ? rows : Tensor(),
                                         y.requires_grad() ? weights : Tensor(), order);
  };
  sum_slots(CurrentStream(y.device()), {rows, weights, order.places, out, false});
  if (NeedsGrad({&y, &gates})) Record(save(), {&y, &gates}, {&out});
  return out;
}

void CountRows(const ExpertOrder& order, const Tensor& load) {
  LS_CHECK(load.defined() && load.dtype() == DType::kI64 && load.is_contiguous() &&
               load.shape() == Shape({order.offsets.numel() - 1}),
           "count_rows: the load must be a contiguous i64[", order.offsets.numel() - 1, "], got ",
           load.Describe());
  load.storage().BumpVersion();
  count_rows(CurrentStream(load.device()), order.offsets, load);
}

}  // namespace lockstep::ops
