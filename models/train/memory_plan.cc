#include "models/train/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/autograd/engine.h"
#include "core/cuda/block_pool.h"
#include "core/meta_memory.h"
#include "core/size_class.h"
#include "dist/data_parallel/reducer_memory.h"
#include "dist/expert/expert_parallel.h"
#include "dist/expert/share_experts.h"
#include "dist/groups/planned_group.h"
#include "kernels/loss_scale/loss_scale.h"
#include "models/gpt/gpt.h"
#include "models/train/machine_memory.h"
#include "models/train/parallelize.h"
#include "models/train/run_ranks.h"
#include "optim/clip.h"

namespace lockstep::models {
namespace {

// The rows of a plan. Some are also names of allocations (MetaMemoryLabel).
constexpr std::array<std::pair<std::string_view, int64_t MemoryKinds::*>, 7> kKinds = {{
    {"parameters", &MemoryKinds::parameters},
    {"gradients", &MemoryKinds::gradients},
    {"optimizer", &MemoryKinds::optimizer},
    {"activations", &MemoryKinds::activations},
    {"buckets", &MemoryKinds::buckets},
    {"gathers", &MemoryKinds::gathers},
    {"workspace", &MemoryKinds::workspace},
}};

// A log of allocations. The kind of one follows from its name, or else from how long it lives, so
// sums are taken at the end.
class AllocationLog : public MetaMemoryListener {
 public:
  using Kind = int64_t MemoryKinds::*;

  void OnAllocate(const void* id, int64_t bytes) override {
    live_[id] = blocks_.size();
    events_.push_back({blocks_.size(), true});
    const char* const name = MetaMemoryLabel::OfThisThread();
    blocks_.push_back({bytes, name ? KindNamed(name) : &MemoryKinds::workspace, name != nullptr});
  }
  void OnFree(const void* id) override {
    const auto it = live_.find(id);
    if (it == live_.end()) return;
    events_.push_back({it->second, false});
    live_.erase(it);
  }

  // A position in the log.
  size_t Now() const { return blocks_.size(); }
  // Sets the kind of the nameless blocks that were allocated since then and are still alive.
  void SetKind(size_t since, Kind kind) {
    for (const auto& [id, block] : live_) {
      if (block >= since && !blocks_[block].named) blocks_[block].kind = kind;
    }
  }
  // Forgets what happened before, except for the blocks that are still alive.
  void Begin() {
    events_.clear();
    for (const auto& [id, block] : live_) events_.push_back({block, true});
    std::ranges::sort(events_, {}, &Entry::block);
  }

  // From now on the allocator's pools are those of a CUDA graph.
  void BeginGraph() { graph_ = events_.size(); }

  MemoryPlan Plan(Device device) const {
    MemoryPlan plan;
    MemoryKinds now;
    for (const Entry& e : events_) {
      const Block& block = blocks_[e.block];
      now.*block.kind += e.taken ? block.bytes : -block.bytes;
      for (const auto& [name, kind] : kKinds) {
        plan.largest.*kind = std::max(plan.largest.*kind, now.*kind);
      }
      if (now.total() > plan.peak.total()) plan.peak = now;
    }
    plan.reserved = device.is_cpu() ? ReservedByCpu() : ReservedByGpu();
    return plan;
  }

 private:
  static Kind KindNamed(std::string_view name) {
    const auto it = std::ranges::find(kKinds, name, [](const auto& kind) { return kind.first; });
    LS_INVARIANT(it != kKinds.end(), "a memory plan has no row ", name);
    return it->second;
  }

  // A freed block serves only its size class.
  int64_t ReservedByCpu() const {
    std::map<int64_t, std::pair<int64_t, int64_t>> classes;  // by size: blocks in use, and the most
    for (const Entry& e : events_) {
      auto& [used, most] = classes[CpuSizeClass(blocks_[e.block].bytes)];
      used += e.taken ? 1 : -1;
      most = std::max(most, used);
    }
    int64_t reserved = 0;
    for (const auto& [size, blocks] : classes) reserved += size * blocks.second;
    return reserved;
  }
  // As if all work were on one stream. What is older than a graph is not in its pools, and counts
  // as requested.
  int64_t ReservedByGpu() const {
    cuda::BlockPool small(true), large(false);
    std::unordered_map<size_t, cuda::BlockPool::Block*> taken;
    int64_t reserved = 0, older = 0;
    for (const Entry& e : std::span(events_).first(graph_)) {
      older += e.taken ? blocks_[e.block].bytes : -blocks_[e.block].bytes;
    }
    for (const Entry& e : std::span(events_).subspan(graph_)) {
      if (blocks_[e.block].bytes == 0) continue;
      const int64_t size = cuda::BlockPool::BlockSize(blocks_[e.block].bytes);
      cuda::BlockPool& pool = cuda::BlockPool::IsSmall(size) ? small : large;
      if (!e.taken) {
        if (auto node = taken.extract(e.block)) pool.Give(node.mapped());
        continue;
      }
      cuda::BlockPool::Block* block = pool.Take(size);
      if (block == nullptr) {
        const int64_t segment = cuda::BlockPool::SegmentSize(size);
        // An address that is never used, and not next to another segment's.
        pool.AddSegment(reinterpret_cast<char*>(2 * reserved), segment);
        reserved += segment;
        block = pool.Take(size);
      }
      taken[e.block] = block;
    }
    for (const auto& [index, block] : taken) {
      (cuda::BlockPool::IsSmall(cuda::BlockPool::BlockSize(blocks_[index].bytes)) ? small : large)
          .Give(block);
    }
    return older + reserved;
  }

  struct Block {
    int64_t bytes;
    Kind kind;
    bool named;
  };
  struct Entry {
    size_t block;
    bool taken;
  };
  std::unordered_map<const void*, size_t> live_;
  std::vector<Block> blocks_;
  std::vector<Entry> events_;
  size_t graph_ = 0;
};

// Trainer::Step without the parts that need values: the loss, and whether it is finite.
void Step(const MemoryPlanOptions& o, LanguageModel& model, optim::Optimizer& optimizer,
          StepState& state, AllocationLog& log) {
  const auto training = optimizer.BeginStep(state, 0, 1e-3);
  const size_t begin = log.Now();
  // All micro-steps after the first are alike, but sharding counts them.
  const int64_t micro_steps = o.shard ? o.grad_accum : std::min<int64_t>(o.grad_accum, 2);
  for (int64_t a = 0; a < micro_steps; ++a) {
    const size_t forward = log.Now();
    training.SetFirstSample(a * o.batch_size);
    const Tensor ids = Tensor::Empty({o.batch_size, o.window}, DType::kI32, kMeta);
    const Tensor targets = Tensor::EmptyLike(ids);
    const Tensor sum = model.Loss(ids, targets);
    log.SetKind(forward, &MemoryKinds::activations);
    const Tensor root = Tensor::Full(sum.shape(), 1, sum.dtype(), sum.device());
    Backward(sum, ops::ScaleRoot(root, state));
  }
  // Nothing else is alive now.
  log.SetKind(begin, &MemoryKinds::gradients);
  optim::ClipGradNorm(model.Parameters(), o.clip, state);
  const size_t update = log.Now();
  optimizer.Step(state);
  model.ZeroGrad();
  // What outlives ZeroGrad is no gradient, but a table that a module keeps, or optimizer state.
  log.SetKind(begin, &MemoryKinds::workspace);
  log.SetKind(update, &MemoryKinds::optimizer);
}

// Allocates what a Reducer does, and has gradients written to its buckets. The result owns them.
std::vector<Tensor> MakeBuckets(const MemoryPlanOptions& o, LanguageModel& model,
                                AllocationLog& log) {
  std::vector<Tensor> taken;
  if (!o.reducer) return taken;
  const auto parameters = dist::GradientParameters(model);
  const dist::ReducerMemory memory =
      dist::PlanReducerMemory(parameters, *o.reducer, o.ranks, o.device);
  std::vector<std::shared_ptr<Parameter>> ready;  // the order of a bucket's items
  for (const auto& p : parameters) {
    if (p->trainable()) ready.insert(ready.begin(), p);
  }
  const size_t gradients = log.Now();
  for (const dist::Bucket& bucket : memory.buckets) {
    taken.push_back(Tensor::Empty({bucket.numel}, bucket.dtype, kMeta));
    for (size_t i = 0; i < bucket.items.size(); ++i) {
      const auto& p = ready[static_cast<size_t>(bucket.items[i])];
      const int64_t size = SizeOf(bucket.dtype), numel = p->value().numel();
      p->leaf().SetDestination(
          Tensor::FromStorage(taken.back().storage().Slice(bucket.offsets[i] * size, numel * size),
                              bucket.dtype, p->value().shape()));
    }
  }
  log.SetKind(gradients, &MemoryKinds::gradients);
  const MetaMemoryLabel label("buckets");
  for (const dist::Bucket& bucket : memory.buckets) {
    for (int64_t i = 1; i < memory.buffers; ++i)
      taken.push_back(Tensor::Empty({bucket.numel}, bucket.dtype, kMeta));
  }
  taken.push_back(Tensor::Empty({memory.staging_bytes}, DType::kU8, kMeta));
  return taken;
}

}  // namespace

MemoryPlan PlanMemory(const MemoryPlanOptions& o) {
  AllocationLog log;
  const std::shared_ptr<LanguageModel> model = o.model();
  std::shared_ptr<dist::ProcessGroup> all, shard, copies;
  std::optional<dist::FullyShard> sharded;
  if (o.shard) {
    all = dist::MakePlannedGroup(static_cast<int>(o.ranks));
    shard = dist::MakePlannedGroup(static_cast<int>(o.shard_ranks));
    copies = dist::MakePlannedGroup(static_cast<int>(o.ranks / o.shard_ranks));
    sharded.emplace(dist::ShardGroups(all.get(), shard.get(), copies.get()), *model, *o.shard);
  }
  log.SetKind(0, &MemoryKinds::parameters);
  const size_t optimizer_begin = log.Now();
  const std::unique_ptr<optim::Optimizer> optimizer = o.optimizer(*model);
  log.SetKind(optimizer_begin, &MemoryKinds::optimizer);
  std::optional<dist::TiedGradients> tied;
  if (o.reducer && dist::KeepsTiedApart(*o.reducer, o.ranks)) tied.emplace(*model);
  const std::vector<Tensor> buckets = MakeBuckets(o, *model, log);
  StepState state(kMeta, 1);
  if (model->Parameters().at(0)->value().dtype() == DType::kF16) state.EnableLossScaling();
  log.Begin();
  // The second step sees the optimizer state that the first one made.
  const size_t steps = log.Now();
  for (int i = 0; i < 2; ++i) {
    if (o.graphs && i == 1) log.BeginGraph();
    Step(o, *model, *optimizer, state, log);
    // What sharding keeps are the gradients of this rank's parts.
    if (o.shard && i == 0) log.SetKind(steps, &MemoryKinds::gradients);
  }
  return log.Plan(o.device);
}

bool IsSharded(const RunSetup& setup) {
  return setup.ranks > 1 && setup.config.parallel.shard != "none";
}

bool SavesParts(const RunSetup& setup) {
  const ParallelOptions& parallel = setup.config.parallel;
  return (IsSharded(setup) || parallel.pp > 1 || parallel.ep > 1) &&
         setup.config.checkpoint.sharded;
}

bool SumsGradients(const RunSetup& setup) {
  const ParallelOptions& parallel = setup.config.parallel;
  return setup.ranks > 1 || parallel.tp > 1 || parallel.cp > 1 || parallel.pp > 1 ||
         setup.config.dist.reduction != "fast";
}

MemoryPlan PlanMemory(const RunSetup& setup) {
  std::optional<dist::ReducerOptions> reducer;
  const ParallelOptions& parallel = setup.config.parallel;
  std::optional<dist::ShardOptions> shard;
  int64_t grad_accum = (setup.micro_batches + setup.ranks - 1) / setup.ranks;
  if (IsSharded(setup)) {
    // All micro-steps after the first are alike, unless the fixed order adds them in turn.
    const bool alike =
        setup.config.dist.reduction == "fast" && setup.micro_batches % setup.ranks == 0;
    if (alike) grad_accum = std::min<int64_t>(grad_accum, 2);
    shard = ToShardOptions(setup.config, alike ? grad_accum * setup.ranks : setup.micro_batches,
                           /*trace=*/nullptr);
  } else if (SumsGradients(setup)) {
    reducer = ToReducerOptions(setup.config.dist, setup.micro_batches, /*trace=*/nullptr);
    if (parallel.ep > 1) {
      reducer->assignment = dist::AssignForExperts(setup.micro_batches, setup.ranks, parallel.ep,
                                                   reducer->sum == dist::GradientSum::kOrdered);
    }
  }
  const int64_t summing = setup.ranks * (SumsContextWithData(setup.config) ? parallel.cp : 1);
  if (reducer) reducer->micro_batches *= summing / setup.ranks;
  const auto planned = [](int64_t ranks) -> std::shared_ptr<dist::ProcessGroup> {
    return ranks > 1 ? dist::MakePlannedGroup(static_cast<int>(ranks)) : nullptr;
  };
  const MeshGroups groups{.context = planned(parallel.cp),
                          .tensor = planned(parallel.tp),
                          .experts = planned(parallel.ep)};
  const ParallelPlan layers{.tensor_parts = parallel.tensor_parts(),
                            .context_pairs = parallel.context_pairs(),
                            .sums_context_with_data = SumsContextWithData(setup.config)};
  MemoryPlan plan = PlanMemory(
      {.model =
           [&] {
             auto model = std::make_shared<Gpt>(setup.model);
             ShareLayers(*model, groups, layers);
             MaterializeFor(setup, kMeta, *model);
             return model;
           },
       .optimizer = [&](LanguageModel& model) { return MakeFreshOptimizer(setup, model); },
       .batch_size = setup.config.train.batch_size,
       .window = setup.window,
       .grad_accum = grad_accum,
       .clip = setup.config.optim.clip,
       .reducer = std::move(reducer),
       .shard = std::move(shard),
       .ranks = summing,
       .shard_ranks = parallel.shard_ranks > 0 ? parallel.shard_ranks : setup.ranks,
       .device = setup.device,
       .graphs =
           setup.device.is_cuda() && setup.config.train.cuda_graphs && !SumsGradients(setup)});
  plan.program = setup.device.is_cpu() ? ResidentBytes() : setup.runtime_bytes;
  if (setup.config.checkpoint.async) {
    const int64_t own = plan.largest.parameters + plan.largest.optimizer;
    const int64_t shards = parallel.shard_ranks > 0 ? parallel.shard_ranks : setup.ranks;
    plan.all_copy = SavesParts(setup);
    plan.snapshot = plan.all_copy      ? own / (setup.ranks / shards)
                    : IsSharded(setup) ? own * parallel.tp * shards
                                       : own * parallel.tp;
  }
  return plan;
}

std::string Summary(const MemoryPlan& plan, ByteFormat format) {
  std::string s = format(static_cast<double>(plan.peak.total()));
  const char* separator = " at the peak of a step: ";
  for (const auto& [name, kind] : kKinds) {
    if (plan.largest.*kind == 0) continue;
    s += fmt::format("{}{} {}", separator, name, format(static_cast<double>(plan.peak.*kind)));
    separator = ", ";
  }
  return s;
}

std::string ProcessSummary(const MemoryPlan& plan) {
  if (plan.program == 0) return "";
  const auto bytes = [](int64_t n) { return FormatBytes(static_cast<double>(n)); };
  std::string s = fmt::format("{} as rounded by the allocator, {} with the program and its data",
                              bytes(plan.reserved), bytes(plan.needed(kCpu)));
  if (plan.snapshot > 0) {
    s += fmt::format(" and {} to write checkpoints from", bytes(plan.snapshot));
  }
  return s;
}

std::string Table(const MemoryPlan& plan, Device device, ByteFormat format) {
  const auto bytes = [&](int64_t n) { return format(static_cast<double>(n)); };
  std::string s = fmt::format("  {:<14}{:>14}{:>14}", "memory", "at the peak", "at most");
  const auto row = [&](std::string_view name, int64_t n) {
    s += fmt::format("\n  {:<14}{:>14}", name, bytes(n));
  };
  for (const auto& [name, kind] : kKinds) {
    if (plan.largest.*kind == 0) continue;
    row(name, plan.peak.*kind);
    s += fmt::format("{:>14}", bytes(plan.largest.*kind));
  }
  row("total", plan.peak.total());
  row("as rounded", plan.reserved);
  if (plan.program == 0) return s;
  row(device.is_cpu() ? "program, data" : "CUDA itself", plan.program);
  if (device.is_cpu() && plan.snapshot > 0) row("for saving", plan.snapshot);
  row("needed", plan.needed(device));
  return s;
}

}  // namespace lockstep::models
