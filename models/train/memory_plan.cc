#include "models/train/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>
#include <vector>

#include "core/autograd/engine.h"
#include "core/meta_memory.h"
#include "core/size_class.h"
#include "dist/data_parallel/reducer_memory.h"
#include "models/gpt/gpt.h"
#include "models/report/format.h"
#include "models/train/machine_memory.h"
#include "models/train/run_ranks.h"
#include "optim/clip.h"

namespace lockstep::models {
namespace {

constexpr std::array<std::pair<const char*, int64_t MemoryKinds::*>, 6> kKinds = {{
    {"parameters", &MemoryKinds::parameters},
    {"gradients", &MemoryKinds::gradients},
    {"optimizer", &MemoryKinds::optimizer},
    {"activations", &MemoryKinds::activations},
    {"workspace", &MemoryKinds::workspace},
    {"communication", &MemoryKinds::communication},
}};

// A diary of allocations. What kind an allocation was shows only later, by how long it lived, so
// that the sums are made at the end.
class Diary : public MetaMemoryListener {
 public:
  using Kind = int64_t MemoryKinds::*;

  void OnAllocate(const void* id, int64_t bytes) override {
    live_[id] = blocks_.size();
    events_.push_back({blocks_.size(), true});
    blocks_.push_back({bytes, &MemoryKinds::workspace});
  }
  void OnFree(const void* id) override {
    const auto it = live_.find(id);
    if (it == live_.end()) return;
    events_.push_back({it->second, false});
    live_.erase(it);
  }

  // A place in the diary.
  size_t Now() const { return blocks_.size(); }
  // What was taken since then and still lives is of this kind.
  void Declare(size_t since, Kind kind) {
    for (const auto& [id, block] : live_) {
      if (block >= since) blocks_[block].kind = kind;
    }
  }
  // What happened before does not count, but for what is still there.
  void Begin() {
    std::vector<Entry> events;
    for (const auto& [id, block] : live_) events.push_back({block, true});
    events_ = std::move(events);
  }

  MemoryPlan Plan() const {
    MemoryPlan plan;
    MemoryKinds now;
    std::map<int64_t, std::pair<int64_t, int64_t>> classes;  // of sizes: blocks in use, at most
    for (const Entry& e : events_) {
      const Block& block = blocks_[e.block];
      auto& [used, most] = classes[CpuSizeClass(block.bytes)];
      used += e.taken ? 1 : -1;
      most = std::max(most, used);
      now.*block.kind += e.taken ? block.bytes : -block.bytes;
      for (const auto& [name, kind] : kKinds) {
        plan.largest.*kind = std::max(plan.largest.*kind, now.*kind);
      }
      if (now.total() > plan.peak.total()) plan.peak = now;
    }
    for (const auto& [size, blocks] : classes) plan.reserved += size * blocks.second;
    return plan;
  }

 private:
  struct Block {
    int64_t bytes;
    Kind kind;
  };
  struct Entry {
    size_t block;
    bool taken;
  };
  std::unordered_map<const void*, size_t> live_;
  std::vector<Block> blocks_;
  std::vector<Entry> events_;
};

// Trainer::Step without what needs values: the loss, and whether it is finite.
void Step(const MemoryPlanOptions& o, LanguageModel& model, optim::Optimizer& optimizer,
          StepState& state, Diary& diary) {
  const auto training = optimizer.BeginStep(state, 0, 1e-3);
  const size_t begin = diary.Now();
  // From the second on, micro-steps are alike.
  for (int64_t a = 0; a < std::min<int64_t>(o.grad_accum, 2); ++a) {
    const size_t forward = diary.Now();
    training.SetFirstSample(a * o.batch_size);
    const Tensor ids = Tensor::Empty({o.batch_size, o.window}, DType::kI32, kMeta);
    const Tensor targets = Tensor::EmptyLike(ids);
    const Tensor sum = model.Loss(ids, targets);
    diary.Declare(forward, &MemoryKinds::activations);
    Backward(sum, Tensor::Full(sum.shape(), 1, sum.dtype(), sum.device()));
  }
  // All else is gone.
  diary.Declare(begin, &MemoryKinds::gradients);
  optim::ClipGradNorm(model.Parameters(), o.clip, state);
  const size_t update = diary.Now();
  optimizer.Step(state);
  model.ZeroGrad();
  // What stays is no gradient, but a table that a module keeps, or state that came with the step.
  diary.Declare(begin, &MemoryKinds::workspace);
  diary.Declare(update, &MemoryKinds::optimizer);
}

// Takes what a Reducer takes, as long as the result lives, and lets gradients be written there.
std::vector<Tensor> TakeBuckets(const MemoryPlanOptions& o, LanguageModel& model, Diary& diary) {
  std::vector<Tensor> taken;
  if (!o.reducer) return taken;
  const auto parameters = model.Parameters();
  const dist::ReducerMemory memory =
      dist::PlanReducerMemory(parameters, *o.reducer, o.ranks, o.device);
  std::vector<std::shared_ptr<Parameter>> ready;  // the order of a bucket's items
  for (const auto& p : parameters) {
    if (p->trainable()) ready.insert(ready.begin(), p);
  }
  const size_t gradients = diary.Now();
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
  diary.Declare(gradients, &MemoryKinds::gradients);
  const size_t others = diary.Now();
  for (const dist::Bucket& bucket : memory.buckets) {
    for (int64_t i = 1; i < memory.buffers; ++i)
      taken.push_back(Tensor::Empty({bucket.numel}, bucket.dtype, kMeta));
  }
  taken.push_back(Tensor::Empty({memory.staging_bytes}, DType::kU8, kMeta));
  diary.Declare(others, &MemoryKinds::communication);
  return taken;
}

}  // namespace

MemoryPlan PlanMemory(const MemoryPlanOptions& o) {
  Diary diary;
  const std::shared_ptr<LanguageModel> model = o.model();
  diary.Declare(0, &MemoryKinds::parameters);
  const size_t optimizer_begin = diary.Now();
  const std::unique_ptr<optim::Optimizer> optimizer = o.optimizer(*model);
  diary.Declare(optimizer_begin, &MemoryKinds::optimizer);
  const std::vector<Tensor> buckets = TakeBuckets(o, *model, diary);
  StepState state(kMeta, 1);
  diary.Begin();
  // State that appears with the first step is there in the second.
  for (int i = 0; i < 2; ++i) Step(o, *model, *optimizer, state, diary);
  return diary.Plan();
}

bool SumsGradients(const RunSetup& setup) {
  return setup.ranks > 1 || setup.config.dist.reduction != "fast";
}

MemoryPlan PlanMemory(const RunSetup& setup) {
  std::optional<dist::ReducerOptions> reducer;
  if (SumsGradients(setup))
    reducer = ToReducerOptions(setup.config.dist, setup.micro_batches, /*trace=*/nullptr);
  MemoryPlan plan = PlanMemory(
      {.model =
           [&] {
             auto model = std::make_shared<Gpt>(setup.model);
             MaterializeFor(setup, kMeta, *model);
             return model;
           },
       .optimizer = [&](LanguageModel& model) { return MakeOptimizer(setup.config.optim, model); },
       .batch_size = setup.config.train.batch_size,
       .window = setup.window,
       .grad_accum = (setup.micro_batches + setup.ranks - 1) / setup.ranks,
       .clip = setup.config.optim.clip,
       .reducer = std::move(reducer),
       .ranks = setup.ranks,
       .device = setup.device});
  if (setup.device.is_cpu()) plan.program = ResidentBytes();
  return plan;
}

std::string Summary(const MemoryPlan& plan) {
  const auto bytes = [](int64_t n) { return FormatBytes(static_cast<double>(n)); };
  std::string s = bytes(plan.peak.total());
  const char* separator = " at the peak of a step: ";
  for (const auto& [name, kind] : kKinds) {
    if (kind == &MemoryKinds::communication && plan.largest.*kind == 0) continue;
    s += fmt::format("{}{} {}", separator, name, bytes(plan.peak.*kind));
    separator = ", ";
  }
  return s;
}

std::string ProcessSummary(const MemoryPlan& plan) {
  if (plan.program == 0) return "";
  return fmt::format("{} as the allocator rounds, {} with the program and its data",
                     FormatBytes(static_cast<double>(plan.reserved)),
                     FormatBytes(static_cast<double>(plan.resident())));
}

std::string Table(const MemoryPlan& plan) {
  const auto bytes = [](int64_t n) { return FormatBytes(static_cast<double>(n)); };
  std::string s = fmt::format("  {:<14}{:>14}{:>14}\n", "memory", "at the peak", "at most");
  for (const auto& [name, kind] : kKinds) {
    s += fmt::format("  {:<14}{:>14}{:>14}\n", name, bytes(plan.peak.*kind),
                     bytes(plan.largest.*kind));
  }
  s += fmt::format("  {:<14}{:>14}", "together", bytes(plan.peak.total()));
  if (plan.program == 0) return s;
  return s + fmt::format("\n  {:<14}{:>14}\n  {:<14}{:>14}\n  {:<14}{:>14}", "as rounded",
                         bytes(plan.reserved), "program, data", bytes(plan.program), "in all",
                         bytes(plan.resident()));
}

}  // namespace lockstep::models
