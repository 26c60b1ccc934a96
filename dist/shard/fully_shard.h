// Sharded data parallelism: weights, gradients and optimizer state are sharded across ranks
// (Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models",
// 2020; Zhao et al., "PyTorch FSDP", 2023).
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/autograd/leaf.h"
#include "core/module.h"
#include "dist/data_parallel/data_ranks.h"
#include "dist/data_parallel/tied_gradients.h"
#include "dist/shard/shard_sum.h"
#include "dist/shard/shard_unit.h"

namespace lockstep::dist {

// How long the whole weights of a block stay once they were gathered.
enum class Reshard {
  kAfterForward,   // and backward: a block is gathered twice per micro-batch
  kAfterBackward,  // once per micro-batch
  kAfterStep,      // once per step
};

// When the whole weights of a module were gathered (Work::span).
struct GatherSpan {
  using Clock = std::chrono::steady_clock;
  std::string module;  // its path
  int64_t bytes = 0;
  Clock::time_point begin, end;
};

struct ShardOptions {
  Reshard reshard = Reshard::kAfterForward;
  Accumulate accumulate = Accumulate::kShards;
  GradientSum sum = GradientSum::kFast;
  int64_t micro_batches = 0;  // per step, on all ranks together; 0: one per rank
  // Across how many neighbouring ranks ShareExperts split the experts of mixtures; it divides the
  // ranks of a copy. Weights of experts are sharded across the ranks that have the same ones.
  int64_t experts = 1;
  // Which modules are gathered as a whole, ahead of their forward: units. Where empty, the
  // outermost nn::Blocks. A module with units below it leaves it to its children; one without is a
  // unit, unless it is the model itself. Parameters that several units use are one of their own.
  // Nothing within a mixture may be a unit after ParallelizeContext.
  std::function<bool(const Module&)> unit = {};
  std::function<void(const CommunicationSpan&)> on_span = {};  // as ReducerOptions::on_span
  // Called once a gather has ended, on the thread that runs the model; may be empty.
  std::function<void(const GatherSpan&)> on_gather = {};
  // Whether it observes every backward of the model. Otherwise it only sees those that it is given
  // to, as a stage's by dist::Pipeline, whose weight gradients may come later than the rest: then
  // whole gradients of all units are in memory at once.
  bool observes = true;
  // Uses of tied weights that are apart already, in this module or in others of the model, such as
  // other stages; they outlive it. Each of these weights, and each use, is then a unit of its own,
  // cut alike wherever it is. This rank's part of a use's summed gradient becomes that of
  // nn::TiedWeight::gradient_holder(), which the owner of `separate_uses` adds to the weight's.
  // Null: none are.
  const TiedGradients* separate_uses = nullptr;
};

// The levels of ZeRO: what is sharded is the optimizer's state; also the gradients; also the
// weights.
inline ShardOptions Zero1() { return {Reshard::kAfterStep, Accumulate::kWhole}; }
inline ShardOptions Zero2() { return {Reshard::kAfterStep, Accumulate::kShards}; }
inline ShardOptions Zero3() { return {}; }

// The ranks of a step: `shard` are those across which a copy of the model is sharded, `replicate`
// those that have the same shard of another copy. Rank `replicate->rank() * shard->size() +
// shard->rank()` of `all` is in both.
struct ShardGroups {
  ShardGroups(ProcessGroup* all) : all(all), shard(all) {}  // one copy; null: a single rank
  ShardGroups(ProcessGroup* all, ProcessGroup* shard, ProcessGroup* replicate)
      : all(all), shard(shard), replicate(replicate) {}

  ProcessGroup* all;
  ProcessGroup* shard;
  ProcessGroup* replicate = nullptr;
};

// Takes the place of DataParallel where a model is too large for one rank; the rest of a loop stays
// as it is:
//   FullyShard sharded(group.get(), model);
//   model.Materialize(device, seed);                     // only this rank's parts; or before
//   optim::AdamW adamw(model.Parameters());              // state for them
//   ... a step as with DataParallel; ClipGradNorm and every optimizer know of the cuts ...
//
// Between forwards value() and grad() of a parameter are this rank's part of it, one-dimensional.
// Hooks around each unit gather its weights just before they are needed, while the unit before it
// computes, and release them afterwards. Backward writes gradients into a buffer of the unit, which
// a lane sums into the parts while backward continues. Every rank runs the same modules in the same
// order, in evaluation too, and has equally many micro-batches. A parameter is read only within its
// own unit's forward and backward. Parts that are kept on the host (Parameter::KeepOnHost, as
// nn::OffloadWeights says of blocks) come from there ahead of each gather. With kOrdered weights
// have the same bits whatever the options and the number of ranks. A trainable parameter must take
// part in every loss. After ShareExperts, every forward and backward is collective, and the weights
// of experts are sharded across the ranks that have the same ones.
class FullyShard : public DataRanks, public BackwardObserver {
 public:
  // Collective. Cuts all parameters of the module, which Parallelize may have cut before: then what
  // is called whole here is this rank's part of the layers. If they are in memory already, all
  // ranks begin with rank 0's values. If they will not be of one dtype, Materialize them on the
  // meta device first, since what is gathered together is of one. Groups and module must outlive
  // it, and the model can only be used while it lives. `control` is as DataParallel's. Throws
  // ArgumentError and ReplicaError.
  FullyShard(const ShardGroups& groups, Module& module, ShardOptions options = {},
             std::shared_ptr<ProcessGroup> control = nullptr);
  ~FullyShard() override;  // collective

  // Collective. Within its scope every parameter's value() is the whole, on all ranks, for
  // inspection, saving and loading: what all ranks write to it is kept. Takes the memory of the
  // whole model.
  class Whole {
   public:
    explicit Whole(FullyShard& sharded);
    // Keeps what has been written so far; throws if that fails.
    void Keep();
    // Keeps the rest. Where that fails, it ends the ranks' work as ProcessGroup::Abort does, and
    // the next forward of this rank throws the reason: call Keep before, to have it at once.
    ~Whole();
    Whole(const Whole&) = delete;
    Whole& operator=(const Whole&) = delete;

   private:
    FullyShard& sharded_;
  };

  const std::vector<int64_t>& micro_order() const override { return micro_order_; }
  int64_t micro_batches() const override { return options_.micro_batches; }
  void BeginMicroBatch(bool) override {}  // backwards are counted
  const CommunicationTimes& times() const override { return times_; }
  // Compares the parts of the copies, and the buffers, which all ranks have whole.
  void CheckWeights(const std::string& when) override;
  std::string LocateNonFinite(int64_t ago = 0) override;

  void OnBegin(const BackwardPlan& plan) override;
  void OnLeafReady(Leaf& leaf) override;
  void OnEnd() override;
  void OnError() noexcept override;

 private:
  // A module around whose forward and backward there are hooks.
  struct Use {
    Module* module = nullptr;
    bool encloses = false;  // others run within it
    std::vector<size_t> units{};
  };
  struct Unit {
    std::unique_ptr<ShardUnit> memory;
    std::vector<size_t> uses;
    int64_t pending = 0;  // gradients that the current backward has yet to finish
    // Uses whose backward makes its gradients; some, if it is tied; none, if that is done
    // elsewhere.
    std::vector<size_t> makers{};
    bool of_experts = false;  // split across ranks
    bool is_summed() const { return memory->trainable() && !makers.empty(); }
  };
  // The ranks of a copy that have the same experts. Groups are null for a single rank.
  struct ExpertRanks {
    std::shared_ptr<ProcessGroup> gather, sum;  // for weights; in the lane, for gradients
    FixedOrderPlan::Rank within;
    OrderedScatter scatter;
  };

  void MeetExperts(ProcessGroup* shard);
  void FindUses(Module& module, bool is_model);
  void CheckUses(Module& model) const;
  void MakeUnits();
  std::vector<std::shared_ptr<nn::TiedWeight>> SeparateUses() const;
  std::unordered_map<const Parameter*, std::vector<size_t>> UsesOf(
      const std::function<std::vector<std::shared_ptr<Parameter>>(Module&)>& list) const;
  void AddHooks(size_t use);
  void PreForward(size_t use);
  void PostForward(size_t use);
  void PreBackward(size_t use);
  void PostBackward(size_t use);
  void StartGather(size_t use);
  void StartGather(Unit& unit);
  void GatherUnit(Unit& unit);
  void ReportGathers();
  bool KeepsAfterForward(const Unit& unit, size_t use) const;
  void CheckBegin(const BackwardPlan& plan) const;
  void LaunchReady();
  void Launch(Unit& unit);
  std::vector<WorkPtr> SumGradients(ProcessGroup* group, const Unit& unit,
                                    const FixedOrderPlan::MicroStep& step, bool is_last);
  void Settle();
  void GiveUp(const std::string& reason) noexcept;

  ProcessGroup* GatherGroup(const Unit& unit) const {
    return unit.of_experts ? experts_->gather.get() : gather_.get();
  }
  // The current micro-batch's step in each of the two sums. Experts have other buffers in the
  // first.
  const FixedOrderPlan::Rank& within() const { return plan_.within.ranks[shard_rank_]; }
  const FixedOrderPlan::Rank& within(const Unit& unit) const {
    return unit.of_experts ? experts_->within : within();
  }
  const FixedOrderPlan::Rank& across() const { return plan_.across.ranks[copy_]; }
  const FixedOrderPlan::MicroStep& first() const {
    return within().micro_steps[micro_ % std::ssize(within().micro_steps)];
  }
  const FixedOrderPlan::MicroStep& first(const Unit& unit) const {
    return within(unit).micro_steps[micro_ % std::ssize(within().micro_steps)];
  }
  const FixedOrderPlan::MicroStep& second() const {
    return across().micro_steps[micro_ / std::ssize(within().micro_steps)];
  }
  bool scatters() const { return &first() == &within().micro_steps.back(); }
  bool is_last() const { return scatters() && &second() == &across().micro_steps.back(); }

  const Module& module_;
  const std::vector<std::shared_ptr<Parameter>> parameters_;
  ShardOptions options_;
  const std::shared_ptr<const TiedGradients> tied_;  // in ordered sums of several micro-batches
  ProcessGroup* const replicate_;                    // null: one copy
  const int64_t shards_, shard_rank_, copies_, copy_;
  const ShardSumPlan plan_;
  const std::vector<int64_t> micro_order_;
  // A duplicate of the shard group for weights, and what comes between steps. Null: one rank.
  std::shared_ptr<ProcessGroup> gather_;
  std::unique_ptr<ExpertRanks> experts_;  // null: all of the model is sharded alike
  const std::shared_ptr<MeshParts> parts_;
  const std::shared_ptr<FlatExchange> exchange_;  // an axis of these
  std::vector<Use> uses_;                         // in the order of the forward
  std::vector<Unit> units_;                       // by their first use

  struct StartedGather {
    WorkPtr work;
    const Unit* unit;
  };
  std::deque<StartedGather> started_;  // that on_gather has yet to hear of
  std::string broken_;                 // why no forward can be right any more

  // State of the current step.
  int64_t micro_ = 0;
  bool in_backward_ = false, has_summed_ = false;  // the latter: in any step
  std::unordered_map<const Leaf*, Unit*> unit_of_;
  size_t unlaunched_ = 0;   // sums begin with the last unit; those before this one have not begun
  Unit* summed_ = nullptr;  // its sum is under way
  CommunicationTimes times_;
  OrderedScatter scatter_;
  BucketSum sum_copies_;
  std::shared_ptr<FullyShard*> alive_ = std::make_shared<FullyShard*>(this);
  std::optional<BucketLanes> lanes_;  // last: its jobs use the others
};

}  // namespace lockstep::dist
