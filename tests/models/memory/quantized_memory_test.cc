// The memory of adapters beside a base of 4 bits (QLoRA): planned, and measured.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/allocator.h"
#include "models/train/step/trainer.h"
#include "nn/lora/quantized_linear.h"
#include "tests/gpu_test.h"
#include "tests/models/memory/memory_case.h"

namespace lockstep::models {
namespace {

// A Llama most of whose weights are in its blocks.
MemoryCase Case(const std::string& base) {
  return {"qlora",
          2,
          24,
          1,
          1,
          Shape(96, 24, 4, 4, 192,
                {.bias = false,
                 .tie_embeddings = false,
                 .n_kv_head = 2,
                 .norm = NormKind::kRmsNorm,
                 .activation = nn::MlpActivation::kSwiGlu,
                 .position = Position::kRope,
                 .recompute = ParseRecompute("block"),
                 .lora = {.rank = 4, .base = base}}),
          DType::kBF16};
}

// Model, optimizer and three steps; throws OutOfMemoryError beyond `limit` bytes.
int64_t MeasuredPeak(const MemoryCase& c, Device device, int64_t limit) {
  Allocator& allocator = GetAllocator(device);
  const auto tokens = MemoryTokens();
  const int64_t before = allocator.stats().live_bytes;
  allocator.SetLimit(before + limit);
  const auto model = Make(c, device);
  optim::AdamW adamw(model->Parameters(), c.adamw);
  data::Loader loader(tokens, data::Sampler(data::Order::kRandom, 3, tokens->size(), c.window),
                      {.batch_size = c.batch_size, .micro_batches = c.grad_accum});
  Trainer trainer(*model, adamw, optim::LrSchedule({.lr = 1e-3, .decay_steps = 20}), loader,
                  {.micro_batches = c.grad_accum, .clip = c.clip});
  allocator.ResetPeak();
  for (int i = 0; i < 3; ++i) trainer.Step();
  allocator.SetLimit(0);
  return allocator.stats().peak_bytes - before;
}

class QuantizedMemory : public test::DeviceTest {};
INSTANTIATE_TEST_SUITE_P(Devices, QuantizedMemory, test::Devices());

TEST_P(QuantizedMemory, ThePlanIsWhatTheAllocatorMeasures) {
  MemoryCase c = Case("nf4");
  const MemoryPlan plan =
      PlanMemory({.model = [&] { return Make(c, kMeta); },
                  .optimizer =
                      [&](LanguageModel& model) {
                        return std::make_unique<optim::AdamW>(model.Parameters(), c.adamw);
                      },
                  .batch_size = c.batch_size,
                  .window = c.window,
                  .grad_accum = c.grad_accum,
                  .clip = c.clip,
                  .device = GetParam()});
  const auto planned = static_cast<double>(plan.peak.total());
  const auto limit = static_cast<int64_t>(1.03 * planned);
  const auto measured = static_cast<double>(MeasuredPeak(c, GetParam(), limit));
  EXPECT_NEAR(planned, measured, 0.03 * measured) << Summary(plan);
  // The base in 16 bits needs far more than that.
  EXPECT_GT(static_cast<double>(Plan(Case("model")).peak.total()), 1.5 * planned);
}

TEST(QuantizedMemoryPlan, WeightsOfFourBitsTakeWhatTheirFormatSays) {
  const Gpt model(Case("nf4").model), single(Case("nf4_single").model);
  const auto bits = [](const Gpt& m) {
    int64_t bytes = 0;
    for (const auto& [path, layer] : nn::QuantizedLayers(m)) {
      for (const Nf4Matrix& matrix : layer->matrices()) bytes += matrix.layout().bytes;
    }
    return 8.0 * static_cast<double>(bytes) / static_cast<double>(nn::NumQuantizedWeights(m));
  };
  // And 1 KB a matrix, whose share in small ones is visible.
  EXPECT_NEAR(bits(model), 4.127, 0.3);
  EXPECT_GT(bits(model), 4.127);
  EXPECT_NEAR(bits(single), 4.5, 0.01);
  EXPECT_EQ(model.NumWeights(), Gpt(Case("model").model).NumWeights());
}

}  // namespace
}  // namespace lockstep::models
