// FullyShard's gradients: each unit's are summed while the backward of the units before it runs.
#include <algorithm>
#include <unordered_set>
#include <utility>

#include "core/autograd/engine.h"
#include "core/meta_memory.h"
#include "core/slots.h"
#include "dist/data_parallel/loop_checks.h"
#include "dist/shard/fully_shard.h"
#include "dist/user_call.h"

namespace lockstep::dist {

void FullyShard::CheckBegin(const BackwardPlan& plan) const {
  LS_CHECK(!in_backward_, "backward was called within another backward through a sharded model");
  if (size() > 1) CheckShares(plan, rank(), size(), !has_summed_);
  for (const Unit& unit : units_) {
    const Parameter* const p = unit.is_summed() ? unit.memory->WithGradient() : nullptr;
    if (p == nullptr) continue;
    ThrowHasGradient(
        *p, StrCat("it was planned with ", micro_order_.size(),
                   " micro-batches of this rank: say how many it has on all ranks together:\n"
                   "  FullyShard parallel(group, model, {.micro_batches = ...});"));
  }
  // The engine has only seen the leaves of the whole weights, which no optimizer knows.
  for (const auto& p : parameters_) {
    const std::shared_ptr<Leaf> leaf(std::shared_ptr<void>(), &p->leaf());
    if (!p->trainable() || plan.nodes.empty()) continue;
    CheckBackward({.leaves = std::span(&leaf, 1)});
    break;
  }
  std::unordered_set<const Leaf*> in_plan;
  for (const auto& leaf : plan.leaves) in_plan.insert(leaf.get());
  for (const Unit& unit : units_) {
    if (!unit.is_summed()) continue;
    const auto leaves = unit.memory->leaves();
    const auto absent = std::ranges::find_if(
        leaves, [&](const auto& leaf) { return !in_plan.contains(leaf.get()); });
    LS_CHECK(
        !leaves.empty() && absent == leaves.end(),
        leaves.empty() ? unit.memory->Describe("weights") : StrCat("'", (*absent)->name(), "'"),
        " took no part in this loss, so there is no gradient to be summed with those of other "
        "ranks: use it, or call SetTrainable(false) before the model is sharded");
  }
}

void FullyShard::OnBegin(const BackwardPlan& plan) {
  const UserCall call("Backward");
  CheckBegin(plan);
  in_backward_ = true;
  unlaunched_ = units_.size();
  unit_of_.clear();
  const bool afresh = options_.sum == GradientSum::kOrdered || &first() == &within().micro_steps[0];
  for (Unit& unit : units_) {
    ShardUnit& memory = *unit.memory;
    if (!unit.is_summed()) continue;
    unit.pending = std::ssize(memory.leaves());
    for (const auto& leaf : memory.leaves()) unit_of_[leaf.get()] = &unit;
    if (afresh) memory.WriteTo(first(unit).buffer);
    for (int64_t buffer = 0; buffer < across().buffers; ++buffer) memory.shard(buffer);
    // Weight gradients that were deferred: there is no module around whose backward to take it.
    if (plan.nodes.empty()) {
      if (summed_ == &unit) Settle();
      memory.TakeGradients();
    }
  }
  LaunchReady();  // what is not trained
}

void FullyShard::OnLeafReady(Leaf& leaf) {
  const auto it = unit_of_.find(&leaf);
  if (it == unit_of_.end()) return;
  const UserCall call("Backward");
  Unit& unit = *it->second;
  unit.memory->FillAbsent(leaf);
  if (--unit.pending == 0) LaunchReady();
}

// In the same order on all ranks: from the last unit to the first.
void FullyShard::LaunchReady() {
  for (; unlaunched_ > 0 && units_[unlaunched_ - 1].pending == 0; --unlaunched_) {
    Unit& unit = units_[unlaunched_ - 1];
    if (unit.is_summed()) Launch(unit);
  }
}

void FullyShard::Launch(Unit& unit) {
  ShardUnit& memory = *unit.memory;
  const Tensor& to = memory.whole(first(unit).buffer);
  for (const int64_t from : first(unit).take_up) {
    accumulate_slot(CurrentStream(to.device()), memory.whole(from), to);
    memory.whole(from).storage().Release();
  }
  if (!scatters()) return;
  // At most two units' gradients are in memory: the one being summed, and the one being computed.
  Settle();
  summed_ = &unit;
  lanes_->Launch(
      &unit - units_.data(), to.bytes(),
      [this, &unit, &step = second(), is_last = is_last()](ProcessGroup* group, const BucketSum&) {
        return SumGradients(unit.of_experts ? experts_->sum.get() : group, unit, step, is_last);
      });
}

// In the lane.
std::vector<WorkPtr> FullyShard::SumGradients(ProcessGroup* group, const Unit& of,
                                              const FixedOrderPlan::MicroStep& step, bool is_last) {
  const MetaMemoryLabel label("buckets");
  ShardUnit& unit = *of.memory;
  const std::string purpose = unit.Describe("gradients");
  const bool ordered = options_.sum == GradientSum::kOrdered;
  const Tensor& to = unit.shard(step.buffer);
  const Stream stream = CurrentStream(to.device());
  // With kFast all shards are added in one buffer.
  const bool adds = !ordered && &step != &across().micro_steps[0];
  std::vector<WorkPtr> works;
  std::vector<Tensor> terms;
  for (const int64_t buffer : within(of).terms) {
    terms.push_back(unit.whole(buffer));
    if (!to.device().is_cpu()) terms.back().storage().RecordUse(stream);
  }
  if (size() > 1) unit.NoteSquares(within(of).terms, /*afresh=*/&step == &across().micro_steps[0]);
  Tensor sum = terms.back();  // of the shard group, for this rank
  if (group && ordered) {
    sum = (of.of_experts ? experts_->scatter : scatter_)(*group, terms, purpose, works);
  } else if (group) {
    // Where it is to be added, in this rank's own part of what is scattered: memory that the plan
    // has, though backward goes on meanwhile.
    const int64_t n = to.numel(), r = group->rank();
    sum = adds ? terms.back().Slice(0, r * n, (r + 1) * n) : to;
    works.push_back(group->ReduceScatter(terms.back(), sum, ReduceOp::kSum, purpose));
    works.back()->Wait();
  }
  if (adds) {
    accumulate_slot(stream, sum, to);
  } else if (sum.raw_data() != to.raw_data()) {
    to.CopyFrom(sum);
  }
  for (const int64_t from : step.take_up) accumulate_slot(stream, unit.shard(from), to);
  if (!is_last || !replicate_) return works;
  if (ordered) {
    terms.clear();
    for (const int64_t buffer : across().terms) terms.push_back(unit.shard(buffer));
    for (WorkPtr& work : sum_copies_(*replicate_, terms, purpose)) works.push_back(std::move(work));
  } else {
    works.push_back(replicate_->AllReduce(to, ReduceOp::kSum, purpose));
    works.back()->Wait();
  }
  return works;
}

// Once the sum under way is done, its whole gradients are not needed any more.
void FullyShard::Settle() {
  if (!summed_) return;
  lanes_->Wait();
  const Unit& unit = *std::exchange(summed_, nullptr);
  for (const int64_t buffer : within(unit).terms) unit.memory->whole(buffer).storage().Release();
}

void FullyShard::OnEnd() {
  const UserCall call("Backward");
  LS_INVARIANT(unlaunched_ == 0, "the gradients of ", unlaunched_, " units were not summed");
  in_backward_ = false;
  if (!is_last()) {
    ++micro_;
    return;
  }
  times_ = lanes_->Finish();
  has_summed_ = true;
  if (gather_ && gather_->device().is_cuda()) gather_->CheckInStep();
  if (experts_ && experts_->gather && experts_->gather->device().is_cuda()) {
    experts_->gather->CheckInStep();
  }
  ReportGathers();
  Settle();
  for (const Unit& unit : units_) {
    if (unit.is_summed()) unit.memory->ShareGradients(across().terms.back());
    // What is frozen may have been in no backward.
    if (options_.reshard == Reshard::kAfterStep || !unit.is_summed()) unit.memory->Release();
  }
  if (tied_) tied_->Add();
  micro_ = 0;
}

void FullyShard::OnError() noexcept {
  if (experts_) AbortBackward(experts_->sum.get());  // for which the lane may be waiting
  lanes_->Abort();
  for (ProcessGroup* group : {gather_.get(), replicate_}) AbortBackward(group);
  if (experts_) AbortBackward(experts_->gather.get());
  for (size_t use = 0; use < uses_.size(); ++use) {
    for (const size_t u : uses_[use].units) units_[u].memory->Hide(use);
  }
  summed_ = nullptr;
  in_backward_ = false;
  micro_ = 0;
}

}  // namespace lockstep::dist
