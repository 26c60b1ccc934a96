// DiLoCo against a naive reference in double precision, the laws that it keeps, and what it sends.
#include "dist/data_parallel/diloco.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "dist/data_parallel/data_parallel.h"
#include "dist/groups/host_group.h"
#include "kernels/scale/scale.h"
#include "nn/precision.h"
#include "optim/adamw.h"
#include "optim/clip.h"
#include "tests/dist/counting_transport.h"
#include "tests/dist/in_process.h"
#include "tests/dist/ranks.h"
#include "tests/dist/toy_model.h"
#include "tests/message_of.h"

namespace lockstep::dist {
namespace {

using lockstep::test::MessageOf;
using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::HasSubstr;

constexpr int64_t kRows = 4;  // of a micro-batch
constexpr double kLr = 0.1;

// A worker's loop, which can stop at the end of a round and go on in another object.
struct Worker {
  Worker(ProcessGroup* group, const DiLoCoOptions& options, uint64_t seed = 1,
         DType dtype = DType::kF32, bool adam = false, bool master_weights = true) {
    nn::Materialize(model, kCpu, seed, {.compute = dtype});
    workers = std::make_unique<DiLoCo>(group, model, options);
    if (adam) {
      inner = std::make_unique<optim::AdamW>(model.Parameters(),
                                             optim::AdamWOptions{.master_weights = master_weights});
    } else {
      inner = std::make_unique<optim::Sgd>(model.Parameters());
    }
    workers->Begin(*inner);
    if (dtype == DType::kF16) state.EnableLossScaling();
  }

  void Train(int64_t from, int64_t to, double lr = kLr) {
    for (int64_t step = from; step < to; ++step) {
      const auto training = inner->BeginStep(state, step, lr);
      const int64_t own = std::ssize(workers->micro_order());
      for (const int64_t m : workers->micro_order()) {
        const ToyBatch batch = MakeToyBatch(step * workers->micro_batches() + m, kRows);
        const DType dtype = model.Parameters()[0]->value().dtype();
        const Tensor y = model(batch.x.To(dtype)).To(DType::kF32);
        const Tensor loss = ops::SoftmaxCrossEntropy(y, batch.labels, Reduction::kSum);
        const double divisor = workers->Backward(loss, kRows, training);
        EXPECT_EQ(divisor, static_cast<double>(own * kRows)) << "only this worker's samples";
      }
      optim::ClipGradNorm(model.Parameters(), 0, state);
      inner->Step(state);
      inner->ZeroGrad();
      workers->EndStep(step + 1);
    }
  }

  std::vector<float> weights() const {
    std::vector<Tensor> all;
    for (const auto& p : model.Parameters()) all.push_back(p->value().To(DType::kF32));
    return Flat(all);
  }

  ToyModel model;
  std::unique_ptr<DiLoCo> workers;
  std::unique_ptr<optim::Optimizer> inner;
  StepState state{kCpu, 1};
};

using Doubles = std::vector<double>;

Doubles AllOf64(const Module& model, bool gradients) {
  Doubles all;
  for (const auto& p : model.Parameters()) {
    const auto values = (gradients ? p->grad() : p->value()).ToVector<double>();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

// The whole algorithm as the paper has it, in one loop.
std::vector<float> Reference(int64_t ranks, const DiLoCoOptions& o, int64_t steps) {
  ToyModel model;
  nn::Materialize(model, kCpu, /*seed=*/1, {.compute = DType::kF64});
  Doubles start = AllOf64(model, /*gradients=*/false), momentum(start.size());
  std::vector<Doubles> weights(static_cast<size_t>(ranks), start);
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t r = 0; r < ranks; ++r) {
      Doubles& w = weights[static_cast<size_t>(r)];
      auto next = w.begin();
      for (const auto& p : model.Parameters()) {
        const Doubles values(next, next + p->value().numel());
        p->value().Detach().CopyFrom(Tensor::FromVector(values, p->value().shape()));
        next += p->value().numel();
      }
      model.ZeroGrad();
      const int64_t own = (o.micro_batches - r + ranks - 1) / ranks;
      for (int64_t m = r; m < o.micro_batches; m += ranks) {
        const ToyBatch batch = MakeToyBatch(step * o.micro_batches + m, kRows);
        const Tensor loss =
            ops::SoftmaxCrossEntropy(model(batch.x.To(DType::kF64)), batch.labels, Reduction::kSum);
        Backward(loss, Tensor::Full({}, 1.0 / static_cast<double>(own * kRows), DType::kF64));
      }
      const Doubles g = AllOf64(model, /*gradients=*/true);
      for (size_t i = 0; i < w.size(); ++i) w[i] -= kLr * g[i];
    }
    if ((step + 1) % o.every != 0) continue;
    for (size_t i = 0; i < start.size(); ++i) {
      double mean = 0;
      for (int64_t r = 0; r < ranks; ++r) {
        const int64_t own = (o.micro_batches - r + ranks - 1) / ranks;
        mean += static_cast<double>(own) / static_cast<double>(o.micro_batches) *
                (start[i] - weights[static_cast<size_t>(r)][i]);
      }
      momentum[i] = o.momentum * momentum[i] + mean;
      start[i] -= o.lr * (mean + o.momentum * momentum[i]);
    }
    for (Doubles& w : weights) w = start;
  }
  return {start.begin(), start.end()};
}

// Of all workers, which must be the same.
std::vector<float> Train(int ranks, const DiLoCoOptions& options, int64_t steps,
                         DType dtype = DType::kF32, bool adam = false, bool master = true) {
  std::vector<std::vector<float>> all(static_cast<size_t>(ranks));
  RunInProcess(ranks, [&](ProcessGroup& group) {
    const auto seed = static_cast<uint64_t>(1 + group.rank());  // rank 0's weights hold
    Worker worker(&group, options, seed, dtype, adam, master);
    worker.Train(0, steps, adam ? 1e-2 : kLr);
    worker.workers->CheckWeights("at the end");
    all[static_cast<size_t>(group.rank())] = worker.weights();
  });
  for (const auto& weights : all) EXPECT_EQ(weights, all[0]);
  return all[0];
}

TEST(DiLoCo, IsTheAlgorithmOfThePaper) {
  for (const auto& [ranks, micro_batches] : {std::pair(1, 2), {2, 4}, {3, 3}, {3, 4}}) {
    for (const double momentum : {0.0, 0.9}) {
      const DiLoCoOptions options{
          .every = 4, .momentum = momentum, .micro_batches = micro_batches, .bucket_bytes = 1024};
      const std::vector<float> reference = Reference(ranks, options, 12);
      // f32 rounds each of 12 updates of weights below 1, and three outer ones.
      EXPECT_LT(MaxDifference(Train(ranks, options, 12), reference), 2e-6)
          << ranks << " workers, " << micro_batches << " micro-batches, momentum " << momentum;
    }
  }
}

TEST(DiLoCo, OuterGradientsInBf16AreRounded) {
  DiLoCoOptions options{.every = 4, .micro_batches = 4};
  const std::vector<float> exact = Train(2, options, 12);
  options.dtype = DType::kBF16;
  const std::vector<float> rounded = Train(2, options, 12);
  EXPECT_EQ(rounded, Train(2, options, 12));
  // In three rounds of steps that move a weight by less than 0.2 in all, each is rounded twice by
  // at most 2^-9 of that, and multiplied by 0.7 (1 + 0.9) and what momentum adds later.
  const double difference = MaxDifference(rounded, exact);
  EXPECT_GT(difference, 0);
  EXPECT_LT(difference, 3 * 0.2 * 0x1p-8 * 0.7 * 3);
}

// A law: with a plain mean at the end of each step, and plain SGD, the mean of the workers' updates
// is the update by their mean gradient.
TEST(DiLoCo, OfOneStepIsDataParallelism) {
  for (const int ranks : {2, 3}) {
    const std::vector<float> workers =
        Train(ranks, {.every = 1, .lr = 1, .momentum = 0, .micro_batches = 4}, 10);
    std::vector<float> parallel;
    RunInProcess(ranks, [&](ProcessGroup& group) {
      ToyModel model;
      DataParallel data(&group, model, {.micro_batches = 4});
      optim::Sgd sgd(model.Parameters());
      StepState state(kCpu, 1);
      for (int64_t step = 0; step < 10; ++step) {
        const auto training = sgd.BeginStep(state, step, kLr);
        const int64_t own = std::ssize(data.micro_order()) * kRows;
        for (const int64_t m : data.micro_order()) {
          const ToyBatch batch = MakeToyBatch(step * 4 + m, kRows);
          data.Backward(ops::SoftmaxCrossEntropy(model(batch.x), batch.labels, Reduction::kSum),
                        kRows, training, own);
        }
        sgd.Step(state);
        sgd.ZeroGrad();
      }
      if (group.rank() == 0) parallel = WeightsOf(model);
    });
    EXPECT_LT(MaxDifference(workers, parallel), 2e-6) << ranks;
  }
}

// With Adam, and originals of 16-bit weights: twice, and in two halves, the second in objects that
// know only what a checkpoint holds.
TEST(DiLoCo, GoesOnWithTheSameBits) {
  const DiLoCoOptions options{.every = 3, .micro_batches = 3};
  struct Precision {
    DType dtype;
    bool master;
  };
  for (const auto& [dtype, master] : {Precision{DType::kF32, true},
                                      {DType::kBF16, true},
                                      {DType::kBF16, false},
                                      {DType::kF16, true}}) {
    const std::vector<float> once = Train(2, options, 12, dtype, /*adam=*/true, master);
    EXPECT_EQ(Train(2, options, 12, dtype, /*adam=*/true, master), once);
    RunInProcess(2, [&](ProcessGroup& group) {
      Worker first(&group, options, 1, dtype, /*adam=*/true, master);
      first.Train(0, 6, 1e-2);
      const auto same = group.Duplicate("same");
      Worker second(same.get(), options, 1, dtype, /*adam=*/true, master);
      for (size_t i = 0; i < first.model.Parameters().size(); ++i) {
        second.model.Parameters()[i]->value().Detach().CopyFrom(
            first.model.Parameters()[i]->value().Detach());
      }
      second.inner->LoadState(first.inner->NamedState());
      if (dtype == DType::kF16) {
        second.state.EnableLossScaling({}, first.state.Read().loss_scale);
      }
      second.workers->Begin(*second.inner);
      second.workers->outer()->LoadState(first.workers->outer()->NamedState());
      second.Train(6, 12, 1e-2);
      EXPECT_EQ(second.weights(), once) << dtype << master;
    });
  }
}

// Between rounds, others may be the workers: here the first two of three.
TEST(DiLoCo, GoesOnWithFewerWorkers) {
  RunInProcess(3, [](ProcessGroup& group) {
    Worker three(&group, {.every = 2, .micro_batches = 6});
    three.Train(0, 4);
    const std::vector<int> left = group.rank() < 2 ? std::vector{0, 1} : std::vector{2};
    const auto part = group.Split("part", left);
    if (group.rank() == 2) return;
    Worker two(part.get(), {.every = 2, .micro_batches = 6});
    for (size_t i = 0; i < two.model.Parameters().size(); ++i) {
      two.model.Parameters()[i]->value().Detach().CopyFrom(
          three.model.Parameters()[i]->value().Detach());
    }
    two.workers->Begin(*two.inner);
    two.workers->outer()->LoadState(three.workers->outer()->NamedState());
    two.Train(4, 8);
    two.workers->CheckWeights("with two workers");
    EXPECT_EQ(two.workers->micro_order().size(), 3u);
  });
}

TEST(DiLoCo, AWorkerSkipsAnUpdateAlone) {
  RunInProcess(2, [](ProcessGroup& group) {
    Worker worker(&group, {.every = 2}, 1, DType::kF16, /*adam=*/true);
    const float scale = worker.state.Read().loss_scale.scale;
    {
      const auto training = worker.inner->BeginStep(worker.state, 0, 1e-2);
      const ToyBatch batch = MakeToyBatch(group.rank(), kRows);
      Tensor y = worker.model(batch.x.To(DType::kF16)).To(DType::kF32);
      if (group.rank() == 1) y = ops::Scale(y, 1e30);
      worker.workers->Backward(ops::SoftmaxCrossEntropy(y, batch.labels, Reduction::kSum), kRows,
                               training);
      optim::ClipGradNorm(worker.model.Parameters(), 1, worker.state);
      worker.inner->Step(worker.state);
      worker.inner->ZeroGrad();
      worker.workers->EndStep(1);
    }
    EXPECT_EQ(worker.state.Read().loss_scale.scale, group.rank() == 1 ? scale / 2 : scale);
    worker.Train(1, 2, 1e-2);
    worker.workers->CheckWeights("after a round");
  });
}

// What data parallelism sends in each step, a round sends once, in bf16 half of it; within a round
// nothing is sent.
TEST(DiLoCo, SendsOnlyAtTheEndsOfRounds) {
  constexpr int kRanks = 2;
  constexpr int64_t kEvery = 50;
  struct Sent {
    int64_t within = 0, at_end = 0, parallel = 0;
  };
  std::vector<Sent> f32(kRanks), bf16(kRanks);
  for (auto* const sent : {&f32, &bf16}) {
    auto ends = test::MakeEnds(kRanks);
    std::vector<std::thread> threads;
    for (int r = 0; r < kRanks; ++r) {
      threads.emplace_back([&, r] {
        auto counted = std::make_unique<CountingTransport>(std::move(ends[r].transport));
        CountingTransport& transport = *counted;
        const auto group = MakeHostGroup(std::move(counted), std::move(ends[r].control), {});
        auto since = [&, last = int64_t{0}]() mutable {
          return transport.bytes - std::exchange(last, transport.bytes);
        };
        const DType dtype = sent == &f32 ? DType::kF32 : DType::kBF16;
        Sent& mine = (*sent)[static_cast<size_t>(r)];
        {
          Worker worker(group.get(), {.every = kEvery, .dtype = dtype});
          since();
          worker.Train(0, kEvery - 1);
          mine.within = since();
          worker.Train(kEvery - 1, kEvery);
          mine.at_end = since();
        }
        ToyModel model;
        DataParallel data(group.get(), model);
        since();
        for (int64_t step = 0; step < kEvery; ++step) {
          model.ZeroGrad();
          ToyBackward(model, MakeToyBatch(group->rank()), 8);
        }
        mine.parallel = since();
      });
    }
    for (std::thread& t : threads) t.join();
  }
  int64_t elements = 0;
  const ToyModel model;
  for (const auto& p : model.Parameters()) elements += p->value().numel();
  for (int r = 0; r < kRanks; ++r) {
    EXPECT_EQ(f32[r].within, 0);
    EXPECT_NEAR(f32[r].at_end, 4 * elements, 600) << "besides the checks of calls";
    EXPECT_NEAR(bf16[r].at_end, 2 * elements, 600);
    EXPECT_GT(f32[r].parallel, 0.9 * kEvery * f32[r].at_end);
  }
}

TEST(DiLoCo, SaysWhatIsWrong) {
  ToyModel model;
  const auto error = [&](const DiLoCoOptions& options) {
    return MessageOf([&] { DiLoCo(nullptr, model, options); });
  };
  EXPECT_THAT(error({.every = 0}), HasSubstr("a round has at least 1 step, got every = 0"));
  EXPECT_THAT(error({.lr = 0}), HasSubstr("the outer lr must be above 0"));
  EXPECT_THAT(error({.momentum = 1}), HasSubstr("outer momentum in [0, 1)"));
  EXPECT_THAT(error({.dtype = DType::kF16}), HasSubstr("in f32 or bf16, not f16"));
  DiLoCo workers(nullptr, model, {});
  EXPECT_THAT(MessageOf([&] { workers.EndStep(50); }), HasSubstr("workers.Begin(optimizer);"));
}

// A worker that dies is noticed by one that is far from the end of its round.
TEST(DiLoCo, ADeadWorkerIsNoticedWithinARound) {
  const auto errors = test::ErrorsOf(2, [](ProcessGroup& group) {
    Worker worker(&group, {.every = int64_t{1} << 40});
    worker.Train(0, 2);
    if (group.rank() == 1) throw Error("rank 1 is lost");
    for (int64_t step = 2;; ++step) worker.Train(step, step + 1, 0);
  });
  EXPECT_EQ(errors[1], "rank 1 is lost");
  EXPECT_THAT(errors[0], HasSubstr("rank 1"));
}

// Otherwise weights of different times would be added.
TEST(DiLoCo, RoundsOfDifferentLengthsAreFound) {
  const auto errors = test::ErrorsOf(2, [](ProcessGroup& group) {
    Worker worker(&group, {.every = 2 + group.rank()});
    worker.Train(0, 12);
  });
  EXPECT_THAT(errors, Each(HasSubstr("after step 2")));
  EXPECT_THAT(errors, Each(HasSubstr("after step 3")));
}

TEST(DiLoCo, DriftIsFound) {
  const auto errors = test::ErrorsOf(2, [](ProcessGroup& group) {
    Worker worker(&group, {.every = 2});
    worker.Train(0, 2);
    worker.workers->CheckWeights("after step 2");
    worker.Train(2, 3);
    worker.workers->CheckWeights("within a round");
  });
  EXPECT_THAT(errors, Each(HasSubstr("the weights within a round are not the same")));
}

}  // namespace
}  // namespace lockstep::dist
