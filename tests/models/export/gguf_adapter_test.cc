// Adapters as GGUF: what llama.cpp adds to a model's matrices is what merging adds.
#include "models/export/gguf_adapter.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>

#include "models/export/gguf_writer.h"
#include "models/gpt/peft/merged_weights.h"
#include "models/gpt/peft/write_adapter.h"
#include "tests/message_of.h"
#include "tests/models/export/gguf_families.h"

namespace lockstep::models {
namespace {

using testing::HasSubstr;

test::GgufFile Written(const GgufModel& gguf) {
  const test::TempFolder to("gguf");
  WriteGguf(to.Path("f"), gguf.metadata, gguf.tensors);
  return test::GgufFile(to.Path("f"));
}

// The model with the adapter merged, in f32.
test::GgufFile Merged(const GptConfig& config, const std::string& base,
                      const PeftAdapter& adapter) {
  Gpt model(config);
  model.Materialize(kMeta, 0);
  const WeightSource weights =
      MergedWeights(config, adapter, HfWeightSource(model, base), DType::kF32);
  return Written(ToGguf(config, ToHfTensors(model, weights), GgufType::kF32, "merged"));
}

void ExpectMerges(const GptConfig& config, const std::string& base, const PeftAdapter& adapter) {
  const test::GgufFile plain = test::WriteFamily(config, base, GgufType::kF32);
  const test::GgufFile merged = Merged(config, base, adapter);
  const test::GgufFile lora =
      Written(ToGgufAdapter(config, adapter, GgufType::kF32, "tiny adapter"));
  EXPECT_EQ(lora.Get<std::string>("general.type"), "adapter");
  EXPECT_EQ(lora.Get<std::string>("adapter.type"), "lora");
  EXPECT_EQ(lora.Get<std::string>("general.architecture"),
            plain.Get<std::string>("general.architecture"));
  const auto alpha = double{lora.Get<float>("adapter.lora.alpha")};
  size_t adapted = 0;
  for (const auto& [name, t] : merged.tensors) {
    std::vector<float> want = t.Floats(), got = plain.tensors.at(name).Floats();
    const auto a = lora.tensors.find(name + ".lora_a"), b = lora.tensors.find(name + ".lora_b");
    ASSERT_EQ(a == lora.tensors.end(), b == lora.tensors.end());
    if (a == lora.tensors.end()) {
      EXPECT_EQ(got, want) << name;
      continue;
    }
    ++adapted;
    // As llama.cpp checks them.
    const uint64_t in = t.sizes[0], out = t.sizes[1], rank = b->second.sizes[0];
    ASSERT_EQ(a->second.sizes, (std::vector<uint64_t>{in, rank})) << name;
    ASSERT_EQ(b->second.sizes, (std::vector<uint64_t>{rank, out})) << name;
    const std::vector<float> x = a->second.Floats(), y = b->second.Floats();
    for (uint64_t row = 0; row < out; ++row) {
      for (uint64_t column = 0; column < in; ++column) {
        double sum = 0;
        for (uint64_t r = 0; r < rank; ++r) sum += double{y[row * rank + r]} * x[r * in + column];
        const double value = got[row * in + column] + alpha / static_cast<double>(rank) * sum;
        ASSERT_NEAR(value, want[row * in + column], 1e-6 * (1 + std::abs(value)))
            << name << " " << row << " " << column;
      }
    }
  }
  EXPECT_EQ(2 * adapted, lora.tensors.size());
  EXPECT_GT(adapted, 0u);
}

TEST(GgufAdapterTest, AddsWhatMergingAdds) {
  for (const std::string family : {"gpt2", "qwen2"}) {
    const std::string base = "tests/testdata/" + family + "_parity";
    SCOPED_TRACE(family);
    ExpectMerges(ReadHfConfig(base), base, PeftAdapter::Open("tests/testdata/" + family + "_peft"));
  }
}

TEST(GgufAdapterTest, HasScalesOfEachMatrix) {
  const std::string base = "tests/testdata/llama_parity";
  const test::TempFolder to("gguf");
  GptConfig config = ReadHfConfig(base);
  config.lora.rank = 2;
  Gpt model(config);
  model.Materialize(kCpu, 5);
  for (const auto& [name, p] : model.NamedParameters()) {  // B is zero at first
    if (name.find("lora_B") != name.npos) p->value().Detach().Fill(0.03);
  }
  PeftConfig peft = PeftConfigOf(model, /*rank_stabilized=*/true);
  peft.alpha_pattern = {{"self_attn.k_proj", 5}, {"mlp.up_proj", 0.5}};
  WriteAdapter(to.Path("adapter"), model, peft, "");
  ExpectMerges(ReadHfConfig(base), base, PeftAdapter::Open(to.Path("adapter")));
}

TEST(GgufAdapterTest, RefusesWholeWeights) {
  EXPECT_THAT(test::MessageOf<InputError>([] {
                ToGgufAdapter(ReadHfConfig("tests/testdata/llama_parity"),
                              PeftAdapter::Open("tests/testdata/llama_peft"), GgufType::kF32,
                              "tiny");
              }),
              HasSubstr("has the whole of lm_head"));
}

}  // namespace
}  // namespace lockstep::models
