#include "models/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>
#include <vector>

#include "core/engine.h"
#include "core/meta_memory.h"
#include "models/format.h"
#include "models/gpt.h"
#include "optim/clip.h"

namespace lockstep::models {
namespace {

constexpr std::array<std::pair<const char*, int64_t MemoryKinds::*>, 5> kKinds = {{
    {"parameters", &MemoryKinds::parameters},
    {"gradients", &MemoryKinds::gradients},
    {"optimizer", &MemoryKinds::optimizer},
    {"activations", &MemoryKinds::activations},
    {"workspace", &MemoryKinds::workspace},
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
    for (const Entry& e : events_) {
      const Block& block = blocks_[e.block];
      now.*block.kind += e.taken ? block.bytes : -block.bytes;
      for (const auto& [name, kind] : kKinds) {
        plan.largest.*kind = std::max(plan.largest.*kind, now.*kind);
      }
      if (now.total() > plan.peak.total()) plan.peak = now;
    }
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
  optimizer.BeginStep(state, 0, 1e-3);
  const size_t begin = diary.Now();
  {
    const TrainingScope scope(state);
    // From the second on, micro-steps are alike.
    for (int64_t a = 0; a < std::min<int64_t>(o.grad_accum, 2); ++a) {
      const size_t forward = diary.Now();
      const Tensor ids = Tensor::Empty({o.batch_size, o.window}, DType::kI32, kMeta);
      const Tensor targets = Tensor::EmptyLike(ids);
      const Tensor sum = model.Loss(ids, targets);
      diary.Declare(forward, &MemoryKinds::activations);
      Backward(sum, Tensor::Full(sum.shape(), 1, sum.dtype(), sum.device()));
    }
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

}  // namespace

MemoryPlan PlanMemory(const MemoryPlanOptions& o) {
  Diary diary;
  const std::shared_ptr<LanguageModel> model = o.model();
  diary.Declare(0, &MemoryKinds::parameters);
  const size_t optimizer_begin = diary.Now();
  const std::unique_ptr<optim::Optimizer> optimizer = o.optimizer(*model);
  diary.Declare(optimizer_begin, &MemoryKinds::optimizer);
  StepState state(kMeta, 1);
  diary.Begin();
  // State that appears with the first step is there in the second.
  for (int i = 0; i < 2; ++i) Step(o, *model, *optimizer, state, diary);
  return diary.Plan();
}

MemoryPlan PlanMemory(const RunSetup& setup) {
  return PlanMemory(
      {.model =
           [&] {
             auto model = std::make_shared<Gpt>(setup.model);
             MaterializeFor(setup, kMeta, *model);
             return model;
           },
       .optimizer = [&](LanguageModel& model) { return MakeOptimizer(setup.config.optim, model); },
       .batch_size = setup.config.train.batch_size,
       .window = setup.window,
       .grad_accum = setup.grad_accum,
       .clip = setup.config.optim.clip});
}

std::string Summary(const MemoryPlan& plan) {
  std::string s = FormatBytes(static_cast<double>(plan.peak.total()));
  const char* separator = " at the peak of a step: ";
  for (const auto& [name, kind] : kKinds) {
    s += fmt::format("{}{} {}", separator, name, FormatBytes(static_cast<double>(plan.peak.*kind)));
    separator = ", ";
  }
  return s;
}

std::string Table(const MemoryPlan& plan) {
  std::string s = fmt::format("  {:<12}{:>14}{:>14}\n", "memory", "at the peak", "at most");
  for (const auto& [name, kind] : kKinds) {
    s += fmt::format("  {:<12}{:>14}{:>14}\n", name,
                     FormatBytes(static_cast<double>(plan.peak.*kind)),
                     FormatBytes(static_cast<double>(plan.largest.*kind)));
  }
  s += fmt::format("  {:<12}{:>14}", "together",
                   FormatBytes(static_cast<double>(plan.peak.total())));
  return s;
}

}  // namespace lockstep::models
