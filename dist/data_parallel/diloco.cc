#include "dist/data_parallel/diloco.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/autograd/grad_mode.h"
#include "dist/control/control_plane.h"
#include "dist/data_parallel/bucket_plan.h"
#include "dist/data_parallel/data_parallel.h"
#include "dist/data_parallel/fixed_order.h"
#include "dist/user_call.h"
#include "kernels/binary/binary.h"
#include "kernels/scale/scale.h"
#include "nn/state.h"

namespace lockstep::dist {
namespace {

DiLoCoOptions Checked(DiLoCoOptions o, int64_t ranks) {
  LS_CHECK(o.every >= 1, "DiLoCo: a round has at least 1 step, got every = ", o.every);
  LS_CHECK(o.lr > 0 && o.momentum >= 0 && o.momentum < 1,
           "DiLoCo: the outer lr must be above 0 and the outer momentum in [0, 1), got ", o.lr,
           " and ", o.momentum);
  LS_CHECK(o.dtype == DType::kF32 || o.dtype == DType::kBF16,
           "DiLoCo: outer gradients travel in f32 or bf16, not ", o.dtype);
  if (o.micro_batches == 0) o.micro_batches = ranks;
  return o;
}

BucketHook SumIn(DType dtype, int64_t ranks) {
  if (dtype == DType::kBF16) return Bf16Sum();
  auto plan = std::make_shared<const FixedOrderPlan>(PlanFixedOrder(AssignInTurn(ranks, ranks)));
  return [sum = OrderedSum(std::move(plan))](ProcessGroup& group, const Tensor& bucket,
                                             const std::string& purpose) mutable {
    return sum(group, std::span(&bucket, 1), purpose);
  };
}

}  // namespace

DiLoCo::DiLoCo(ProcessGroup* group, Module& module, const DiLoCoOptions& options,
               std::shared_ptr<ProcessGroup> control)
    : DataRanks(AlignReplicas(group, module, "DiLoCo"), std::move(control)),
      group_(group),
      module_(module),
      options_(Checked(options, SizeOf(group))),
      micro_order_(AssignInTurn(options_.micro_batches, size())[rank()]),
      share_(static_cast<double>(std::ssize(micro_order_)) /
             static_cast<double>(options_.micro_batches)),
      sum_(SumIn(options_.dtype, size())) {}

// The failure of another rank would else be known only at the end of the round.
void DiLoCo::BeginMicroBatch(bool) {
  if (control() && control()->control() && control()->control()->failure()) {
    control()->CheckInStep();
  }
}

void DiLoCo::CheckWeights(const std::string& when) {
  const UserCall call("CheckWeights");
  if (control()) CheckSameBits(*control(), "the weights " + when, nn::StateOf(module_));
}

std::string DiLoCo::LocateNonFinite(int64_t) {
  return group_ ? StrCat("rank ", group_->world_rank()) : "";
}

void DiLoCo::Begin(optim::Optimizer& inner) {
  const NoGrad no_grad;
  inner_ = &inner;
  rounds_ = 0;
  std::vector<std::shared_ptr<Parameter>> starts;
  const std::vector<Tensor> originals = inner.Originals();
  for (size_t i = 0; i < originals.size(); ++i) {
    const Parameter& p = *inner.parameters()[i];
    LS_CHECK(originals[i].dtype() != DType::kF64, "DiLoCo: outer gradients are f32, but '",
             p.name(), "' is f64");
    starts.push_back(std::make_shared<Parameter>(originals[i].shape(), nullptr, /*decay=*/false));
    starts.back()->set_name(p.name());
    const Tensor start = Tensor::Empty(originals[i].shape(), DType::kF32, p.device());
    start.CopyFrom(originals[i]);
    starts.back()->SetValue(start);
  }
  LS_CHECK(!starts.empty(), "DiLoCo: the optimizer updates nothing");
  outer_.emplace(
      starts, optim::SgdOptions{.momentum = options_.momentum, .nesterov = options_.momentum > 0});
  outer_step_.emplace(starts[0]->device(), /*seed=*/0);
}

CommunicationTimes DiLoCo::EndStep(int64_t steps) {
  LS_CHECK(inner_ != nullptr,
           "DiLoCo: EndStep without Begin: once the optimizer is made, and before the first step, "
           "write\n  workers.Begin(optimizer);");
  if (!MeetAfter(steps)) return {};
  const UserCall call("EndStep");
  const NoGrad no_grad;
  const auto& starts = outer_->parameters();
  int64_t numel = 0;
  for (const auto& p : starts) numel += p->value().numel();
  const int64_t padded = (numel + size() - 1) / size() * size();
  const Tensor flat = Tensor::Empty({padded}, DType::kF32, starts[0]->device());
  flat.Slice(0, numel, padded).Fill(0);
  std::vector<Tensor> gradients;
  const std::vector<Tensor> originals = inner_->Originals();
  for (int64_t i = 0, begin = 0; i < std::ssize(starts); ++i) {
    const Tensor start = starts[i]->value().Detach();
    const int64_t end = begin + start.numel();
    gradients.push_back(flat.Slice(0, begin, end).View(start.shape()));
    const Tensor now = originals[i].To(start.device()).To(DType::kF32);
    gradients.back().CopyFrom(ops::Scale(ops::Sub(start, now), share()));
    begin = end;
  }
  using Clock = std::chrono::steady_clock;
  const Clock::time_point before = Clock::now();
  if (size() > 1) Sum(flat, steps);
  const double ms = std::chrono::duration<double, std::milli>(Clock::now() - before).count();
  {
    const auto training = outer_->BeginStep(*outer_step_, rounds_++, options_.lr);
    for (size_t i = 0; i < starts.size(); ++i) starts[i]->leaf().ShareGrad(gradients[i]);
    outer_->Step(*outer_step_);
    outer_->ZeroGrad();
  }
  std::vector<Tensor> values;
  for (const auto& p : starts) values.push_back(p->value().Detach());
  inner_->SetOriginals(values);
  // What bf16 weights without f32 originals are rounded to is what workers begin the round with.
  for (size_t i = 0; i < values.size(); ++i) {
    if (originals[i].dtype() != DType::kF32) values[i].CopyFrom(originals[i]);
  }
  return {.communication_ms = ms, .exposed_ms = ms};
}

// Overwrites each worker's terms, of as many elements, by the sum.
void DiLoCo::Sum(const Tensor& flat, int64_t steps) {
  const int64_t bytes =
      options_.bucket_bytes > 0 ? options_.bucket_bytes : DefaultBucketBytes(flat.device());
  const int64_t most = std::max<int64_t>(bytes / SizeOf(DType::kF32) / size(), 1) * size();
  for (int64_t begin = 0; begin < flat.numel(); begin += most) {
    const int64_t end = std::min(begin + most, flat.numel());
    // Ranks compare it: all are at the end of the same round.
    sum_(*group_, flat.Slice(0, begin, end),
         StrCat("outer gradients from ", begin, " on, after step ", steps));
  }
  if (flat.device().is_cuda()) group_->CheckInStep();
}

}  // namespace lockstep::dist
