#include "dist/data_parallel/reducer.h"

#include <algorithm>
#include <cmath>
#include <exception>

#include "core/autograd/engine.h"
#include "core/slots.h"
#include "core/step_state.h"
#include "dist/groups/agreement.h"
#include "kernels/global_norm/global_norm.h"

namespace lockstep::dist {
namespace {

double Milliseconds(CommunicationSpan::Clock::duration d) {
  return std::chrono::duration<double, std::milli>(d).count();
}

// Sums over micro-batches and ranks lose nothing to 16 bits.
DType SumDType(DType parameter) { return SizeOf(parameter) == 2 ? DType::kF32 : parameter; }

BucketHook HookOf(const ReducerOptions& options, const std::optional<FixedOrder>& order) {
  if (order) return OrderedSum(*order);
  return options.hook ? options.hook : LibrarySum();
}

}  // namespace

Reducer::Reducer(ProcessGroup* group, std::vector<std::shared_ptr<Parameter>> parameters,
                 ReducerOptions options)
    : exceptions_(std::uncaught_exceptions()), group_(group), options_(std::move(options)) {
  for (auto& p : parameters) {
    if (p->trainable()) parameters_.push_back(std::move(p));
  }
  LS_CHECK(!parameters_.empty(), "a Reducer needs a trainable parameter");
  const Device device = group_ ? group_->device() : parameters_[0]->value().device();
  for (const auto& p : parameters_) {
    LS_CHECK(p->value().device() == device, "the parameter '", p->name(), "' is on ",
             p->value().device(), ", but gradients are summed on ", device,
             ": materialise the model there before data parallelism begins");
  }
  LS_CHECK(!ordered() || !options_.hook,
           "a hook for buckets goes with dist.reduction=fast: the ordered sum does its own");
  if (ordered()) order_.emplace(ranks(), options_.accum);
  if (order_) {
    for (const auto& step : order_->micro_steps()) micro_order_.push_back(step.index);
  } else {
    for (int64_t a = 0; a < options_.accum; ++a) micro_order_.push_back(a);
  }
  MakeLanes(device);
  const auto count = static_cast<int64_t>(parameters_.size());
  uses_.resize(parameters_.size());
  my_uses_ = Tensor::Zeros({count}, DType::kU8, device);
  all_uses_ = Tensor::Zeros({ranks(), count}, DType::kU8, device);
  for (size_t p = 0; p < parameters_.size(); ++p) {
    index_[&parameters_[p]->leaf()] = p;
    parameters_[p]->leaf().AddObserver(this);
  }
}

Reducer::~Reducer() {
  for (const auto& p : parameters_) p->leaf().RemoveObserver(this);
  // Jobs use the other members, and a hook's memory is the lane's.
  for (GroupLane& lane : lanes_) {
    try {
      lane.jobs->Wait();
    } catch (...) {  // backward has told
    }
    lane.sum = nullptr;
    lane.jobs.reset();
  }
  // An exception ends the lanes' own groups, which the others hear of.
  if (group_ && std::uncaught_exceptions() <= exceptions_) Leave();
}

// All groups, before it waits for any: others may be in another one.
void Reducer::Leave() noexcept {
  try {
    std::vector<WorkPtr> leaves;
    for (const GroupLane& lane : lanes_) leaves.push_back(lane.group->Leave());
    for (const WorkPtr& leave : leaves) leave->Synchronize();
  } catch (...) {  // the others hear of it, and whoever leaves does not mind
  }
}

void Reducer::MakeLanes(Device device) {
  LS_CHECK(options_.lanes >= 0, "ReducerOptions::lanes is ", options_.lanes, ", which is negative");
  int64_t count = options_.lanes > 0 ? options_.lanes : options_.hook ? 1 : 2;
  // Streams go on beside each other as it is.
  if (ranks() == 1 || !device.is_cpu()) count = 1;
  const BucketHook sum = HookOf(options_, order_);
  options_.hook = nullptr;
  for (int64_t i = 0; i < count; ++i) {
    GroupLane lane{.group = group_, .own_group = nullptr, .sum = sum, .jobs = MakeLane(device)};
    if (i > 0) {
      lane.own_group = group_->Duplicate(StrCat(group_->name(), ".lane", i + 1));
      lane.group = lane.own_group.get();
    }
    lanes_.push_back(std::move(lane));
  }
}

// ---- The plan. ----

void Reducer::MakePlan(const BackwardPlan& plan) {
  std::vector<int64_t> position(parameters_.size(), -1);
  for (size_t i = 0; i < plan.leaves.size(); ++i) {
    const auto it = index_.find(plan.leaves[i].get());
    if (it != index_.end()) position[it->second] = static_cast<int64_t>(i);
  }
  // Rank 0's order, so that all have the same buckets even if one of them skips a layer.
  if (group_) position = GatherValues(*group_, position)[0];
  std::vector<int64_t> order(parameters_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(order.size() - 1 - i);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    // What has no place comes last, as it stands: the reverse of the model's order.
    if (position[a] < 0 || position[b] < 0) return position[a] >= 0 && position[b] < 0;
    return position[a] < position[b];
  });
  MakeBuckets(order);
}

void Reducer::MakeBuckets(const std::vector<int64_t>& order) {
  std::vector<BucketItem> items;
  for (const int64_t p : order) {
    const Tensor& value = parameters_[p]->value();
    items.push_back(
        {.numel = value.numel(), .dtype = SumDType(value.dtype()), .device = value.device()});
  }
  const int64_t buffers = order_ ? order_->buffers() : 1;
  const int64_t last = order_ ? order_->micro_steps().back().buffer : 0;
  bucket_of_.assign(parameters_.size(), 0);
  slices_.assign(buffers, std::vector<Tensor>(parameters_.size()));
  for (Bucket& plan : PlanBuckets(items, {.first_bytes = options_.first_bucket_bytes,
                                         .bytes = options_.bucket_bytes,
                                         .multiple = 64 * ranks()})) {
    BucketState b;
    for (int64_t& item : plan.items) item = order[item];
    for (int64_t i = 0; i < buffers; ++i) {
      // Zeros, so that padding is and stays finite.
      b.whole.push_back(Tensor::Zeros({plan.numel}, plan.dtype, plan.device));
    }
    int64_t chunks = 0;
    for (size_t i = 0; i < plan.items.size(); ++i) {
      const int64_t p = plan.items[i], at = plan.offsets[i];
      const Tensor& value = parameters_[p]->value();
      const int64_t size = SizeOf(plan.dtype);
      for (int64_t k = 0; k < buffers; ++k) {
        // A storage of its own, because the lane works on the whole at the same time.
        slices_[k][p] = Tensor::FromStorage(
            b.whole[k].storage().Slice(at * size, value.numel() * size), plan.dtype, value.shape());
      }
      b.local.push_back(b.whole[last].Slice(0, at, at + value.numel()));
      chunks += GradNormChunks(b.local.back());
      bucket_of_[p] = std::ssize(buckets_);
    }
    if (ranks() > 1) b.square_sums = Tensor::Zeros({chunks}, DType::kF64, plan.device);
    b.span.bucket = std::ssize(buckets_);
    b.span.lane = b.span.bucket % std::ssize(lanes_);
    b.span.bytes = plan.bytes();
    b.plan = std::move(plan);
    buckets_.push_back(std::move(b));
    buckets_.back().purpose =
        std::make_shared<const std::string>(PurposeOf(std::ssize(buckets_) - 1));
  }
  for (size_t p = 0; p < parameters_.size(); ++p) {
    parameters_[p]->leaf().SetDestination(slices_[0][p]);
  }
}

std::vector<Bucket> Reducer::buckets() const {
  std::vector<Bucket> plans;
  for (const BucketState& b : buckets_) plans.push_back(b.plan);
  return plans;
}

std::vector<std::string> Reducer::NamesIn(int64_t bucket) const {
  std::vector<std::string> names;
  for (const int64_t p : buckets_.at(bucket).plan.items) names.push_back(parameters_[p]->name());
  return names;
}

std::string Reducer::PurposeOf(int64_t bucket) const {
  constexpr size_t kShown = 8;
  const std::vector<std::string> names = NamesIn(bucket);
  std::string text = StrCat("bucket ", bucket, " (");
  for (size_t i = 0; i < std::min(kShown, names.size()); ++i) {
    text += StrCat(i == 0 ? "'" : ", '", names[i], "'");
  }
  if (names.size() > kShown) text += StrCat(" and ", names.size() - kShown, " more");
  return text + ")";
}

// ---- A backward. ----

void Reducer::CheckBegin() const {
  LS_CHECK(!in_backward_,
           "a backward begins within another one through parameters of the same Reducer");
  if (order_) {
    LS_CHECK(micro_ < options_.accum && (no_sync_ == 0) == (micro_ == options_.accum - 1),
             "the ordered sum was planned for ", options_.accum,
             " backwards a step, all but the last under NoSync; backward ", micro_ + 1, " of this ",
             "step is ", no_sync_ > 0 ? "" : "not ", "under NoSync");
  }
  if (micro_ > 0) return;
  for (const auto& p : parameters_) {
    LS_CHECK(!p->grad().defined(), "the parameter '", p->name(),
             "' already has a gradient as the step begins: call ZeroGrad after each update, and "
             "before data parallelism begins");
  }
}

void Reducer::BeginMicroStep() {
  sync_ = no_sync_ == 0;
  in_backward_ = true;
  next_ = 0;
  ready_.assign(parameters_.size(), false);
  for (BucketState& b : buckets_) b.pending = std::ssize(b.plan.items);
  if (!order_) return;
  buffer_ = order_->micro_steps()[micro_].buffer;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    parameters_[p]->leaf().SetDestination(slices_[buffer_][p]);
  }
}

// What is right in one process, and silently wrong in several.
void Reducer::CheckShares(const BackwardPlan& plan) const {
  LS_CHECK(
      !plan.default_root_grad, "gradients are summed over the ", ranks(),
      " ranks, so that the gradient of a mean would be ", ranks(),
      " times too large: make the loss a sum, and divide by the samples (or tokens) of all ranks "
      "at its root:\n"
      "  Backward(loss, Tensor::Full({}, 1.0 / samples_of_all_ranks, DType::kF32, device));");
  LS_CHECK(!DrewWithoutFirstSample(), "rank ", group_->rank(),
           " drew the same dropout masks as the ",
           "other ranks: say which samples of the step it has, such as\n"
           "  const auto training = optimizer.BeginStep(state, step, learning_rate,\n"
           "                                            {.first_sample = rank * batch_size});");
}

void Reducer::OnBegin(const BackwardPlan& plan) {
  CheckBegin();
  if (ranks() > 1) CheckShares(plan);
  if (buckets_.empty()) MakePlan(plan);
  BeginMicroStep();
  in_plan_.assign(parameters_.size(), false);
  for (const auto& leaf : plan.leaves) {
    const auto it = index_.find(leaf.get());
    if (it == index_.end()) continue;
    in_plan_[it->second] = true;
    uses_[it->second] = kUsed;
  }
  if (sync_) BeginSync();
  for (size_t p = 0; p < parameters_.size(); ++p) {
    if (in_plan_[p]) continue;
    FillAbsent(p);
    if (sync_) MarkReady(p);
  }
}

// The uses are known before the first node runs, so comparing them costs backward nothing.
void Reducer::BeginSync() {
  if (!group_) return;
  my_uses_.CopyFrom(Tensor::FromVector<uint8_t>(uses_, {std::ssize(uses_)}, my_uses_.device()));
  lanes_[0].jobs->Submit([this] {
    static const auto purpose = std::make_shared<const std::string>("which parameters took part");
    group_->SetPurpose(purpose);
    group_->AllGather(my_uses_, all_uses_)->Wait();
    group_->SetPurpose(nullptr);
  });
}

// A parameter that takes no part counts as zero, unless an earlier micro-step left something.
void Reducer::FillAbsent(size_t p) {
  if (!parameters_[p]->grad().defined()) slices_[buffer_][p].Fill(0);
}

void Reducer::OnLeafReady(Leaf& leaf) {
  const auto it = index_.find(&leaf);
  if (it == index_.end()) return;
  FillAbsent(it->second);
  LS_CHECK(
      !leaf.grad().defined() || leaf.grad().raw_data() == slices_[buffer_][it->second].raw_data(),
      "the gradient of '", leaf.name(),
      "' is not in its bucket: something else called SetDestination on its leaf");
  if (sync_) MarkReady(it->second);
}

void Reducer::MarkReady(size_t p) {
  LS_CHECK(!ready_[p], "the gradient of '", parameters_[p]->name(),
           "' became ready twice in one backward: do two threads run backward through it?");
  ready_[p] = true;
  --buckets_[bucket_of_[p]].pending;
  for (; next_ < std::ssize(buckets_) && buckets_[next_].pending == 0; ++next_) Launch(next_);
}

void Reducer::Launch(int64_t b) {
  GroupLane& lane = lanes_[buckets_[b].span.lane];
  lane.jobs->Submit([this, b, &lane] { SumBucket(buckets_[b], lane); });
}

// Adds the buffers that the micro-step takes up, by the ordered sum.
void Reducer::AddUp(BucketState& bucket) {
  if (!order_ || joined_) return;
  const Tensor& to = bucket.whole[buffer_];
  for (const int64_t from : order_->micro_steps()[micro_].take_up) {
    accumulate_slot(CurrentStream(to.device()), bucket.whole[from], to);
  }
}

// In the lane.
void Reducer::SumBucket(BucketState& bucket, GroupLane& lane) {
  bucket.span.begin = Clock::now();
  AddUp(bucket);
  const Tensor& whole = bucket.whole[buffer_];
  if (ranks() > 1) {
    grad_norm_square_sums(CurrentStream(whole.device()), bucket.local, bucket.square_sums);
    lane.group->SetPurpose(bucket.purpose);
    bucket.works = lane.sum(*lane.group, whole);
    lane.group->SetPurpose(nullptr);
  }
  bucket.span.end = Clock::now();
  if (whole.device().is_cpu()) Tell(bucket.span);
}

void Reducer::Tell(const CommunicationSpan& span) {
  if (!options_.on_span) return;
  const std::lock_guard<std::mutex> lock(telling_);
  options_.on_span(span);
}

// Throws what the first lane that failed threw, when all have ended.
void Reducer::WaitForLanes() {
  std::exception_ptr error;
  for (GroupLane& lane : lanes_) {
    try {
      lane.jobs->Wait();
    } catch (...) {
      if (!error) error = std::current_exception();
      AbortGroups();
    }
  }
  if (error) std::rethrow_exception(error);
}

void Reducer::AbortGroups() {
  for (GroupLane& lane : lanes_) {
    if (group_) lane.group->Abort(StrCat("backward failed on rank ", group_->rank()));
  }
}

void Reducer::OnEnd() {
  if (sync_) {
    FinishSync();
    return;
  }
  for (BucketState& b : buckets_) AddUp(b);
  ++micro_;
  in_backward_ = false;
}

void Reducer::FinishSync() {
  LS_INVARIANT(next_ == std::ssize(buckets_), next_, " of ", buckets_.size(),
               " buckets were launched");
  CommunicationSpan wait{.bucket = -1, .bytes = 0, .begin = Clock::now(), .end = {}};
  WaitForLanes();
  if (group_ && group_->device().is_cuda()) group_->CheckInStep();
  wait.end = Clock::now();
  Measure(wait);
  ended_well_ = true;  // what is thrown from here on is thrown by all ranks
  ResolveUses();
  Reset();
}

void Reducer::Measure(const CommunicationSpan& wait) {
  times_ = {};
  std::vector<CommunicationSpan> spans;
  for (BucketState& b : buckets_) {
    if (!b.plan.device.is_cpu()) {
      if (b.works.empty() || !b.works.front()->span() || !b.works.back()->span()) continue;
      b.span.begin = b.works.front()->span()->begin;
      b.span.end = b.works.back()->span()->end;
      Tell(b.span);
    }
    b.works.clear();
    spans.push_back(b.span);
  }
  // Lanes work at the same time, which counts once.
  std::sort(spans.begin(), spans.end(),
            [](const auto& a, const auto& b) { return a.begin < b.begin; });
  Clock::time_point counted = Clock::time_point::min();
  for (const CommunicationSpan& span : spans) {
    const auto begin = std::max(span.begin, counted);
    if (span.end <= begin) continue;
    counted = span.end;
    times_.communication_ms += Milliseconds(span.end - begin);
    if (begin < wait.begin) {
      times_.overlapped_ms += Milliseconds(std::min(span.end, wait.begin) - begin);
    }
  }
  times_.exposed_ms = Milliseconds(wait.end - wait.begin);
  Tell(wait);
}

void Reducer::ResolveUses() {
  const auto count = std::ssize(parameters_);
  const std::vector<uint8_t> all = group_ ? all_uses_.ToVector<uint8_t>() : uses_;
  std::string missing;
  int64_t others = 0;
  for (int64_t p = 0; p < count; ++p) {
    std::vector<int> users, idle;
    for (int r = 0; r < static_cast<int>(ranks()); ++r) {
      const uint8_t use = all[r * count + p];
      if (use == kUsed) users.push_back(r);
      if (use == kUnused) idle.push_back(r);
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
      leaf.SetGrad(slices_[buffer_][p]);
    }
  }
  if (missing.empty()) return;
  Disagree(*group_,
           StrCat("no gradient in this step for the parameter ", missing,
                  others > 0 ? StrCat(" and for ", others, " more") : "",
                  ": it took no part in the loss there. If that is meant, name it in "
                  "ReducerOptions::conditional; otherwise use it, or SetTrainable(false)"));
}

void Reducer::OnError() noexcept {
  try {
    if (!ended_well_) AbortGroups();
    WaitForLanes();
  } catch (...) {  // the error that is under way says more
  }
  Reset();
}

void Reducer::Reset() {
  in_backward_ = sync_ = ended_well_ = joined_ = false;
  micro_ = 0;
  std::fill(uses_.begin(), uses_.end(), uint8_t{kUnused});
}

void Reducer::Join() {
  try {
    LS_CHECK(micro_ == 0 && no_sync_ == 0, "Join comes in place of a step's backwards, after ",
             micro_, " of them");
    if (order_) micro_ = options_.accum - 1;
    if (buckets_.empty()) MakePlan({});
    for (const auto& p : parameters_) p->leaf().ZeroGrad();
    BeginMicroStep();
    joined_ = true;
    std::fill(uses_.begin(), uses_.end(), uint8_t{kJoined});
    BeginSync();
    for (size_t p = 0; p < parameters_.size(); ++p) {
      FillAbsent(p);
      MarkReady(p);
    }
    FinishSync();
  } catch (...) {
    OnError();
    throw;
  }
}

std::string Reducer::LocateNonFinite() {
  if (!group_ || ranks() == 1) return "";
  int64_t bad = -1;
  for (const BucketState& b : buckets_) {
    const std::vector<double> sums = b.square_sums.ToVector<double>();
    size_t chunk = 0;
    for (size_t i = 0; i < b.local.size() && bad < 0; ++i) {
      for (int64_t n = GradNormChunks(b.local[i]); n > 0; --n) {
        if (!std::isfinite(sums[chunk++])) bad = b.plan.items[i];
      }
    }
  }
  std::string text;
  const auto rows = GatherValues(*group_, std::span<const int64_t>(&bad, 1));
  for (size_t r = 0; r < rows.size(); ++r) {
    if (rows[r][0] < 0) continue;
    text +=
        StrCat(text.empty() ? "" : ", ", "rank ", r, " ('", parameters_[rows[r][0]]->name(), "')");
  }
  return text;
}

}  // namespace lockstep::dist
