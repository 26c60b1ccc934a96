// Expert parallelism of a model: gradients, the norm, overlap, checks, memory. expert_rows_test has
// the parts that it is made of, tests/plans the same bits of whole runs.
#include "dist/expert/expert_parallel.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>

#include "core/allocator.h"
#include "core/autograd/engine.h"
#include "core/step_state.h"
#include "dist/data_parallel/data_parallel.h"
#include "dist/expert/expert_exchange.h"
#include "dist/expert/share_experts.h"
#include "dist/mesh.h"
#include "dist/tensor/tensor_exchange.h"
#include "kernels/binary/binary.h"
#include "kernels/global_norm/global_norm.h"
#include "kernels/reduce/reduce.h"
#include "nn/linear.h"
#include "nn/mixture/mixture_of_experts.h"
#include "optim/clip.h"
#include "optim/sgd.h"
#include "tests/dist/gpu_ranks.h"
#include "tests/dist/in_process.h"
#include "tests/dist/model_parallel/random_tensors.h"
#include "tests/message_of.h"
#include "tests/sanitized.h"

namespace lockstep::dist {
namespace {

using test::MessageOf;
using testing::ElementsAre;
using testing::HasSubstr;

// ---- A model ----

nn::TransformerOptions Options(int64_t width = 12, int64_t inner = 10) {
  nn::TransformerOptions o{.n_embd = width, .n_head = 1, .init_std = 0.5, .residual_std = 0.5};
  o.mixture = {.n_expert = 8, .n_expert_used = 2, .n_inner = inner, .balance_loss = 0.3};
  return o;
}

constexpr int64_t kTokens = 6, kMicro = 8;

Tensor InputOf(int64_t micro, int64_t width, DType dtype) {
  return Random({1, kTokens, width}, static_cast<int>(100 + micro), dtype);
}

// A group for each axis of a mesh with experts on `ep` ranks.
struct Groups {
  Groups(ProcessGroup& all, int ep) {
    const Mesh mesh({.ep = ep}, all.rank(), all.size());
    experts = all.Split(mesh.GroupName({"ep"}), mesh.RanksAlong({"ep"}));
    copies = all.Split(mesh.GroupName({"edp"}), mesh.RanksAlong({"edp"}));
  }
  ProcessGroup* others() const { return copies->size() > 1 ? copies.get() : nullptr; }

  std::shared_ptr<ProcessGroup> experts, copies;
};

struct Result {
  std::map<std::string, std::vector<double>> gradients;  // whole
  double norm = 0;
};

// The gradients of a step of kMicro micro-batches.
Result GradientsOn(int ranks, int ep, GradientSum sum) {
  Result result;
  RunInProcess(ranks, [&](ProcessGroup& all) {
    const Groups groups(all, ep);
    nn::MixtureOfExperts model(Options(/*width=*/40, /*inner=*/54));
    ShareExperts(model, groups.experts);
    model.Materialize(kCpu, 3, DType::kF64);
    const ReducerOptions options{.sum = sum, .micro_batches = kMicro};
    std::unique_ptr<DataRanks> parallel;
    if (ep > 1) {
      parallel = std::make_unique<ExpertParallel>(&all, groups.others(), model, options);
    } else {
      parallel = std::make_unique<DataParallel>(&all, model, options);
    }
    optim::Sgd sgd(model.Parameters());
    StepState state(kCpu, 1);
    const auto training = sgd.BeginStep(state, 0, 0.1, {.first_sample = 0});
    for (const int64_t m : parallel->micro_order()) {
      state.SetFirstSample(m);
      parallel->BeginMicroBatch(m == parallel->micro_order().back());
      Backward(Project(ops::Complete(model(InputOf(m, 40, DType::kF64)))),
               Tensor::Full({}, 0.25, DType::kF64));
    }
    optim::ClipGradNorm(model.Parameters(), 0, state);
    Result mine{.gradients = {}, .norm = state.Read().grad_norm};
    for (const auto& [name, p] : model.NamedParameters()) {
      mine.gradients[name] = p->WholeOf(p->grad()).ToVector<double>();
    }
    parallel->CheckWeights("at the end");
    if (all.rank() == all.size() - 1) result = mine;
  });
  return result;
}

TEST(ExpertParallel, GradientsAreThoseOfOneProcess) {
  using enum GradientSum;
  const Result alone = GradientsOn(1, 1, kOrdered);
  ASSERT_EQ(alone.gradients.size(), 3u);
  for (const auto& [ranks, ep] : {std::pair(2, 2), {4, 2}, {4, 4}, {8, 4}}) {
    const Result ordered = GradientsOn(ranks, ep, kOrdered), fast = GradientsOn(ranks, ep, kFast);
    EXPECT_EQ(ordered.gradients, alone.gradients) << ranks << " " << ep;
    EXPECT_EQ(ordered.norm, alone.norm) << ranks << " " << ep;
    EXPECT_NEAR(fast.norm, alone.norm, 1e-10 * alone.norm);
    for (const auto& [name, gradient] : alone.gradients) {
      for (size_t i = 0; i < gradient.size(); ++i) {
        ASSERT_NEAR(fast.gradients.at(name)[i], gradient[i], 1e-10) << name << " " << i;
      }
    }
  }
}

// ---- The norm ----

// Each chunk comes from one rank, with its number and values in the whole, whatever is split across
// ranks.
TEST(ExpertExchange, MakesTheRunsOfTheWhole) {
  constexpr int64_t kElements = 8 * 50 * 200;
  std::vector<float> whole(kElements);
  std::iota(whole.begin(), whole.end(), 0.0f);
  const Initializer iota = [](std::span<float> values, int64_t first, uint64_t,
                              const std::string&) {
    std::iota(values.begin(), values.end(), static_cast<float>(first));
  };
  struct Case {
    int tp, ep, parts;
  };
  for (const Case& c : {Case{1, 4, 1}, {1, 2, 4}, {1, 8, 2}, {2, 2, 2}, {2, 2, 4}, {4, 2, 4}}) {
    std::mutex mutex;
    std::map<int64_t, std::vector<float>> chunks;
    RunInProcess(c.tp * c.ep, [&](ProcessGroup& all) {
      const Mesh mesh({.tp = c.tp, .ep = c.ep}, all.rank(), all.size());
      const auto along = [&](const std::string& axis) {
        return all.Split(mesh.GroupName({axis}), mesh.RanksAlong({axis}));
      };
      const auto layers = along("tp"), experts = along("ep");
      const auto parts = std::make_shared<MeshParts>();
      const auto tensor = std::make_shared<TensorExchange>(
          std::make_shared<TensorRanks>(c.tp > 1 ? layers.get() : nullptr, c.parts));
      const auto exchange = std::make_shared<ExpertExchange>(experts);
      parts->Add(tensor);
      parts->Add(exchange);
      Parameter p({8, 50, 200}, iota, /*decay=*/true);
      tensor->Cut(parts, p, 0, {});
      exchange->Cut(parts, p);
      p.Materialize(kCpu, DType::kF32, 0);
      parts->ForEachRun(p, p.value(), [&](int64_t first, const Tensor& run) {
        const std::vector<float> values = run.ToVector<float>();
        const std::scoped_lock lock(mutex);
        for (int64_t at = 0; at < run.numel(); at += kGradNormChunk, ++first) {
          const auto end = values.begin() + std::min(at + kGradNormChunk, run.numel());
          EXPECT_TRUE(chunks.emplace(first, std::vector(values.begin() + at, end)).second) << first;
        }
      });
      EXPECT_EQ(p.WholeOf(p.value().Detach()).ToVector<float>(), whole);
    });
    std::map<int64_t, std::vector<float>> expected;
    const int64_t part = kElements / c.parts;
    for (int64_t begin = 0; begin < kElements; begin += part) {
      for (int64_t at = begin; at < begin + part; at += kGradNormChunk) {
        const int64_t end = std::min(at + kGradNormChunk, begin + part);
        expected.emplace(std::ssize(expected),
                         std::vector(whole.begin() + at, whole.begin() + end));
      }
    }
    EXPECT_EQ(chunks, expected) << c.tp << " " << c.ep << " " << c.parts;
  }
}

// Of ranks of which some compute a sequence together: data-parallel ranks know of the others only.
TEST(ExpertExchange, KnowsWhichRanksComputeASequence) {
  RunInProcess(4, [](ProcessGroup& all) {
    const auto sequence = all.Split("cp", {all.rank() / 2 * 2, all.rank() / 2 * 2 + 1});
    const auto both = all.Duplicate("ep");
    const auto share = [&](const std::shared_ptr<ProcessGroup>& ranks) {
      const auto model = std::make_shared<nn::MixtureOfExperts>(Options());
      ShareExperts(*model, ranks, sequence);
      model->AssignNames();
      return model;
    };
    const auto of_all = share(both), of_sequence = share(sequence);
    const auto parts_of = [](nn::MixtureOfExperts& model) {
      return MeshParts::Of(model.Parameters());
    };
    for (const auto& [name, p] : of_all->NamedParameters()) {
      const bool of_experts = name.starts_with("experts.");
      EXPECT_EQ(IsOfDistributedExperts(*p), of_experts) << name;
      const std::pair<int64_t, int64_t> one = {0, 1}, copy = {all.rank(), 4};
      EXPECT_EQ(parts_of(*of_all)->CopyOf(*p), of_experts ? one : copy) << name;
    }
    for (const auto& [name, p] : of_sequence->NamedParameters()) {
      EXPECT_FALSE(IsOfDistributedExperts(*p)) << name;
      const bool of_experts = name.starts_with("experts.");
      EXPECT_EQ(p->value().numel() < p->logical_shape().numel(), of_experts) << name;
      const std::pair<int64_t, int64_t> one = {0, 1}, copy = {all.rank() % 2, 2};
      EXPECT_EQ(parts_of(*of_sequence)->CopyOf(*p), of_experts ? one : copy) << name;
    }
    // Once ranges are sharded, too, whoever does that counts the other sequences' ranks.
    parts_of(*of_all)->Find<ExpertExchange>()->JoinRanges();
    const Tensor ones = Tensor::Full({1}, 1, DType::kF64);
    parts_of(*of_all)->Sum(ones);
    EXPECT_EQ(ones.Item(), 2);
    for (const auto& [name, p] : of_all->NamedParameters()) {
      const std::pair<int64_t, int64_t> one = {0, 1}, copy = {all.rank() % 2, 2};
      EXPECT_EQ(parts_of(*of_all)->CopyOf(*p), name.starts_with("experts.") ? one : copy) << name;
    }
  });
}

// ---- What goes on at the same time ----

// Notes when all-to-alls of another group begin and when they are waited for.
class NotingGroup : public ProcessGroup {
 public:
  NotingGroup(std::shared_ptr<ProcessGroup> group, std::vector<std::string>* notes)
      : ProcessGroup(group->members(), group->options(), group->control()),
        group_(std::move(group)),
        notes_(notes) {}
  Device device() const override { return group_->device(); }
  void CheckInStep() override { group_->CheckInStep(); }
  void Abort(const std::string& reason) override { group_->Abort(reason); }

 private:
  class NotingWork : public Work {
   public:
    NotingWork(WorkPtr work, std::string what, std::vector<std::string>* notes)
        : Work(work->operation()), work_(std::move(work)), what_(std::move(what)), notes_(notes) {}
    void Wait() override {
      notes_->push_back("wait for " + what_);
      work_->Wait();
    }
    void Synchronize() override { work_->Synchronize(); }
    bool Done() const override { return work_->Done(); }
    std::optional<Span> span() const override { return work_->span(); }

   private:
    const WorkPtr work_;
    const std::string what_;
    std::vector<std::string>* const notes_;
  };

  WorkPtr Submit(Call call) override {
    notes_->push_back("begin " + call.purpose);
    return std::make_shared<NotingWork>(group_->AllToAll(call.input, call.output, call.input_counts,
                                                         call.output_counts, call.purpose),
                                        call.purpose, notes_);
  }
  std::shared_ptr<ProcessGroup> MakePart(std::vector<int>, const GroupOptions&) override {
    throw Error("a NotingGroup has no parts");
  }

  const std::shared_ptr<ProcessGroup> group_;
  std::vector<std::string>* const notes_;
};

// The shared expert computes while tokens are on their way to the others, and its backward while
// their gradients are.
TEST(ExpertParallel, SharedExpertsComputeWhileTokensTravel) {
  std::vector<std::vector<std::string>> notes(2);
  RunInProcess(2, [&](ProcessGroup& all) {
    std::vector<std::string>& mine = notes[all.rank()];
    nn::TransformerOptions options = Options();
    options.mixture.n_shared = 6;
    options.mixture.shared_gate = true;
    nn::MixtureOfExperts model(options);
    ShareExperts(model, std::make_shared<NotingGroup>(all.Duplicate("experts"), &mine));
    model.Materialize(kCpu, 3, DType::kF64);
    for (const auto& [path, module] : model.NamedModules()) {
      if (path != "shared") continue;
      module->AddPostForwardHook([&](Module&) { mine.push_back("shared expert"); });
      module->AddPostBackwardHook([&](Module&) { mine.push_back("backward of shared expert"); });
    }
    Backward(Project(ops::Complete(model(LeafOf(InputOf(all.rank(), 12, DType::kF64))))),
             Tensor::Full({}, 0.25, DType::kF64));
  });
  for (const auto& of_rank : notes) {
    EXPECT_THAT(
        of_rank,
        ElementsAre("begin loads of experts", "wait for loads of experts",
                    "begin tokens to their experts", "shared expert",
                    "wait for tokens to their experts", "begin results of experts",
                    "wait for results of experts", "begin the gradients of results of experts",
                    "wait for the gradients of results of experts",
                    "begin the gradients of tokens to their experts", "backward of shared expert",
                    "wait for the gradients of tokens to their experts"));
  }
}

// Ranks begin with what the first ones have, and differences are found.
TEST(ExpertParallel, ChecksWeights) {
  std::vector<std::string> errors(4);
  RunInProcess(4, [&](ProcessGroup& all) {
    const Groups groups(all, 2);
    nn::MixtureOfExperts model(Options());
    ShareExperts(model, groups.experts);
    model.Materialize(kCpu, all.rank() < 2 ? 3 : 4);
    ExpertParallel parallel(&all, groups.others(), model);
    parallel.CheckWeights("at first");
    for (const auto& [name, p] : model.NamedParameters()) {
      if (name != "experts.c_fc.weight" || all.rank() != 3) continue;
      p->value().Detach().Slice(0, 1, 2).Fill(7);
    }
    errors[all.rank()] = MessageOf<ReplicaError>([&] { parallel.CheckWeights("later"); });
  });
  for (const int rank : {0, 2}) EXPECT_EQ(errors[rank], "no error");
  for (const int rank : {1, 3}) {
    EXPECT_THAT(errors[rank], HasSubstr("the weights of experts later"));
    EXPECT_THAT(errors[rank], HasSubstr("experts.c_fc.weight"));
  }
}

// What only the gradients of experts show is named, too, on all ranks, whether other ranks have the
// same experts or not; and what is found elsewhere hides none of it.
TEST(ExpertParallel, LocatesWhatIsNotFiniteInExperts) {
  class Spoiler : public BackwardObserver {
   public:
    void OnLeafReady(Leaf& leaf) override {
      if (is_on) leaf.grad().Fill(std::numeric_limits<double>::infinity());
    }
    bool is_on = true;
  };
  for (const auto& [ranks, router] : {std::pair(4, false), {2, false}, {2, true}}) {
    const int culprit = ranks - 1;
    std::vector<std::string> found(static_cast<size_t>(ranks)), later = found, earlier = found;
    RunInProcess(ranks, [&](ProcessGroup& all) {
      const Groups groups(all, 2);
      nn::MixtureOfExperts model(Options());
      ShareExperts(model, groups.experts);
      model.Materialize(kCpu, 3);
      Spoiler spoiler;  // ahead of the reducer
      for (const auto& [name, p] : model.NamedParameters()) {
        const bool spoils = (name == "experts.c_proj.weight" && all.rank() == culprit) ||
                            (router && name == "router.weight" && all.rank() == 0);
        if (spoils) p->leaf().AddObserver(&spoiler);
      }
      ExpertParallel parallel(&all, groups.others(), model);
      optim::Sgd sgd(model.Parameters());
      StepState state(kCpu, 1);
      const auto step = [&](int64_t number) {
        const auto training = sgd.BeginStep(state, number, 0.1, {.first_sample = all.rank()});
        parallel.BeginMicroBatch(true);
        Backward(Project(ops::Complete(model(InputOf(all.rank(), 12, DType::kF32)))),
                 Tensor::Full({}, 0.25, DType::kF32));
      };
      step(0);
      found[all.rank()] = parallel.LocateNonFinite();
      model.ZeroGrad();
      spoiler.is_on = false;
      step(1);
      later[all.rank()] = parallel.LocateNonFinite();
      earlier[all.rank()] = parallel.LocateNonFinite(/*ago=*/1);
    });
    const std::string expected = StrCat(router ? "rank 0 ('router.weight'), " : "", "rank ",
                                        culprit, " ('experts.c_proj.weight')");
    EXPECT_THAT(found, testing::Each(expected));
    EXPECT_THAT(later, testing::Each(""));
    EXPECT_THAT(earlier, testing::Each(expected));
  }
}

TEST(ExpertParallel, RefusesWhatItCannot) {
  RunInProcess(4, [&](ProcessGroup& all) {
    const Groups groups(all, 2);
    nn::Linear dense(2, 2);
    EXPECT_THAT(MessageOf([&] { ShareExperts(dense, groups.experts); }),
                HasSubstr("no nn::MixtureOfExperts"));
    nn::TransformerOptions seven = Options();
    seven.mixture.n_expert = 7;
    nn::MixtureOfExperts odd(seven);
    EXPECT_THAT(MessageOf([&] { ShareExperts(odd, groups.experts); }),
                HasSubstr("must divide the 7 experts"));
    nn::MixtureOfExperts model(Options());
    model.Materialize(kCpu, 1);
    EXPECT_THAT(MessageOf([&] { ExpertParallel(&all, groups.others(), model); }),
                HasSubstr("call ShareExperts before"));
    ShareExperts(model, groups.experts);
    EXPECT_THAT(MessageOf([&] { DataParallel(&all, model); }),
                HasSubstr("use dist::ExpertParallel"));
    EXPECT_THAT(MessageOf([&] { ExpertParallel(&all, nullptr, model); }),
                HasSubstr("give ShareExperts the axis ep"));
  });
  RunInProcess(3, [&](ProcessGroup& all) {
    nn::MixtureOfExperts model(Options());
    const auto three = all.Duplicate("three");
    EXPECT_THAT(MessageOf([&] { ShareExperts(model, three); }),
                HasSubstr("must be a power of two, got 3"));
  });
}

// ---- Memory ----

// By the allocators of simulated GPUs, of which each rank has its own.
TEST(ExpertParallel, NoRankHoldsAllExpertsOrTheirGradients) {
  SKIP_WITHOUT_GPUS(2);
  constexpr int64_t kWidth = 32, kInner = 512;
  constexpr double kMatrix = 8 * kWidth * kInner * 4;  // of all experts
  const auto peak = [&](int ranks) {
    int64_t most = 0;
    RunOnGpus(ranks, [&](ProcessGroup& all) {
      const Groups groups(all, ranks);
      Allocator& allocator = GetAllocator(all.device());
      const int64_t before = allocator.stats().live_bytes;
      allocator.ResetPeak();
      nn::MixtureOfExperts model(Options(kWidth, kInner));
      ShareExperts(model, groups.experts);
      model.Materialize(all.device(), 3);
      const Tensor x = InputOf(all.rank(), kWidth, DType::kF32).To(all.device());
      Backward(Project(ops::Complete(model(x))), Tensor::Full({}, 0.5, DType::kF32, all.device()));
      if (all.rank() == 0) most = allocator.stats().peak_bytes - before;
    });
    return static_cast<double>(most);
  };
  const double alone = peak(1), shared = peak(2);
  EXPECT_GT(alone, 4 * kMatrix);
  // Half of both matrices and of their gradients, and the second segment's gradient of one.
  // Rows are few, but a rank may get more of them than its own.
  EXPECT_LT(shared, 2.5 * kMatrix + 2 * (alone - 4 * kMatrix));
  EXPECT_LT(shared, 3 * kMatrix);
}

// Once the threads of groups have let go of what they sent.
int64_t LiveBytes() {
  int64_t least = GetAllocator(kCpu).stats().live_bytes;
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    least = std::min(least, GetAllocator(kCpu).stats().live_bytes);
  }
  return least;
}

// Rows by any ways, in any numbers, over and over: no memory stays behind. By hand:
// EXPERT_ROUNDS=1000000 bazel-bin/tests/dist/model_parallel/expert_parallel_test
TEST(ExpertParallel, LongLife) {
  const char* const text = std::getenv("EXPERT_ROUNDS");
  const int rounds = text != nullptr ? std::atoi(text) : test::kSanitized ? 24 : 104;
  std::vector<int64_t> live;
  RunInProcess(4, [&](ProcessGroup& all) {
    const Groups groups(all, 2);
    nn::MixtureOfExperts model(Options());
    ShareExperts(model, groups.experts);
    model.Materialize(kCpu, 3);
    ExpertParallel parallel(&all, groups.others(), model);
    optim::Sgd sgd(model.Parameters());
    StepState state(kCpu, 1);
    for (int i = 0; i < rounds; ++i) {
      const auto training = sgd.BeginStep(state, i, 1e-3, {.first_sample = all.rank()});
      // Of other lengths on every rank.
      const int64_t tokens = 1 + (7 * i + 5 * all.rank()) % 23;
      parallel.BeginMicroBatch(true);
      Backward(Project(ops::Complete(model(Random({1, tokens, 12}, i + all.rank(), DType::kF32)))),
               Tensor::Full({}, 0.01, DType::kF32));
      optim::ClipGradNorm(model.Parameters(), 1, state);
      sgd.Step(state);
      model.ZeroGrad();
      // Between barriers all ranks, whose memory is one allocator's, are at the same point.
      if (i % std::max(1, rounds / 8) != 0) continue;
      all.Barrier()->Wait();
      if (all.rank() == 0) live.push_back(LiveBytes());
      all.Barrier()->Wait();
    }
  });
  for (size_t i = 2; i < live.size(); ++i) EXPECT_EQ(live[i], live[1]) << i;
}

}  // namespace
}  // namespace lockstep::dist
