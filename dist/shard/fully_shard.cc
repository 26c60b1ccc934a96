#include "dist/shard/fully_shard.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "core/autograd/engine.h"
#include "core/meta_memory.h"
#include "core/slots.h"
#include "core/step_state.h"
#include "dist/data_parallel/gradient_buckets.h"
#include "dist/expert/expert_exchange.h"
#include "dist/groups/agreement.h"
#include "nn/mixture/mixture_of_experts.h"
#include "nn/residual_stream.h"

namespace lockstep::dist {
namespace {

// Instead of a module: FullyShard::Whole shows the units.
constexpr size_t kWhole = std::numeric_limits<size_t>::max();

ProcessGroup* Checked(const ShardGroups& groups, const Module& module) {
  const int64_t shards = SizeOf(groups.shard), copies = SizeOf(groups.replicate);
  LS_CHECK(SizeOf(groups.all) == shards * copies, "of ", SizeOf(groups.all), " ranks, ", shards,
           " share out a model, of which there are ", copies,
           " copies: the groups do not fit together");
  LS_CHECK(RankIn(groups.all) == RankIn(groups.replicate) * shards + RankIn(groups.shard), "rank ",
           RankIn(groups.all), " has shard ", RankIn(groups.shard), " of copy ",
           RankIn(groups.replicate), ": ranks that share out a copy must be neighbours");
  // Throws where the user asked for another one, before there are groups.
  for (const auto& p : module.Parameters()) (void)SumDType(*p);
  return groups.all;
}

ShardOptions Completed(ShardOptions options, const ShardGroups& groups) {
  if (options.micro_batches == 0) options.micro_batches = SizeOf(groups.all);
  if (!options.unit) {
    options.unit = [](const Module& m) { return dynamic_cast<const nn::Block*>(&m) != nullptr; };
  }
  return options;
}

// Other stages of a pipeline that this rank has may have added it.
std::shared_ptr<FlatExchange> ExchangeOf(MeshParts& parts, std::shared_ptr<ProcessGroup> group) {
  auto exchange = parts.Find<FlatExchange>();
  if (!exchange) parts.Add(exchange = std::make_shared<FlatExchange>(std::move(group)));
  return exchange;
}

// Where gradients of tied weights are kept apart.
std::unique_ptr<const TiedGradients> TiedIn(Module& module, const ShardOptions& options) {
  const bool apart = options.sum == GradientSum::kOrdered && options.micro_batches > 1;
  return apart ? std::make_unique<const TiedGradients>(module) : nullptr;
}

bool Contains(const std::vector<size_t>& list, size_t i) {
  return std::ranges::find(list, i) != list.end();
}

// All ranks begin with rank 0's values; of experts with those of the first rank that has them.
void Align(ProcessGroup* all, const Module& module, int64_t experts) {
  const bool shares = std::ranges::any_of(module.Parameters(),
                                          [](const auto& p) { return IsOfDistributedExperts(*p); });
  LS_CHECK(experts > 1 || !shares,
           "FullyShard of a model whose experts ranks share out needs their number: set "
           "ShardOptions::experts to that of ShareExperts");
  if (!all || all->device().is_meta()) return;
  CheckSameShape(*all, module);
  std::vector<Tensor> whole, of_experts;
  for (const auto& p : module.Parameters()) {
    // Another stage of this rank may have the weight as well, and have shared it out.
    if (p->layout().range) continue;
    (IsOfDistributedExperts(*p) ? of_experts : whole).push_back(p->value().Detach());
  }
  for (const auto& [name, buffer] : module.NamedBuffers()) whole.push_back(buffer);
  for (auto* tensors : {&whole, &of_experts}) {
    std::erase_if(*tensors, [](const Tensor& t) { return t.device().is_meta(); });
  }
  BroadcastTensors(*all, whole);
  if (experts == 1) return;
  // Those that have the same experts.
  BroadcastTensors(*all->Split(all->name() + ".same_experts", EveryNth(*all, experts)), of_experts);
}

}  // namespace

FullyShard::FullyShard(const ShardGroups& groups, Module& module, ShardOptions options,
                       std::shared_ptr<ProcessGroup> control)
    : DataRanks(Checked(groups, module), std::move(control)),
      module_(module),
      parameters_(module.Parameters()),
      options_(Completed(std::move(options), groups)),
      tied_(TiedIn(module, options_)),
      replicate_(SizeOf(groups.replicate) > 1 ? groups.replicate : nullptr),
      shards_(SizeOf(groups.shard)),
      shard_rank_(RankIn(groups.shard)),
      copies_(SizeOf(groups.replicate)),
      copy_(RankIn(groups.replicate)),
      plan_(PlanShardSum(options_.micro_batches, {shards_, copies_}, options_.accumulate,
                         options_.sum, options_.experts)),
      micro_order_(plan_.MicroOrder(shard_rank_, copy_)),
      gather_(shards_ > 1 ? groups.shard->Duplicate(groups.shard->name() + ".weights") : nullptr),
      parts_(MeshParts::Of(parameters_)),
      exchange_(ExchangeOf(*parts_, gather_)),
      scatter_(std::make_shared<const FixedOrderPlan>(plan_.within)),
      sum_copies_(OrderedSum(std::make_shared<const FixedOrderPlan>(plan_.across))) {
  LS_CHECK(!parameters_.empty(), "a model without parameters cannot be sharded");
  Align(groups.all, module, options_.experts);
  MeetExperts(groups.shard);
  FindUses(module, /*is_model=*/true);
  CheckUses(module);
  MakeUnits();
  for (size_t use = 0; use < uses_.size(); ++use) AddHooks(use);
  const Device device = groups.all ? groups.all->device() : parameters_[0]->device();
  lanes_.emplace(shards_ > 1 ? groups.shard : nullptr, device, /*lanes=*/1, BucketSum(),
                 std::move(options_.on_span));
}

FullyShard::~FullyShard() {
  exchange_->Close();
  LeaveControl(gather_.get());
}

// ---- Units ----

void FullyShard::MeetExperts(ProcessGroup* shard) {
  const int64_t experts = options_.experts;
  if (experts == 1) return;
  if (const auto axis = parts_->Find<ExpertExchange>()) axis->JoinRanges();
  const ShardSumPlan plan =
      PlanShardSum(options_.micro_batches / experts, {shards_ / experts, copies_},
                   options_.accumulate, options_.sum);
  experts_ = std::make_unique<ExpertRanks>(
      ExpertRanks{.gather = nullptr,
                  .sum = nullptr,
                  .within = plan.within.ranks[shard_rank_ / experts],
                  .scatter = OrderedScatter(std::make_shared<const FixedOrderPlan>(plan.within))});
  const std::string name = shard->name() + ".experts";
  const auto ranks = shard->Split(name, EveryNth(*shard, experts));
  if (ranks->size() == 1) return;
  experts_->gather = ranks->Duplicate(name + ".weights");
  experts_->sum = ranks;
}

void FullyShard::FindUses(Module& module, bool is_model) {
  if (std::ranges::any_of(uses_, [&](const Use& use) { return use.module == &module; })) return;
  const auto parameters = module.Parameters();
  const auto modules = module.NamedModules();
  const bool has_units = std::any_of(modules.begin() + 1, modules.end(),
                                     [&](const auto& m) { return options_.unit(*m.second); });
  if (options_.unit(module) || (!is_model && !has_units)) {
    if (!parameters.empty()) uses_.push_back({.module = &module});
    return;
  }
  std::unordered_set<std::shared_ptr<Parameter>> below;
  for (Module* child : module.Children()) {
    for (auto& p : child->Parameters()) below.insert(std::move(p));
  }
  if (std::ranges::any_of(parameters, [&](const auto& p) { return !below.contains(p); })) {
    uses_.push_back({.module = &module, .encloses = true});
  }
  for (Module* child : module.Children()) FindUses(*child, /*is_model=*/false);
}

// A mixture that routes chunks of sequences copies its weights before its children run, which would
// gather them too late.
void FullyShard::CheckUses(Module& model) const {
  for (const auto& [path, module] : model.NamedModules()) {
    const auto* mixture = dynamic_cast<const nn::MixtureOfExperts*>(module);
    if (mixture == nullptr || !mixture->has_chunks()) continue;
    for (const auto& [inner_path, inner] : module->NamedModules()) {
      const bool is_unit =
          inner != module && std::ranges::find(uses_, inner, &Use::module) != uses_.end();
      LS_CHECK(!is_unit, "FullyShard: the unit '", path, path.empty() ? "" : ".", inner_path,
               "' is within a mixture that routes chunks of sequences (ParallelizeContext), whose "
               "weights are read before it is gathered: let ShardOptions::unit pick the whole "
               "mixture, or its block");
    }
  }
}

// By which of the uses each parameter in `list` of their modules is used. What no module has that
// encloses no others belongs to the innermost one that has it.
std::unordered_map<const Parameter*, std::vector<size_t>> FullyShard::UsesOf(
    const std::function<std::vector<std::shared_ptr<Parameter>>(Module&)>& list) const {
  std::unordered_map<const Parameter*, std::vector<size_t>> uses_of;
  for (size_t use = 0; use < uses_.size(); ++use) {
    if (uses_[use].encloses) continue;
    for (const auto& p : list(*uses_[use].module)) uses_of[p.get()].push_back(use);
  }
  for (size_t use = uses_.size(); use-- > 0;) {
    if (!uses_[use].encloses) continue;
    for (const auto& p : list(*uses_[use].module)) {
      if (uses_of[p.get()].empty()) uses_of[p.get()] = {use};
    }
  }
  return uses_of;
}

void FullyShard::MakeUnits() {
  const auto uses_of = UsesOf([](Module& module) { return module.Parameters(); });
  const auto makers_of = UsesOf(GradientParameters);
  // What is gathered or scattered together; a tied weight, and each of its uses, is by itself.
  using Kind = std::tuple<std::vector<size_t>, size_t, bool, DType, bool>;
  std::map<Kind, std::vector<std::shared_ptr<Parameter>>> by_kind;
  std::unordered_map<const Parameter*, size_t> alone;
  std::unordered_map<const Parameter*, std::shared_ptr<nn::TiedWeight>> apart;
  for (const auto& tied : UsesApart()) {
    Parameter& use = *tied->apart();
    // It must not keep the weight, which is about to be cut.
    use.SetValue(WithoutMemory(use.part().shape(), use.part().dtype()));
    alone.emplace(tied->weight().get(), alone.size() + 1);
    alone.emplace(&use, alone.size() + 1);
    const auto makers = makers_of.find(&use);
    if (makers == makers_of.end()) continue;  // the use is in another module
    apart[&use] = tied;
    by_kind[{makers->second, alone.at(&use), true, tied->weight()->part().dtype(), false}] = {
        tied->apart()};
  }
  for (const auto& p : parameters_) {
    const auto it = alone.find(p.get());
    const size_t index = it == alone.end() ? 0 : it->second;
    by_kind[{uses_of.at(p.get()), index, p->trainable(), p->part().dtype(),
             IsOfDistributedExperts(*p)}]
        .push_back(p);
  }
  BackwardObserver* const observer = options_.observes ? this : nullptr;
  for (auto& [kind, parameters] : by_kind) {
    const std::shared_ptr<Parameter> first = parameters[0];
    const auto makers = makers_of.find(first.get());
    for (const size_t use : std::get<0>(kind)) uses_[use].units.push_back(units_.size());
    const bool of_experts = std::get<4>(kind);
    units_.push_back(
        {.memory = apart.contains(first.get())
                       ? std::make_unique<ShardUnit>(apart[first.get()]->weight(), first, shards_,
                                                     shard_rank_, copies_, observer)
                       : std::make_unique<ShardUnit>(
                             std::move(parameters), (of_experts ? experts_->gather : gather_).get(),
                             copies_, parts_, *exchange_, observer),
         .uses = std::get<0>(kind),
         .makers = makers == makers_of.end() ? std::vector<size_t>() : makers->second,
         .of_experts = of_experts});
  }
}

// Of tied weights, whoever keeps them apart.
std::vector<std::shared_ptr<nn::TiedWeight>> FullyShard::UsesApart() const {
  std::vector<std::shared_ptr<nn::TiedWeight>> uses;
  for (const TiedGradients* tied : {options_.apart, tied_.get()}) {
    if (tied != nullptr) uses.insert(uses.end(), tied->uses().begin(), tied->uses().end());
  }
  return uses;
}

void FullyShard::AddHooks(size_t use) {
  const auto hook = [this, use](void (FullyShard::*f)(size_t)) {
    return [alive = std::weak_ptr(alive_), use, f](Module& module) {
      const auto self = alive.lock();
      LS_CHECK(self != nullptr, "the FullyShard that gathers the weights of '", module.path(),
               "' has been destroyed: keep it alive as long as the model is used");
      ((*self)->*f)(use);
    };
  };
  Module& module = *uses_[use].module;
  module.AddPreForwardHook(hook(&FullyShard::PreForward));
  module.AddPostForwardHook(hook(&FullyShard::PostForward));
  module.AddPreBackwardHook(hook(&FullyShard::PreBackward));
  module.AddPostBackwardHook(hook(&FullyShard::PostBackward));
}

// ---- Weights ----

void FullyShard::StartGather(size_t use) {
  if (use >= uses_.size()) return;
  for (const size_t u : uses_[use].units) StartGather(units_[u]);
}

void FullyShard::StartGather(Unit& unit) {
  WorkPtr work = unit.memory->StartGather(GatherGroup(unit));
  if (!options_.on_gather) return;
  if (work) started_.push_back({std::move(work), &unit});
  ReportGathers();
}

void FullyShard::GatherUnit(Unit& unit) {
  StartGather(unit);
  unit.memory->Await();
}

// Those that have ended; a GPU may be far behind.
void FullyShard::ReportGathers() {
  for (; !started_.empty() && started_.front().work->Done(); started_.pop_front()) {
    const auto& [work, unit] = started_.front();
    const auto span = work->span();
    if (!span) continue;
    options_.on_gather({.module = uses_[unit->uses.front()].module->path(),
                        .bytes = unit->memory->weight_bytes(),
                        .begin = span->begin,
                        .end = span->end});
  }
}

void FullyShard::PreForward(size_t use) {
  if (!broken_.empty()) throw Error(broken_);
  StartGather(use);
  for (const size_t u : uses_[use].units) {
    GatherUnit(units_[u]);
    units_[u].memory->Show(use);
  }
  if (!InBackward()) StartGather(use + 1);
}

// Between its uses, and from the last module's forward to its backward, a unit is kept.
bool FullyShard::KeepsAfterForward(const Unit& unit, size_t use) const {
  if (InBackward() || options_.reshard == Reshard::kAfterStep || use != unit.uses.back()) {
    return true;
  }
  if (!GradEnabled()) return false;
  return options_.reshard != Reshard::kAfterForward || use + 1 == uses_.size() ||
         uses_[use].encloses;
}

void FullyShard::PostForward(size_t use) {
  for (const size_t u : uses_[use].units) {
    units_[u].memory->Hide(use);
    if (!KeepsAfterForward(units_[u], use)) units_[u].memory->Release();
  }
}

void FullyShard::PreBackward(size_t use) {
  for (const size_t u : uses_[use].units) {
    Unit& unit = units_[u];
    GatherUnit(unit);
    unit.memory->Show(use);  // to forwards that run again
    if (unit.pending == 0 || !Contains(unit.makers, use)) continue;
    if (summed_ == &unit) Settle();  // the previous micro-batch's
    unit.memory->TakeGradients();
  }
  if (use > 0) StartGather(use - 1);
}

void FullyShard::PostBackward(size_t use) {
  for (const size_t u : uses_[use].units) {
    units_[u].memory->Hide(use);
    const bool last = use == units_[u].uses.front();
    if (last && options_.reshard != Reshard::kAfterStep) units_[u].memory->Release();
  }
}

FullyShard::Whole::Whole(FullyShard& sharded) : sharded_(sharded) {
  try {
    for (Unit& unit : sharded_.units_) {
      sharded_.GatherUnit(unit);
      unit.memory->Show(kWhole);
    }
  } catch (...) {
    for (Unit& unit : sharded_.units_) unit.memory->Hide(kWhole);
    throw;
  }
}

void FullyShard::Whole::Keep() {
  for (Unit& unit : sharded_.units_) unit.memory->KeepWritten();
}

FullyShard::Whole::~Whole() {
  for (Unit& unit : sharded_.units_) unit.memory->Hide(kWhole);
  try {
    Keep();
    for (Unit& unit : sharded_.units_) unit.memory->Release();
  } catch (const std::exception& e) {
    sharded_.GiveUp(StrCat("what was written to the whole weights is lost: ", e.what()));
  }
}

void FullyShard::GiveUp(const std::string& reason) noexcept {
  broken_ = reason;
  if (gather_) gather_->Abort(reason);
}

void FullyShard::CheckWeights(const std::string& when) {
  if (const NamedTensors buffers = module_.NamedBuffers(); control() && !buffers.empty()) {
    CheckSameBits(*control(), "the buffers " + when, buffers);
  }
  if (!replicate_) return;
  NamedTensors parts;
  for (const auto& p : parameters_) parts.emplace_back(p->name(), p->value().Detach());
  CheckSameBits(*replicate_, "the weights " + when, parts);
}

std::string FullyShard::LocateNonFinite(int64_t ago) {
  if (!control()) return "";
  int64_t bad = -1;
  for (int64_t p = 0; p < std::ssize(parameters_) && bad < 0; ++p) {
    for (const Unit& unit : units_) {
      if (unit.memory->WasNonFinite(*parameters_[p], ago)) bad = p;
    }
  }
  return NameByRank(*control(), bad, parameters_);
}

// ---- Gradients ----

void FullyShard::CheckBegin(const BackwardPlan& plan) const {
  LS_CHECK(!in_backward_, "backward was called within another backward through a sharded model");
  if (size() > 1) CheckShares(plan, rank(), size());
  for (const Unit& unit : units_) {
    const Parameter* const p = unit.is_summed() ? unit.memory->WithGradient() : nullptr;
    LS_CHECK(p == nullptr, "the parameter '", p->name(),
             "' already has a gradient at the start of the step: call ZeroGrad after each update. "
             "A step has ",
             micro_order_.size(), " micro-batches on this rank (ShardOptions::micro_batches)");
  }
  // The engine has only seen the leaves of the whole weights, which no optimizer knows.
  for (const auto& p : parameters_) {
    const std::shared_ptr<Leaf> leaf(std::shared_ptr<void>(), &p->leaf());
    if (!p->trainable() || plan.nodes.empty()) continue;
    CheckBackward({.first = plan.nodes.back()->sequence(),
                   .last = plan.nodes.front()->sequence(),
                   .leaves = std::span(&leaf, 1),
                   .evaluation = true});  // the engine has checked that
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
}

void FullyShard::OnLeafReady(Leaf& leaf) {
  const auto it = unit_of_.find(&leaf);
  if (it == unit_of_.end()) return;
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
    sum = adds ? Tensor::EmptyLike(to) : to;
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
  LS_INVARIANT(unlaunched_ == 0, "the gradients of ", unlaunched_, " units were not summed");
  in_backward_ = false;
  if (!is_last()) {
    ++micro_;
    return;
  }
  times_ = lanes_->Finish();
  if (gather_ && gather_->device().is_cuda()) gather_->CheckInStep();
  if (experts_ && experts_->gather && experts_->gather->device().is_cuda()) {
    experts_->gather->CheckInStep();
  }
  ReportGathers();
  Settle();
  for (const Unit& unit : units_) {
    if (unit.is_summed()) unit.memory->ShareGradients(across().terms.back());
    if (options_.reshard == Reshard::kAfterStep) unit.memory->Release();
  }
  if (tied_) tied_->Add();
  micro_ = 0;
}

void FullyShard::OnError() noexcept {
  const auto abort = [](ProcessGroup* group) {
    if (group) group->Abort(StrCat("backward failed on rank ", group->world_rank()));
  };
  if (experts_) abort(experts_->sum.get());  // for which the lane may be waiting
  lanes_->Abort();
  for (ProcessGroup* group : {gather_.get(), replicate_}) abort(group);
  if (experts_) abort(experts_->gather.get());
  for (size_t use = 0; use < uses_.size(); ++use) {
    for (const size_t u : uses_[use].units) units_[u].memory->Hide(use);
  }
  summed_ = nullptr;
  in_backward_ = false;
  micro_ = 0;
}

}  // namespace lockstep::dist
