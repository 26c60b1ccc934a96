// CUDA graphs give the bits of eager steps.
#include "models/train/step/step_graphs.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cstring>

#include "core/allocator.h"
#include "core/cuda/device.h"
#include "models/train/step/trainer.h"
#include "optim/adamw.h"
#include "tests/gpu_test.h"
#include "tests/models/training.h"

namespace lockstep::models {
namespace {

using test::kGpu;
using testing::HasSubstr;

GptConfig Gpt2Like() { return SmallGpt(0.1); }
GptConfig LlamaLike() {
  return {.vocab_size = 13,
          .block_size = kWindow,
          .n_layer = 2,
          .n_head = 4,
          .n_embd = 32,
          .bias = false,
          .tie_embeddings = false,
          .n_kv_head = 2,
          .norm = NormKind::kRmsNorm,
          .activation = nn::MlpActivation::kSwiGlu,
          .position = Position::kRope};
}

// A model on the GPU with everything that training needs.
struct Bench {
  Bench(const GptConfig& config, DType dtype, bool graphs, int64_t accum = 2, bool pure = false,
        bool document_mask = false)
      : tokens(std::make_shared<data::SeparatedTokens>(Tokens(300), 9, data::Separator::kFirst)),
        model(config) {
    model.Materialize(kGpu, 4, dtype);
    // Two groups, so that captured updates read two pairs of bias corrections.
    optim::ParameterGroup all = {.parameters = model.Parameters()};
    optim::ParameterGroup last = {.lr_factor = 0.5, .betas = Betas{0.8, 0.9}};
    last.parameters.push_back(all.parameters.back());
    all.parameters.pop_back();
    optim::AdamWOptions adamw;
    if (pure) adamw = {.master_weights = false, .state_dtype = DType::kBF16};
    optimizer = std::make_unique<optim::AdamW>(std::vector{all, last}, adamw);
    // Begins too large, and grows beyond what fits again.
    std::optional<LossScaleOptions> scaling;
    if (dtype == DType::kF16) scaling = {.init = 0x1p24, .growth_interval = 3};
    loader = std::make_unique<data::Loader>(
        tokens, Shuffled(*tokens),
        data::BatchLayout{.batch_size = 3, .micro_batches = accum, .document_mask = document_mask});
    trainer = std::make_unique<Trainer>(
        model, *optimizer, SmallSchedule(), *loader,
        TrainerOptions{.micro_batches = accum,
                       .clip = 0.5,
                       .seed = 9,
                       .cuda_graphs = graphs,
                       .say = [this](const std::string& text) { said.push_back(text); },
                       .loss_scaling = scaling});
  }

  // Weights and the optimizer's state.
  std::vector<std::byte> Bytes() const {
    std::vector<std::byte> all;
    const auto add = [&](const Tensor& x) {
      const Tensor host = x.Detach().To(kCpu).Contiguous();
      const auto* begin = static_cast<const std::byte*>(host.raw_data());
      all.insert(all.end(), begin, begin + host.bytes());
    };
    for (const auto& p : model.Parameters()) add(p->value());
    for (const auto& [name, tensor] : optimizer->NamedState()) add(tensor);
    return all;
  }

  std::shared_ptr<const data::TokenSource> tokens;
  Gpt model;
  std::unique_ptr<optim::AdamW> optimizer;
  std::unique_ptr<data::Loader> loader;
  std::vector<std::string> said;
  std::unique_ptr<Trainer> trainer;
};

class GraphTest : public test::GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped() && !cuda::GraphSpace::Supported(kGpu)) {
      GTEST_SKIP() << "no caching allocator in this build: steps are eager";
    }
  }
};

struct Case {
  const char* name;
  GptConfig (*config)();
  DType dtype;
  bool pure = false;  // no f32 weights and moments
  bool document_mask = false;
};

class StepGraphsBits : public GraphTest, public testing::WithParamInterface<Case> {};

TEST_P(StepGraphsBits, AreThoseOfEagerSteps) {
  const int kSteps = GetParam().pure ? 8 : 20;
  const Case& c = GetParam();
  Bench eager(c.config(), c.dtype, false, 2, c.pure, c.document_mask);
  Bench graphs(c.config(), c.dtype, true, 2, c.pure, c.document_mask);
  const std::vector<std::byte> start = graphs.Bytes();
  for (int i = 0; i < kSteps; ++i) {
    const StepMetrics a = eager.trainer->Step(), b = graphs.trainer->Step();
    EXPECT_EQ(a.loss, b.loss) << "step " << i + 1;
    EXPECT_EQ(a.skipped, b.skipped) << "step " << i + 1;
    EXPECT_EQ(a.loss_scale, b.loss_scale) << "step " << i + 1;
    if (!a.skipped) {
      EXPECT_EQ(a.grad_norm, b.grad_norm) << "step " << i + 1;
    }
    EXPECT_EQ(a.lr, b.lr);
    ASSERT_EQ(eager.Bytes(), graphs.Bytes()) << "step " << i + 1;
    if (i % 7 != 3) continue;
    // Work between replays does not use their memory.
    const data::EvalBatches batches(eager.tokens, kWindow, 4, 0, c.document_mask);
    EXPECT_EQ(eager.trainer->Evaluate(batches), graphs.trainer->Evaluate(batches));
  }
  EXPECT_NE(graphs.Bytes(), start);
  EXPECT_EQ(eager.trainer->loss_scale(), graphs.trainer->loss_scale());
  if (GetParam().dtype == DType::kF16) {
    EXPECT_GT(graphs.trainer->loss_scale()->skipped, 0);
    EXPECT_LT(graphs.trainer->loss_scale()->skipped, kSteps - 3);
  }
  EXPECT_EQ(eager.trainer->graph_replays(), 0);
  EXPECT_EQ(graphs.trainer->graph_replays(), kSteps - 1) << testing::PrintToString(graphs.said);
  EXPECT_TRUE(graphs.said.empty());
}

INSTANTIATE_TEST_SUITE_P(Models, StepGraphsBits,
                         testing::Values(Case{"gpt2_f32", Gpt2Like, DType::kF32},
                                         Case{"gpt2_documents", Gpt2Like, DType::kF32, false, true},
                                         Case{"gpt2_bf16", Gpt2Like, DType::kBF16},
                                         Case{"gpt2_bf16_pure", Gpt2Like, DType::kBF16, true},
                                         Case{"gpt2_f16", Gpt2Like, DType::kF16},
                                         Case{"llama_f32", LlamaLike, DType::kF32},
                                         Case{"llama_bf16", LlamaLike, DType::kBF16}),
                         [](const auto& info) { return info.param.name; });

GptConfig Recomputed(GptConfig config, RecomputeChoice::Part part) {
  config.recompute.part = part;
  return config;
}

// Graphs that recompute or offload have the bits of steps that do not, with dropout and
// accumulation.
TEST_F(GraphTest, RecomputationInAGraphHasTheBitsOfNone) {
  using Part = RecomputeChoice::Part;
  const auto run = [](const GptConfig& config, bool graphs) {
    Bench s(config, DType::kF32, graphs);
    for (int i = 0; i < 4; ++i) s.trainer->Step();
    EXPECT_EQ(s.trainer->graph_replays(), graphs ? 3 : 0);
    return s.Bytes();
  };
  const auto plain = run(Gpt2Like(), false);
  EXPECT_EQ(run(Recomputed(Gpt2Like(), Part::kBlock), true), plain);
  EXPECT_EQ(run(Recomputed(Gpt2Like(), Part::kMlp), true), plain);
  EXPECT_EQ(run(Recomputed(LlamaLike(), Part::kBlock), true), run(LlamaLike(), false));
  GptConfig offloaded = Gpt2Like();
  offloaded.n_layer = 4;
  const auto four = run(offloaded, false);
  offloaded.offload.activations = true;
  EXPECT_EQ(run(offloaded, true), four);
}

// The host runs ahead of the device.
TEST_F(GraphTest, StepsThatAreOnlySubmittedHaveTheSameBits) {
  Bench eager(Gpt2Like(), DType::kF32, false), graphs(Gpt2Like(), DType::kF32, true);
  for (int i = 0; i < 6; ++i) {
    const auto a = eager.trainer->Submit(), b = graphs.trainer->Submit();
    ASSERT_EQ(a.has_value(), b.has_value());
    if (a) {
      EXPECT_EQ(a->loss, b->loss);
    }
  }
  EXPECT_EQ(eager.trainer->Finish()->loss, graphs.trainer->Finish()->loss);
  EXPECT_EQ(eager.Bytes(), graphs.Bytes());
  EXPECT_EQ(graphs.trainer->graph_replays(), 5);
}

// A hook's code runs on the host, at each step.
TEST_F(GraphTest, AHookThatComesLaterEndsThem) {
  Bench s(Gpt2Like(), DType::kF32, true);
  s.trainer->Step();
  const int64_t eager = GetAllocator(kGpu).stats().live_bytes;
  for (int i = 0; i < 2; ++i) s.trainer->Step();
  EXPECT_EQ(s.trainer->graph_replays(), 2);
  EXPECT_GT(GetAllocator(kGpu).stats().live_bytes, eager);
  int calls = 0;
  s.model.Parameters()[0]->RegisterHook([&](const Tensor&) { ++calls; });
  for (int i = 0; i < 3; ++i) s.trainer->Step();
  EXPECT_EQ(s.trainer->graph_replays(), 2);
  EXPECT_EQ(calls, 3 * 2) << "each of the micro-batches";
  EXPECT_THAT(s.said, testing::ElementsAre("training continues without CUDA graphs: gradients have "
                                           "observers or hooks"));
  EXPECT_EQ(GetAllocator(kGpu).stats().live_bytes, eager) << "graphs have left their memory";
}

TEST_F(GraphTest, ANonFiniteGradientOfAReplayIsNamedAndNothingChanges) {
  Bench s(Gpt2Like(), DType::kF32, true);
  for (int i = 0; i < 3; ++i) s.trainer->Step();
  s.model.NamedParameters().back().second->value().Detach().Fill(NAN);
  const std::vector<std::byte> before = s.Bytes();
  try {
    s.trainer->Step();
    FAIL() << "no error";
  } catch (const NonFiniteError& e) {
    EXPECT_THAT(e.what(), HasSubstr("step 4: the loss is nan"));
    EXPECT_THAT(e.what(), HasSubstr("the gradient of 'wte.weight'"));
  }
  EXPECT_EQ(s.trainer->step(), 3);
  EXPECT_EQ(s.Bytes(), before);
}

TEST_F(GraphTest, MovedParametersAreCapturedAgain) {
  Bench eager(Gpt2Like(), DType::kF32, false), graphs(Gpt2Like(), DType::kF32, true);
  for (int i = 0; i < 6; ++i) {
    for (Bench* s : {&eager, &graphs}) {
      s->trainer->Step();
      if (i != 2) continue;
      const auto p = s->model.Parameters()[1];
      p->SetValue(p->value().Detach().Clone());
    }
    ASSERT_EQ(eager.Bytes(), graphs.Bytes()) << "step " << i + 1;
  }
  EXPECT_EQ(graphs.trainer->graph_replays(), 5);
}

// The memory of a graph counts as allocated, and is freed with it.
TEST_F(GraphTest, MemoryOfGraphsIsCountedAndFreed) {
  Allocator& allocator = GetAllocator(kGpu);
  const int64_t before = allocator.stats().live_bytes;
  {
    Bench s(Gpt2Like(), DType::kF32, true);
    s.trainer->Step();
    const int64_t eager = allocator.stats().live_bytes;
    s.trainer->Step();
    EXPECT_GT(allocator.stats().live_bytes, eager);
    allocator.Trim();
    s.trainer->Step();  // its memory is still allocated
  }
  EXPECT_EQ(allocator.stats().live_bytes, before);
}

class Quiet : public BackwardObserver {};

TEST_F(GraphTest, ObservedLeavesKeepStepsEagerWithOneWarning) {
  Bench s(Gpt2Like(), DType::kF32, true);
  Quiet observer;
  s.model.Parameters()[0]->leaf().AddObserver(&observer);
  for (int i = 0; i < 4; ++i) s.trainer->Step();
  EXPECT_EQ(s.trainer->graph_replays(), 0);
  EXPECT_THAT(s.said, testing::ElementsAre(HasSubstr("training continues without CUDA graphs")));
  s.model.Parameters()[0]->leaf().RemoveObserver(&observer);
}

// A batch of another shape. Only StepGraphs can get one: a loader has one shape.
TEST_F(GraphTest, AnotherShapeContinuesEagerlyWithOneWarning) {
  const Tensor w = Tensor::Full({}, 1, DType::kF32, kGpu);
  auto parameter = std::make_shared<Parameter>(
      Shape{1}, [](std::span<float> v, int64_t, uint64_t, const std::string&) { v[0] = 1; }, false);
  parameter->Materialize(kGpu, DType::kF32, 1);
  StepState state(kGpu, 1);
  std::vector<std::string> said;
  int calls = 0;
  StepGraphs graphs(
      state, {parameter},
      {.micro_steps = 1,
       .micro_step =
           [&](const Tensor& ids, const Tensor&, const Tensor&) {
             ++calls;
             parameter->leaf().SetGrad(ids.View({ids.numel()}).Slice(0, 0, 1).To(DType::kF32));
             return w;
           },
       .update = [] {},
       .say = [&](const std::string& text) { said.push_back(text); }});
  const auto step = [&](int64_t rows, int32_t id) {
    data::Batch batch{.rows = rows, .cols = 2};
    batch.inputs.assign(static_cast<size_t>(2 * rows), id);
    batch.targets = batch.inputs;
    parameter->leaf().ZeroGrad();
    graphs.Load(0, batch);
    graphs.Gradients(1);
    graphs.Update();
    return parameter->grad().To(kCpu).Item();
  };
  EXPECT_EQ(step(3, 5), 5);
  EXPECT_EQ(step(3, 6), 6);
  EXPECT_EQ(step(3, 7), 7);
  EXPECT_EQ(calls, 2) << "once eagerly, once captured";
  EXPECT_EQ(graphs.replays(), 2);
  EXPECT_EQ(step(4, 8), 8);
  EXPECT_EQ(step(3, 9), 9);
  EXPECT_EQ(graphs.replays(), 2);
  EXPECT_THAT(said,
              testing::ElementsAre(HasSubstr("a batch has shape [4, 2], earlier ones had [3, 2]")));
}

}  // namespace
}  // namespace lockstep::models
