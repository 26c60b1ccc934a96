#include "dist/pipeline/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <iostream>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <tuple>

#include "core/module.h"
#include "dist/control/socket.h"
#include "dist/data_parallel/data_ranks.h"
#include "dist/data_parallel/reducer.h"
#include "dist/mesh.h"
#include "dist/pipeline/schedule_check.h"
#include "dist/pipeline/stage_cut.h"
#include "dist/world.h"
#include "kernels/softmax_cross_entropy/softmax_cross_entropy.h"
#include "kernels/unary/unary.h"
#include "nn/linear.h"
#include "tests/dist/in_process.h"
#include "tests/dist/toy_model.h"

namespace lockstep::dist {
namespace {

using enum PipelineKind;

constexpr PipelineKind kKinds[] = {k1F1B, kInterleaved, kZeroBubbleH1, kZeroBubbleV};
constexpr int64_t kWidth = 6, kToyRows = 4;
constexpr int kLayers = 8;

struct Stack : Module {
  Stack() {
    for (int i = 0; i < kLayers; ++i) h.Add(std::make_shared<nn::Linear>(kWidth, kWidth));
    Materialize(kCpu, /*seed=*/3);
  }
  Tensor Run(int begin, int end, Tensor x) {
    for (int i = begin; i < end; ++i) x = ops::Relu(h[i](x));
    return x;
  }
  std::vector<std::shared_ptr<Parameter>> ParametersOf(int begin, int end) {
    std::vector<std::shared_ptr<Parameter>> out;
    for (int i = begin; i < end; ++i) {
      for (const auto& p : h[i]->Parameters()) out.push_back(p);
    }
    return out;
  }
  ChildList<Layer> h{this, "h"};
};

Tensor LossOf(const Tensor& x, int64_t micro_batch) {
  const Tensor labels = MakeToyBatch(micro_batch, kToyRows).labels;
  return ops::SoftmaxCrossEntropy(x, labels, Reduction::kSum);
}

using Gradients = std::map<std::string, std::vector<float>>;

void Add(const std::vector<std::shared_ptr<Parameter>>& parameters, Gradients* to) {
  for (const auto& p : parameters) (*to)[p->name()] = p->grad().ToVector<float>();
}

ReducerOptions Ordered(int64_t micro_batches) {
  return {.sum = GradientSum::kOrdered, .micro_batches = micro_batches};
}

// What the pipeline must equal.
Gradients OfOneProcess(int64_t micro_batches, std::vector<float>* losses) {
  Stack stack;
  Reducer reducer(nullptr, stack.Parameters(), Ordered(micro_batches));
  losses->resize(static_cast<size_t>(micro_batches));
  for (const int64_t m : reducer.micro_order()) {
    std::optional<Reducer::NoSync> no_sync;
    if (m != reducer.micro_order().back()) no_sync.emplace(reducer);
    const Tensor loss = LossOf(stack.Run(0, kLayers, MakeToyBatch(m, kToyRows).x), m);
    (*losses)[static_cast<size_t>(m)] = loss.ToVector<float>()[0];
    Backward(loss, Tensor::Full({}, 1 / 32.0, DType::kF32));
  }
  Gradients out;
  Add(stack.Parameters(), &out);
  return out;
}

// A rank's part of a step of the stack.
class ToyPipeline {
 public:
  ToyPipeline(ProcessGroup* pp, ProcessGroup* dp, PipelineKind kind, int64_t micro_batches)
      : pp_(pp), ranks_(pp ? pp->size() : 1), dp_(dp) {
    const int per_rank = static_cast<int>(micro_batches / (dp ? dp->size() : 1));
    const PipelineSchedule schedule = MakeSchedule(kind, ranks_, per_rank, 2);
    for (const int s : schedule.StagesOf(pp ? pp->rank() : 0)) {
      AddStage(s, schedule.stages(), micro_batches);
    }
    pipeline_.emplace(pp, schedule, stages_,
                      PipelineOptions{.on_span = [this](const PipelineSpan& span) {
                        executed_.push_back(span.action);
                      }});
  }

  Gradients Step() {
    executed_.clear();
    pipeline_->Step({{kToyRows, kWidth}, DType::kF32});
    Gradients out;
    for (const auto& parameters : parameters_) Add(parameters, &out);
    return out;
  }

  void ZeroGrad() { stack_.ZeroGrad(); }
  Pipeline& pipeline() { return *pipeline_; }
  const std::map<int64_t, float>& losses() const { return losses_; }
  const std::vector<PipelineAction>& executed() const { return executed_; }

 private:
  void AddStage(int s, int stages, int64_t micro_batches) {
    const int begin = s * kLayers / stages, end = (s + 1) * kLayers / stages;
    parameters_.push_back(stack_.ParametersOf(begin, end));
    if (dp_ != nullptr) {
      groups_.push_back(dp_->Duplicate(StrCat(dp_->name(), ".stage_", s)));
    }
    reducers_.push_back(std::make_unique<Reducer>(dp_ ? groups_.back().get() : nullptr,
                                                  parameters_.back(), Ordered(micro_batches)));
    Reducer* reducer = reducers_.back().get();
    StopObserving(reducer, parameters_.back());
    const std::vector<int64_t> order = reducer->micro_order();
    const bool first = s == 0, last = s == stages - 1;
    PipelineStage stage;
    stage.forward = [=, this](const Tensor& input, int micro) {
      const int64_t m = order[static_cast<size_t>(micro)];
      const Tensor x = stack_.Run(begin, end, first ? MakeToyBatch(m, kToyRows).x : input);
      if (!last) return x;
      const Tensor loss = LossOf(x, m);
      losses_[m] = loss.ToVector<float>()[0];
      return loss;
    };
    stage.output_gradient = [=](const Tensor& received, int) {
      return last ? Tensor::Full({}, 1 / 32.0, DType::kF32) : received;
    };
    stage.gradients = reducer;
    stage.before_gradients = [=, this, at = reducers_.size() - 1](int micro) {
      no_sync_.resize(reducers_.size());
      no_sync_[at].reset();
      if (micro + 1 < static_cast<int>(order.size())) {
        no_sync_[at] = std::make_unique<Reducer::NoSync>(*reducer);
      }
    };
    stages_.push_back(std::move(stage));
  }

  ProcessGroup* pp_;
  int ranks_;
  ProcessGroup* dp_;
  Stack stack_;
  std::vector<std::shared_ptr<ProcessGroup>> groups_;
  std::vector<std::unique_ptr<Reducer>> reducers_;
  std::vector<std::unique_ptr<Reducer::NoSync>> no_sync_;
  std::vector<std::vector<std::shared_ptr<Parameter>>> parameters_;
  std::vector<PipelineStage> stages_;
  std::map<int64_t, float> losses_;
  std::vector<PipelineAction> executed_;
  std::optional<Pipeline> pipeline_;
};

std::vector<PipelineAction> Computations(const Pipeline& pipeline, int rank) {
  std::vector<PipelineAction> out;
  for (const PipelineAction& a : pipeline.schedule().actions[rank]) {
    if (!a.is_transfer()) out.push_back(a);
  }
  return out;
}

// A rank of `all`, as pp x dp ranks; checks what it computed against one process.
void ExpectBitsOfOneProcess(ProcessGroup& all, PipelineKind kind, int pp, int64_t micro_batches) {
  std::vector<float> losses;
  const Gradients expected = OfOneProcess(micro_batches, &losses);
  const Mesh mesh({.pp = pp}, all.rank(), all.size());
  const auto along = [&](const char* axis) {
    return all.Split(mesh.GroupName({axis}), mesh.RanksAlong({axis}));
  };
  const auto pipeline = along("pp"), data = along("dp");
  ToyPipeline toy(pipeline.get(), data->size() > 1 ? data.get() : nullptr, kind, micro_batches);
  for (int step = 0; step < 2; ++step) {
    const Gradients mine = toy.Step();
    EXPECT_EQ(toy.executed(), Computations(toy.pipeline(), pipeline->rank()));
    EXPECT_FALSE(mine.empty());
    for (const auto& [name, gradient] : mine) EXPECT_EQ(gradient, expected.at(name)) << name;
    for (const auto& [m, loss] : toy.losses()) EXPECT_EQ(loss, losses[static_cast<size_t>(m)]);
    toy.ZeroGrad();
  }
}

TEST(PipelineTest, EveryScheduleHasTheBitsOfOneProcess) {
  for (const PipelineKind kind : kKinds) {
    for (const auto& [pp, dp, micro_batches] :
         {std::tuple(1, 1, 4), {2, 1, 4}, {3, 1, 6}, {4, 1, 8}, {2, 2, 8}, {3, 2, 12}, {4, 2, 8}}) {
      SCOPED_TRACE(testing::Message() << Name(kind) << " pp " << pp << " dp " << dp);
      RunInProcess(pp * dp, [&, pp = pp, n = micro_batches](ProcessGroup& all) {
        ExpectBitsOfOneProcess(all, kind, pp, n);
      });
    }
  }
}

TEST(PipelineTest, WithoutAGroupAllStagesAreHere) {
  std::vector<float> losses;
  const Gradients expected = OfOneProcess(4, &losses);
  for (const PipelineKind kind : kKinds) {
    ToyPipeline toy(nullptr, nullptr, kind, 4);
    EXPECT_EQ(toy.Step(), expected) << Name(kind);
  }
}

TEST(PipelineTest, RanksOfAWorld) {
  const int port = PortOf(Listen("127.0.0.1", 0));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([=] {
      Rendezvous r;
      r.rank = r.local_rank = rank;
      r.world_size = r.local_world_size = 4;
      r.master_port = port;
      r.secret = "secret";
      r.source = "RANK";
      World world(r, {.timeout = std::chrono::seconds(120)});
      const auto all = world.Group();
      ExpectBitsOfOneProcess(*all, kZeroBubbleV, 2, 8);
    });
  }
  for (std::thread& t : threads) t.join();
}

TEST(PipelineTest, ForwardOnly) {
  RunInProcess(3, [](ProcessGroup& all) {
    for (const PipelineKind kind : kKinds) {
      const auto group = all.Duplicate(StrCat("pp_", Name(kind)));
      std::vector<float> losses;
      OfOneProcess(6, &losses);
      ToyPipeline toy(group.get(), nullptr, kind, 6);
      toy.pipeline().Forward({{kToyRows, kWidth}, DType::kF32}, 6);
      for (const auto& [m, loss] : toy.losses()) EXPECT_EQ(loss, losses[static_cast<size_t>(m)]);
      const bool has_last = group->rank() == toy.pipeline().schedule().rank_of.back();
      EXPECT_EQ(toy.losses().size(), has_last ? 6u : 0u);
      EXPECT_EQ(toy.executed().size(), 6 * toy.pipeline().schedule().StagesOf(all.rank()).size());
    }
  });
}

TEST(PipelineTest, RefusesWhatDoesNotFit) {
  const PipelineSchedule schedule = MakeSchedule(k1F1B, 2, 2);
  EXPECT_THROW(Pipeline(nullptr, schedule, {}), ArgumentError);                   // 2 ranks
  EXPECT_THROW(Pipeline(nullptr, MakeSchedule(k1F1B, 1, 2), {}), ArgumentError);  // no stage
  PipelineSchedule wrong = MakeSchedule(k1F1B, 1, 2);
  std::swap(wrong.actions[0].front(), wrong.actions[0].back());
  EXPECT_THROW(Pipeline(nullptr, wrong, std::vector<PipelineStage>(1)), ArgumentError);
  // A boundary of another shape than what passes it ends all ranks, and says so.
  try {
    RunInProcess(2, [](ProcessGroup& all) {
      ToyPipeline toy(&all, nullptr, k1F1B, 2);
      toy.pipeline().Step({{kToyRows, kWidth + 1}, DType::kF32});
    });
    ADD_FAILURE() << "no error";
  } catch (const ArgumentError& e) {
    EXPECT_NE(std::string(e.what()).find("0SEND_F0 is f32[4, 6]"), std::string::npos) << e.what();
  }
}

// Against all cuts of drawn costs.
TEST(CutByCost, TheMostExpensiveStageIsAsCheapAsCanBe) {
  EXPECT_EQ(CutByCost(std::vector<double>{0, 1, 1, 1, 1, 2}, 3),
            (std::vector<int64_t>{0, 3, 5, 6}));
  EXPECT_EQ(CutByCost(std::vector<double>{5, 0, 0}, 3), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_THROW(CutByCost(std::vector<double>{1, 1}, 3), ArgumentError);
  EXPECT_THROW(CutByCost(std::vector<double>{1, -1}, 2), ArgumentError);
  std::mt19937 random(5);
  for (int trial = 0; trial < 200; ++trial) {
    const int parts = 1 + static_cast<int>(random() % 9);
    const int stages = 1 + static_cast<int>(random() % static_cast<unsigned>(parts));
    std::vector<double> costs;
    for (int i = 0; i < parts; ++i) costs.push_back(static_cast<double>(random() % 7));
    const auto most = [&](const std::vector<int64_t>& cut) {
      double most_expensive = 0;
      for (int s = 0; s < stages; ++s) {
        double cost = 0;
        EXPECT_LT(cut[s], cut[s + 1]);
        for (int64_t i = cut[s]; i < cut[s + 1]; ++i) cost += costs[i];
        most_expensive = std::max(most_expensive, cost);
      }
      return most_expensive;
    };
    double best = 1e9;
    for (int mask = 0; mask < 1 << (parts - 1); ++mask) {
      if (std::popcount(static_cast<unsigned>(mask)) != stages - 1) continue;
      std::vector<int64_t> cut = {0};
      for (int i = 0; i + 1 < parts; ++i) {
        if (mask >> i & 1) cut.push_back(i + 1);
      }
      cut.push_back(parts);
      best = std::min(best, most(cut));
    }
    const std::vector<int64_t> cut = CutByCost(costs, stages);
    ASSERT_EQ(cut.size(), static_cast<size_t>(stages) + 1);
    EXPECT_EQ(cut.front(), 0);
    EXPECT_EQ(cut.back(), parts);
    EXPECT_EQ(most(cut), best);
  }
}

// ---- Time ----

std::chrono::milliseconds unit;  // set while nothing runs; a transfer takes less than 1

// Takes a unit of time in forward, and one for each gradient, without the processor.
class SleepNode : public Node {
 public:
  SleepNode() : Node("sleep") {}
  void Backward(lockstep::Gradients& grads) override {
    for (size_t i = 0; i < grads.inputs(); ++i) {
      if (!grads.needs(i)) continue;
      std::this_thread::sleep_for(unit);
      grads.Put(i, grads[0]);
    }
  }
};

Tensor Sleep(const Tensor& x, const Tensor& weight) {
  std::this_thread::sleep_for(unit);
  Tensor out = x.Detach().Clone();
  Record(std::make_shared<SleepNode>(), {&x, &weight}, {&out});
  return out;
}

struct Timed {
  double makespan = 0, idle_share = 0;  // in units of time; the mean over ranks
};

// Of the fastest of some steps: other programs only make a step longer.
Timed RunSleeping(PipelineKind kind, int pp, int micro_batches) {
  constexpr int kSteps = 2;
  std::mutex mutex;
  std::vector<std::vector<PipelineSpan>> spans(kSteps);
  RunInProcess(pp, [&](ProcessGroup& all) {
    Parameter weight({1}, nullptr, false);
    weight.Materialize(kCpu, DType::kF32, 1);
    const PipelineSchedule schedule = MakeSchedule(kind, pp, micro_batches);
    int step = 0;
    std::vector<PipelineStage> stages(schedule.StagesOf(all.rank()).size());
    for (PipelineStage& stage : stages) {
      stage.forward = [&](const Tensor& input, int) {
        // The first stage has an input gradient, too: of the embedding.
        Tensor x = input;
        if (!x.defined()) {
          x = Tensor::Zeros({1}, DType::kF32);
          x.set_autograd(Edge::To(std::make_shared<Leaf>(x)));
        }
        return Sleep(x, weight.value());
      };
      stage.output_gradient = [](const Tensor& received, int) {
        return received.defined() ? received : Tensor::Zeros({1}, DType::kF32);
      };
    }
    Pipeline pipeline(&all, schedule, stages, {.on_span = [&](const PipelineSpan& span) {
      const std::lock_guard lock(mutex);
      spans[static_cast<size_t>(step)].push_back(span);
    }});
    for (; step < kSteps; ++step) {
      all.Barrier()->Synchronize();
      pipeline.Step({{1}, DType::kF32});
    }
  });
  Timed best;
  for (const auto& of_step : spans) {
    auto begin = of_step[0].begin, end = of_step[0].end;
    double busy = 0;
    for (const PipelineSpan& span : of_step) {
      begin = std::min(begin, span.begin);
      end = std::max(end, span.end);
      busy += std::chrono::duration<double>(span.end - span.begin) / unit;
    }
    const double makespan = std::chrono::duration<double>(end - begin) / unit;
    if (best.makespan == 0 || makespan < best.makespan) best = {makespan, 1 - busy / makespan / pp};
  }
  return best;
}

TEST(PipelineTest, IdleShareIsTheSchedules) {
  constexpr double kTolerance = 0.1;
  std::map<PipelineKind, Timed> timed;
  for (const PipelineKind kind : {k1F1B, kZeroBubbleH1}) {
    const SimulatedPipeline simulated = Simulate(MakeSchedule(kind, 4, 8));
    const auto is_near = [](double x, double y) { return std::abs(x - y) <= kTolerance * y; };
    Timed& best = timed[kind];
    // On a busy machine sleepers wake late: by less of a longer unit.
    for (const int ms : {40, 80, 160, 320}) {
      unit = std::chrono::milliseconds(ms);
      best = RunSleeping(kind, 4, 8);
      std::cout << Name(kind) << ": idle " << best.idle_share << ", the schedule's "
                << simulated.IdleShare() << "; " << best.makespan << " units of " << ms << " ms, "
                << simulated.makespan << "\n";
      if (is_near(best.makespan, simulated.makespan) &&
          is_near(best.idle_share, simulated.IdleShare())) {
        break;
      }
    }
    EXPECT_NEAR(best.makespan, simulated.makespan, kTolerance * simulated.makespan);
    EXPECT_NEAR(best.idle_share, simulated.IdleShare(), kTolerance * simulated.IdleShare());
  }
  EXPECT_LT(timed[kZeroBubbleH1].makespan, timed[k1F1B].makespan);
}

}  // namespace
}  // namespace lockstep::dist
