#include "dist/shard/fully_shard.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "dist/data_parallel/gradient_buckets.h"
#include "dist/expert/expert_exchange.h"
#include "dist/groups/agreement.h"
#include "nn/mixture/mixture_of_experts.h"
#include "nn/stream/residual_stream.h"

namespace lockstep::dist {
namespace {

ProcessGroup* Checked(const ShardGroups& groups, const Module& module) {
  const int64_t shards = SizeOf(groups.shard), copies = SizeOf(groups.replicate);
  LS_CHECK(SizeOf(groups.all) == shards * copies, "of ", SizeOf(groups.all), " ranks, ", shards,
           " shard a model, of which there are ", copies,
           " copies: the groups do not fit together");
  LS_CHECK(RankIn(groups.all) == RankIn(groups.replicate) * shards + RankIn(groups.shard), "rank ",
           RankIn(groups.all), " has shard ", RankIn(groups.shard), " of copy ",
           RankIn(groups.replicate), ": ranks that shard a copy must be neighbours");
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

// All ranks begin with rank 0's values; of experts with those of the first rank that has them.
void Align(ProcessGroup* all, const Module& module, int64_t experts) {
  const bool shares = std::ranges::any_of(module.Parameters(),
                                          [](const auto& p) { return IsOfDistributedExperts(*p); });
  LS_CHECK(experts > 1 || !shares,
           "FullyShard of a model whose experts are split across ranks needs the number of these: "
           "set ShardOptions::experts to that of ShareExperts");
  if (!all || all->device().is_meta()) return;
  CheckSameShape(*all, module);
  std::vector<Tensor> whole, of_experts;
  for (const auto& p : module.Parameters()) {
    // Another stage of this rank may have the weight as well, and have sharded it.
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
      tied_(TiedApart(module, options_.sum, options_.micro_batches)),
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
  for (const auto& tied : SeparateUses()) {
    Parameter& use = *tied->gradient_holder();
    // It must not keep the weight, which is about to be cut.
    use.SetValue(WithoutMemory(use.part().shape(), use.part().dtype()));
    alone.emplace(tied->weight().get(), alone.size() + 1);
    alone.emplace(&use, alone.size() + 1);
    const auto makers = makers_of.find(&use);
    if (makers == makers_of.end()) continue;  // the use is in another module
    apart[&use] = tied;
    by_kind[{makers->second, alone.at(&use), true, tied->weight()->part().dtype(), false}] = {
        tied->gradient_holder()};
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

// The uses of tied weights whose gradients are kept apart.
std::vector<std::shared_ptr<nn::TiedWeight>> FullyShard::SeparateUses() const {
  std::vector<std::shared_ptr<nn::TiedWeight>> uses;
  for (const TiedGradients* tied : {options_.separate_uses, tied_.get()}) {
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

}  // namespace lockstep::dist
