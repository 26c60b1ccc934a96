#include "dist/data_parallel/reducer.h"

#include <algorithm>
#include <cmath>

#include "core/autograd/engine.h"
#include "core/meta_memory.h"
#include "core/slots.h"
#include "core/step_state.h"
#include "dist/data_parallel/loop_checks.h"
#include "dist/groups/agreement.h"
#include "dist/user_call.h"
#include "kernels/global_norm/global_norm.h"

namespace lockstep::dist {
namespace {

BucketSum SumOf(const ReducerOptions& options, std::shared_ptr<const FixedOrderPlan> plan) {
  if (plan) return OrderedSum(std::move(plan));
  return [hook = options.hook ? options.hook : LibrarySum()](
             ProcessGroup& group, std::span<const Tensor> terms,
             const std::string& purpose) mutable { return hook(group, terms.back(), purpose); };
}

}  // namespace

std::string NameByRank(ProcessGroup& group, int64_t parameter,
                       std::span<const std::shared_ptr<Parameter>> parameters) {
  std::string text;
  const auto rows = GatherValues(group, std::span<const int64_t>(&parameter, 1));
  for (size_t r = 0; r < rows.size(); ++r) {
    if (rows[r][0] < 0) continue;
    text += StrCat(text.empty() ? "" : ", ", "rank ", group.members()[r], " ('",
                   parameters[static_cast<size_t>(rows[r][0])]->name(), "')");
  }
  // What follows is an exception, on all ranks.
  MeetBeforeThrowing(group);
  return text;
}

int64_t LaneCount(const ReducerOptions& options, int64_t ranks, Device device) {
  LS_CHECK(options.lanes >= 0, "ReducerOptions::lanes is ", options.lanes, ", which is negative");
  if (ranks == 1 || !PlannedDevice(device).is_cpu()) return 1;
  return options.lanes > 0 ? options.lanes : options.hook ? 1 : 2;
}

std::shared_ptr<const TiedGradients> TiedApart(Module& module, GradientSum sum,
                                               int64_t micro_batches) {
  const bool apart = sum == GradientSum::kOrdered && micro_batches > 1;
  return apart ? std::make_shared<const TiedGradients>(module) : nullptr;
}

Reducer::Reducer(ProcessGroup* group, std::vector<std::shared_ptr<Parameter>> parameters,
                 ReducerOptions options)
    : group_(group), options_(std::move(options)) {
  const Device device = group_               ? group_->device()
                        : parameters.empty() ? kCpu
                                             : parameters[0]->device();
  for (auto& p : parameters) {
    (p->trainable() ? parameters_ : frozen_).push_back(std::move(p));
  }
  LS_CHECK(!parameters_.empty() || options_.is_part, "a Reducer needs a trainable parameter");
  for (const auto& p : parameters_) {
    LS_CHECK(p->device() == device, "the parameter '", p->name(), "' is on ", p->device(),
             ", but gradients are summed on ", device,
             ": materialise the model there before making it data parallel");
  }
  const bool ordered = options_.sum == GradientSum::kOrdered;
  LS_CHECK(
      !ordered || !options_.hook,
      "a bucket hook needs dist.reduction=fast: the ordered sum has its own way to sum buckets");
  if (options_.micro_batches == 0) options_.micro_batches = ranks();
  const auto assign = ordered ? AssignSubtrees : AssignInTurn;
  const Assignment assignment =
      options_.assignment.empty() ? assign(options_.micro_batches, ranks()) : options_.assignment;
  LS_CHECK(std::ssize(assignment) == ranks(), "an assignment of micro-batches to ",
           assignment.size(), " ranks is for as many, not ", ranks());
  if (ordered) plan_ = std::make_shared<const FixedOrderPlan>(PlanFixedOrder(assignment));
  micro_order_ = assignment[RankIn(group_)];
  lanes_.emplace(group_, device, LaneCount(options_, ranks(), device), SumOf(options_, plan_),
                 std::move(options_.on_span));
  options_.hook = nullptr;
  const auto count = static_cast<int64_t>(parameters_.size());
  uses_.resize(parameters_.size());
  const MetaMemoryLabel label("workspace");
  my_uses_ = Tensor::Zeros({count}, DType::kU8, device);
  all_uses_ = Tensor::Zeros({ranks(), count}, DType::kU8, device);
  for (size_t p = 0; p < parameters_.size(); ++p) {
    index_[&parameters_[p]->leaf()] = p;
    parameters_[p]->leaf().AddObserver(this);
  }
  for (const auto& p : frozen_) p->leaf().AddObserver(this);
}

Reducer::~Reducer() {
  for (const Parameters* all : {&parameters_, &frozen_}) {
    for (const auto& p : *all) p->leaf().RemoveObserver(this);
  }
}

// ---- The plan ----

void Reducer::MakePlan(const BackwardPlan& plan) {
  std::vector<int64_t> position(parameters_.size(), -1);
  for (size_t i = 0; i < plan.leaves.size(); ++i) {
    const auto it = index_.find(plan.leaves[i].get());
    if (it != index_.end()) position[it->second] = static_cast<int64_t>(i);
  }
  // Use rank 0's order, so that all ranks have the same buckets even if one skips a layer.
  if (group_) position = GatherValues(*group_, position)[0];
  std::vector<int64_t> order(parameters_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(order.size() - 1 - i);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    // Parameters that rank 0's backward skips come last, in the reverse of the model's order.
    if (position[a] < 0 || position[b] < 0) return position[a] >= 0 && position[b] < 0;
    return position[a] < position[b];
  });
  buckets_.emplace(parameters_, order,
                   BucketLimits{.first_bytes = options_.first_bucket_bytes,
                                .bytes = options_.bucket_bytes,
                                .multiple = 64 * ranks()},
                   plan_ ? mine().buffers : 1);
  for (int64_t b = 0; b < buckets_->size(); ++b) {
    Contribution& contribution = contributions_.emplace_back();
    int64_t chunks = 0;
    for (const int64_t buffer : plan_ ? mine().terms : std::vector<int64_t>{0}) {
      contribution.terms.push_back(buckets_->whole(b, buffer));
      for (const int64_t p : buckets_->plans()[b].items) {
        contribution.parts.push_back(buckets_->slice(p, buffer));
        chunks += GradNormChunks(contribution.parts.back());
      }
    }
    if (NotesSquares()) {
      const MetaMemoryLabel label("workspace");
      for (Tensor* sums : {&contribution.square_sums, &contribution.earlier_sums}) {
        *sums = Tensor::Zeros({chunks}, DType::kF64, contribution.terms[0].device());
      }
    }
  }
}

// ---- A backward ----

void Reducer::ForgetDropped() {
  const auto has_gradient = [](const auto& p) { return p->grad().defined(); };
  if (micro_ == 0 || Version() != version_ || std::ranges::any_of(parameters_, has_gradient))
    return;
  Reset();
}

void Reducer::CheckBegin() const {
  LS_CHECK(!in_backward_,
           "backward was called within another backward through parameters of the same Reducer");
  for (const auto& p : parameters_) CheckTrainable(*p, true, "DataParallel");
  for (const auto& p : frozen_) CheckTrainable(*p, false, "DataParallel");
  if (micro_ == 0 && options_.tied) options_.tied->Clear();  // of a step that failed
  const auto with_gradient =
      std::ranges::find_if(parameters_, [](const auto& p) { return p->grad().defined(); });
  if (micro_ > 0) {
    LS_CHECK(with_gradient != parameters_.end(), "what ", micro_,
             " backwards of the step before gave was never summed over the ranks, which have made "
             "different updates, if any: ",
             kBeginMicroBatch);
  } else if (with_gradient != parameters_.end()) {
    ThrowHasGradient(**with_gradient, kBeginMicroBatch);
  }
  if (plan_) {
    const int64_t planned = std::ssize(micro_order_);
    LS_CHECK(micro_ < planned && (no_sync_ == 0) == (micro_ == planned - 1),
             "the ordered sum was planned for ", planned,
             " backwards per step, all but the last under NoSync; backward ", micro_ + 1,
             " of this step is ", no_sync_ > 0 ? "" : "not ", "under NoSync: ", kBeginMicroBatch);
  }
}

void Reducer::BeginMicroStep() {
  sync_ = no_sync_ == 0;
  in_backward_ = true;
  launched_ = 0;
  buckets_->Begin();
  if (!plan_) return;
  micro_step_ = &mine().micro_steps[micro_];
  buckets_->WriteTo(micro_step_->buffer);
}

void Reducer::OnBegin(const BackwardPlan& plan) {
  if (parameters_.empty()) return;
  const UserCall call("Backward");
  ForgetDropped();
  CheckBegin();
  if (ranks() > 1) CheckShares(plan, group_->rank(), ranks(), !buckets_);
  if (!buckets_) MakePlan(plan);
  BeginMicroStep();
  std::vector<bool> in_plan(parameters_.size(), false);
  for (const auto& leaf : plan.leaves) {
    const auto it = index_.find(leaf.get());
    if (it == index_.end()) continue;
    in_plan[it->second] = true;
    uses_[it->second] = kUsed;
  }
  if (sync_) BeginSync();
  for (size_t p = 0; p < parameters_.size(); ++p) {
    if (in_plan[p]) continue;
    FillAbsent(p);
    if (sync_) MarkReady(p);
  }
}

// The uses are known before the first node runs, so comparing them costs backward nothing.
void Reducer::BeginSync() {
  for (Contribution& c : contributions_) std::swap(c.square_sums, c.earlier_sums);
  if (!group_) return;
  my_uses_.CopyFrom(Tensor::FromVector<uint8_t>(uses_, {std::ssize(uses_)}, my_uses_.device()));
  lanes_->Submit([this] {
    const UserCall call("Backward");
    group_->AllGather(my_uses_, all_uses_, "which parameters took part")->Wait();
    if (!all_uses_.device().is_meta()) read_uses_ = HostRead(all_uses_);
  });
}

// A parameter that takes no part counts as zero, unless an earlier micro-step left something.
void Reducer::FillAbsent(size_t p) {
  if (!parameters_[p]->grad().defined()) buckets_->slice(p).Fill(0);
}

void Reducer::OnLeafReady(Leaf& leaf) {
  const auto it = index_.find(&leaf);
  if (it == index_.end()) return;
  const UserCall call("Backward");
  FillAbsent(it->second);
  LS_CHECK(
      !leaf.grad().defined() || leaf.grad().raw_data() == buckets_->slice(it->second).raw_data(),
      "the gradient of '", leaf.name(),
      "' is not in its bucket: something else called SetDestination on its leaf");
  if (sync_) MarkReady(it->second);
}

void Reducer::MarkReady(size_t p) {
  for (const int64_t complete = buckets_->MarkReady(p); launched_ < complete;) Launch(launched_++);
}

void Reducer::Launch(int64_t bucket) {
  Contribution& contribution = contributions_[bucket];
  const auto job = [this, bucket, &contribution](ProcessGroup* group, const BucketSum& sum) {
    AddUp(bucket);
    if (NotesSquares()) {
      grad_norm_square_sums(CurrentStream(contribution.square_sums.device()), contribution.parts,
                            contribution.square_sums);
    }
    if (ranks() == 1) return std::vector<WorkPtr>();
    return sum(*group, contribution.terms, buckets_->purpose(bucket));
  };
  lanes_->Launch(bucket, contribution.terms.back().bytes(), job);
}

// For the ordered sum: adds the micro-step's take_up buffers to its own.
void Reducer::AddUp(int64_t bucket) {
  if (!micro_step_) return;
  const Tensor& to = buckets_->whole(bucket, micro_step_->buffer);
  for (const int64_t from : micro_step_->take_up) {
    accumulate_slot(CurrentStream(to.device()), buckets_->whole(bucket, from), to);
  }
}

void Reducer::OnEnd() {
  if (parameters_.empty()) return;
  const UserCall call("Backward");
  if (sync_) {
    FinishSync();
    return;
  }
  for (int64_t b = 0; b < buckets_->size(); ++b) AddUp(b);
  ++micro_;
  version_ = Version();
  in_backward_ = false;
}

void Reducer::FinishSync() {
  LS_INVARIANT(launched_ == buckets_->size(), launched_, " of ", buckets_->size(),
               " buckets were launched");
  times_ = lanes_->Finish();
  ended_well_ = true;  // from here on, all ranks throw the same errors
  ResolveUses();
  if (options_.tied) options_.tied->Add();
  Reset();
}

void Reducer::ResolveUses() {
  if (my_uses_.device().is_meta()) return;  // the other ranks are only planned
  const auto count = std::ssize(parameters_);
  const std::vector<uint8_t> all = group_ ? read_uses_.Get().ToVector<uint8_t>() : uses_;
  std::string missing;
  int64_t others = 0;
  for (int64_t p = 0; p < count; ++p) {
    std::vector<int> users, idle;
    for (int64_t r = 0; r < ranks(); ++r) {
      const uint8_t use = all[r * count + p];
      const int rank = group_ ? group_->members()[r] : 0;
      if (use == kUsed) users.push_back(rank);
      if (use == kUnused) idle.push_back(rank);
    }
    Leaf& leaf = parameters_[p]->leaf();
    if (!idle.empty() && !IsConditional(p)) {
      if (missing.empty()) {
        missing = StrCat("'", parameters_[p]->name(), "' on ", ListRanks(idle),
                         users.empty() ? "" : " (but on " + ListRanks(users) + ")");
      } else {
        ++others;
      }
    } else if (!users.empty() && !leaf.grad().defined()) {
      leaf.SetGrad(buckets_->slice(p));
    }
  }
  if (missing.empty()) return;
  ThrowReplicaError(
      *group_, StrCat("no gradient in this step for the parameter ", missing,
                      others > 0 ? StrCat(" and for ", others, " more") : "",
                      ": it took no part in the loss there. If that is intended, name it in "
                      "ReducerOptions::conditional; otherwise use it, or SetTrainable(false)"));
}

void Reducer::OnError() noexcept {
  if (!ended_well_) lanes_->Abort();
  Reset();
}

void Reducer::Reset() {
  in_backward_ = sync_ = ended_well_ = false;
  micro_step_ = nullptr;
  micro_ = 0;
  std::fill(uses_.begin(), uses_.end(), uint8_t{kUnused});
}

void Reducer::Join() {
  const UserCall call("Backward");  // of the others
  try {
    LS_CHECK(micro_ == 0 && no_sync_ == 0,
             "Join replaces all of a step's backwards, but was called after ", micro_, " of them");
    micro_ = std::ssize(micro_order_) - 1;
    if (!buckets_) MakePlan({});
    for (const auto& p : parameters_) p->leaf().ZeroGrad();
    BeginMicroStep();
    micro_step_ = nullptr;
    for (const Contribution& contribution : contributions_) {
      for (const Tensor& term : contribution.terms) term.Fill(0);
    }
    std::fill(uses_.begin(), uses_.end(), uint8_t{kJoined});
    BeginSync();
    for (size_t p = 0; p < parameters_.size(); ++p) MarkReady(p);
    FinishSync();
  } catch (...) {
    OnError();
    throw;
  }
}

std::string Reducer::LocateNonFinite(int64_t ago) {
  if (group_) return LocateNonFinite(ago, *group_);
  const int64_t bad = FirstNonFinite(ago);
  return bad < 0 ? "" : StrCat("'", parameters_[static_cast<size_t>(bad)]->name(), "'");
}

std::string Reducer::LocateNonFinite(int64_t ago, ProcessGroup& among) {
  if (!NotesSquares()) return "";
  const UserCall call("LocateNonFinite");
  return NameByRank(among, FirstNonFinite(ago), parameters_);
}

int64_t Reducer::FirstNonFinite(int64_t ago) const {
  if (!NotesSquares()) return -1;
  int64_t bad = -1;
  for (size_t b = 0; b < contributions_.size(); ++b) {
    const std::vector<int64_t>& items = buckets_->plans()[b].items;
    const Contribution& c = contributions_[b];
    const auto sums = (ago == 0 ? c.square_sums : c.earlier_sums).ToVector<double>();
    size_t chunk = 0;
    for (size_t i = 0; i < c.parts.size() && bad < 0; ++i) {
      for (int64_t n = GradNormChunks(c.parts[i]); n > 0; --n) {
        if (!std::isfinite(sums[chunk++])) bad = items[i % items.size()];
      }
    }
  }
  return bad;
}

}  // namespace lockstep::dist
