// Adapters as GGUF: what llama.cpp adds to a model's matrices is what merging adds, also when they
// are read back.
#include "models/export/gguf_adapter.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "core/io/json.h"
#include "models/export/gguf_writer.h"
#include "models/gpt/peft/layer_names.h"
#include "models/gpt/peft/merged_weights.h"
#include "models/gpt/peft/write_adapter.h"
#include "tests/message_of.h"
#include "tests/models/export/gguf_families.h"

namespace lockstep::models {
namespace {

using testing::AllOf;
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

// The matrices have their bits, rounded to the type, but for a factor that was folded into B.
void ExpectReadBack(const GptConfig& config, const PeftAdapter& adapter, GgufType type) {
  const test::TempFolder to("gguf");
  const GgufModel gguf = ToGgufAdapter(config, adapter, type, "tiny adapter");
  WriteGguf(to.Path("f"), gguf.metadata, gguf.tensors);
  const PeftAdapter read = PeftAdapter::Open(to.Path("f"), config);
  const auto values = [type](const Tensor& x) {
    return x.To(GgufDType(type)).To(DType::kF32).ToVector<float>();
  };
  const Gpt model(config);
  size_t found = 0;
  for (const AdaptableLayer& layer : AdaptableLayers(model)) {
    for (const AdaptableLayer::Part& part : layer.parts) {
      const auto [a, b] = adapter.Matrices(part.module);
      const auto [own_a, own_b] = read.Matrices(part.module);
      ASSERT_EQ(a.defined(), own_a.defined()) << part.module;
      if (!a.defined()) continue;
      ++found;
      EXPECT_EQ(own_a.dtype(), GgufDType(type));
      EXPECT_EQ(values(own_a), values(a)) << part.module;
      const double factor =
          adapter.config().ScaleOf(part.module) / read.config().ScaleOf(part.module);
      const std::vector<float> want = values(b), got = values(own_b);
      ASSERT_EQ(want.size(), got.size());
      if (std::abs(factor - 1) < 1e-6) {
        EXPECT_EQ(got, want) << part.module;
        continue;
      }
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_NEAR(got[i], factor * want[i], 1e-2 * std::abs(factor * want[i])) << part.module;
      }
    }
  }
  EXPECT_GT(found, 0u);
  Gpt adapted(config);
  read.AddTo(adapted);
  adapted.Materialize(kCpu, 3);
  read.LoadInto(adapted);
  EXPECT_EQ(nn::LoraParameters(adapted).empty(), false);
}

void ExpectReadBack(const GptConfig& config, const PeftAdapter& adapter) {
  for (const GgufType type : {GgufType::kF32, GgufType::kF16, GgufType::kBF16}) {
    ExpectReadBack(config, adapter, type);
  }
}

TEST(GgufAdapterTest, AddsWhatMergingAdds) {
  for (const std::string family : {"gpt2", "qwen2"}) {
    const std::string base = "tests/testdata/" + family + "_parity";
    SCOPED_TRACE(family);
    const PeftAdapter adapter = PeftAdapter::Open("tests/testdata/" + family + "_peft");
    ExpectMerges(ReadHfConfig(base), base, adapter);
    ExpectReadBack(ReadHfConfig(base), adapter);
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
    if (name.find("lora_B") == name.npos) continue;
    const Tensor b = p->value().Detach();
    for (int64_t i = 0; i < b.numel(); ++i) {
      b.data<float>()[i] = 0.03F * std::sin(static_cast<float>(i));
    }
  }
  PeftConfig peft = PeftConfigOf(model, /*rank_stabilized=*/true);
  peft.alpha_pattern = {{"self_attn.k_proj", 5}, {"mlp.up_proj", 0.5}};
  WriteAdapter(to.Path("adapter"), model, peft, "");
  ExpectMerges(ReadHfConfig(base), base, PeftAdapter::Open(to.Path("adapter")));
  ExpectReadBack(ReadHfConfig(base), PeftAdapter::Open(to.Path("adapter")));
}

// A file with these changes, of one matrix; "" removes a key.
class ChangedAdapter {
 public:
  std::string Error(const std::string& key, const GgufValue& value, const std::string& tensor = "",
                    const std::string& base = "tests/testdata/llama_parity") {
    GgufMetadata metadata = {{"general.architecture", std::string("llama")},
                             {"general.type", std::string("adapter")},
                             {"adapter.type", std::string("lora")},
                             {"adapter.lora.alpha", 4.0F}};
    std::erase_if(metadata, [&](const auto& one) { return one.first == key; });
    if (!key.empty()) metadata.emplace_back(key, value);
    std::vector<GgufTensor> tensors;
    Add(&tensors, "blk.1.attn_q.weight.lora_a", {2, 32});
    Add(&tensors, "blk.1.attn_q.weight.lora_b", {32, 2});
    if (!tensor.empty()) Add(&tensors, tensor, {2, 32});
    WriteGguf(to_.Path("f"), metadata, tensors);
    return test::MessageOf<InputError>([&] {
      const GptConfig config = ReadHfConfig(base);
      Gpt model(config);
      PeftAdapter::Open(to_.Path("f"), config).AddTo(model);
    });
  }
  // The last file's.
  double Scale() const {
    return PeftAdapter::Open(to_.Path("f"), ReadHfConfig("tests/testdata/llama_parity"))
        .config()
        .ScaleOf("model.layers.1.self_attn.q_proj");
  }

 private:
  static void Add(std::vector<GgufTensor>* tensors, const std::string& name, const Shape& shape) {
    tensors->push_back(
        {name, GgufType::kF32, shape, {[shape] { return Tensor::Full(shape, 0.5, DType::kF32); }}});
  }

  const test::TempFolder to_{"gguf"};
};

// Written by gguf-py as llama.cpp's converter does (tests/peers/make_gguf_goldens.py).
TEST(GgufAdapterTest, ReadsThatOfAnotherProgram) {
  const std::string folder = "tests/models/export/testdata";
  const GptConfig config = ReadHfConfig("tests/testdata/llama_parity");
  const PeftAdapter adapter = PeftAdapter::Open(folder + "/adapter.gguf", config);
  const auto golden = Json::parse(ReadFile(folder + "/adapter_golden.json"));
  const auto bits = [](const Tensor& x) {
    std::vector<uint32_t> out;
    for (const float v : x.To(DType::kF32).ToVector<float>()) {
      out.push_back(std::bit_cast<uint32_t>(v));
    }
    return out;
  };
  for (const auto& [module, want] : golden.items()) {
    const auto [a, b] = adapter.Matrices(module);
    ASSERT_TRUE(a.defined()) << module;
    EXPECT_EQ(bits(a), want["a_bits"].get<std::vector<uint32_t>>()) << module;
    EXPECT_EQ(bits(b), want["b_bits"].get<std::vector<uint32_t>>()) << module;
    EXPECT_DOUBLE_EQ(adapter.config().ScaleOf(module), want["scale"].get<double>()) << module;
  }
  Gpt model(config);
  adapter.AddTo(model);
  EXPECT_EQ(nn::LoraAdapters(model).size(), golden.size());
}

TEST(GgufAdapterTest, AlphaZeroAddsTheProduct) {
  ChangedAdapter file;
  EXPECT_EQ(file.Error("", 0.0F), "no error");
  EXPECT_EQ(file.Scale(), 2);
  EXPECT_EQ(file.Error("adapter.lora.alpha", 0.0F), "no error");
  EXPECT_EQ(file.Scale(), 1);
}

TEST(GgufAdapterTest, RefusesWhatItWouldMisread) {
  ChangedAdapter file;
  EXPECT_THAT(file.Error("general.type", std::string("model")), HasSubstr("is \"model\""));
  EXPECT_THAT(file.Error("adapter.type", std::string("dora")), HasSubstr("only \"lora\""));
  EXPECT_THAT(file.Error("general.architecture", std::string("gpt2")),
              HasSubstr("belongs to another model"));
  EXPECT_THAT(file.Error("adapter.alora.invocation_tokens", std::vector<int32_t>{1}),
              HasSubstr("adapter.alora.invocation_tokens"));
  EXPECT_THAT(file.Error("", 0.0F, "token_embd.weight.lora_a"),
              AllOf(HasSubstr("token_embd.weight.lora_a"), HasSubstr("q_proj")));
  EXPECT_THAT(file.Error("", 0.0F, "blk.0.attn_q.weight.lora_a"),
              HasSubstr("is there without its lora_B"));
  EXPECT_THAT(file.Error("", 0.0F, "", "tests/testdata/llama_tied_parity"),
              HasSubstr("belongs to another model"));
  EXPECT_THAT(test::MessageOf<InputError>([] {
                PeftAdapter::Open("tests/models/export/testdata/types.gguf",
                                  ReadHfConfig("tests/testdata/llama_parity"));
              }),
              HasSubstr("that of an adapter is \"adapter\""));
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
