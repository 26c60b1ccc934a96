#include "kernels/expert_dispatch/expert_dispatch.h"

#include "core/autograd/node.h"

namespace lockstep::ops {
namespace {

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
  RecordOp("dispatch", {&x}, {&y}, {{order.places, "the order of dispatch"}},
           [](const SavedTensors& saved, Gradients& grads) {
             const Tensor places = saved[0];
             const auto [dx, accumulate] = grads.Open(0);
             sum_slots(CurrentStream(dx.device()), {grads[0], {}, places, dx, accumulate});
           });
  return y;
}

Tensor Combine(const Tensor& y, const Tensor& gates, const ExpertOrder& order) {
  CheckRows("combine", "y", y, order.rows.numel());
  const DType wide = AccumulationDType(y.dtype());
  LS_CHECK(gates.defined() && gates.shape() == order.places.shape() && gates.dtype() == wide,
           "combine: the gates must be ", wide, order.places.shape(), ", got ", gates.Describe());
  const Tensor rows = y.Detach().Contiguous(), weights = gates.Detach().Contiguous();
  Tensor out = Tensor::Empty({order.places.dim(0), y.dim(1)}, y.dtype(), y.device());
  sum_slots(CurrentStream(y.device()), {rows, weights, order.places, out, false});
  // y is kept for the gradient of the gates, the gates for that of y.
  RecordOp("combine", {&y, &gates}, {&out},
           {{gates.requires_grad() ? rows : Tensor(), "the rows of combine"},
            {y.requires_grad() ? weights : Tensor(), "the gates of combine"},
            {order.rows, "the order of combine"},
            {order.places, "the order of combine"}},
           [](const SavedTensors& saved, Gradients& grads) {
             const Tensor& dout = grads[0];
             const Tensor y = saved[0], gates = saved[1];
             const Tensor order = saved[2], places = saved[3];
             const Stream stream = CurrentStream(dout.device());
             if (const auto [dy, accumulate] = grads.Open(0); dy.defined()) {
               gather_rows(stream, {dout, gates, order, places.dim(1), dy, accumulate});
             }
             if (const auto [dgates, accumulate] = grads.Open(1); dgates.defined()) {
               gate_gradients(stream, {y, dout, places, dgates, accumulate});
             }
           });
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
