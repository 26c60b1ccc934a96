// Weights of 4 bits in models and their files: against bitsandbytes
// (tests/peers/make_nf4_goldens.py), and against models that have the dequantised weights.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/allocator.h"
#include "core/autograd/engine.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "core/io/safetensors.h"
#include "models/gpt/generate.h"
#include "models/gpt/hf/bitsandbytes.h"
#include "models/gpt/hf/hf_format.h"
#include "models/gpt/quantize_base.h"
#include "models/sample/sampled_model.h"
#include "nn/lora/lora.h"
#include "nn/lora/quantized_linear.h"
#include "tests/message_of.h"
#include "tests/models/sample/dequantize.h"
#include "tests/models/temp_folder.h"

namespace lockstep::models {
namespace {

using test::MessageOf;
using testing::AllOf;
using testing::HasSubstr;

constexpr char kFolder[] = "tests/testdata/nf4";

std::vector<uint8_t> Bytes(const Nf4Matrix& m) { return m.data.ToVector<uint8_t>(); }

// ---- Matrices of bitsandbytes. ----

class Nf4Goldens : public testing::TestWithParam<const char*> {
 protected:
  Tensor Get(const std::string& suffix) const {
    return set_.Get(std::string(GetParam()) + suffix).ToTensor();
  }
  bool nested() const { return std::string(GetParam()).ends_with(".nested"); }
  Nf4Matrix Read() const {
    const auto find = [&](const std::string& name) { return set_.Find(name); };
    return ReadBitsAndBytes(find, std::string(GetParam()) + ".weight", Get(".original").shape())
        .value();
  }

  const SafetensorsSet set_ = SafetensorsSet::Open(std::string(kFolder) + "/matrices.safetensors");
};

TEST_P(Nf4Goldens, QuantisingGivesTheBytesOfBitsAndBytes) {
  const Nf4Matrix golden = Read();
  ASSERT_EQ(golden.double_quantized, nested());
  EXPECT_EQ(Bytes(ops::Nf4Quantize(Get(".original"), nested())), Bytes(golden));
}

TEST_P(Nf4Goldens, DequantisedValuesAreEqualToTheBit) {
  const Nf4Matrix golden = Read();
  int compared = 0;
  for (const auto& [dtype, name] :
       {std::pair(DType::kF32, ".float32"), std::pair(DType::kBF16, ".bfloat16"),
        std::pair(DType::kF16, ".float16")}) {
    if (set_.Find(GetParam() + std::string(name)) == nullptr) continue;
    ++compared;
    const Tensor want = Get(name), got = ops::Nf4Dequantize(golden, dtype);
    ASSERT_EQ(want.dtype(), dtype);
    EXPECT_EQ(got.To(DType::kF32).ToVector<float>(), want.To(DType::kF32).ToVector<float>());
  }
  EXPECT_GT(compared, 0);
}

TEST_P(Nf4Goldens, QuantisingDequantisedValuesGivesTheSameCodes) {
  const Nf4Matrix golden = Read();
  const Nf4Matrix again = ops::Nf4Quantize(ops::Nf4Dequantize(golden, DType::kF32), nested());
  const auto codes = [](const Nf4Matrix& m) {
    const Nf4Matrix::Layout l = m.layout();
    const std::vector<uint8_t> all = Bytes(m);
    return std::vector(all.begin() + l.codes, all.begin() + l.codes + (m.shape.numel() + 1) / 2);
  };
  EXPECT_EQ(codes(again), codes(golden));
}

INSTANTIATE_TEST_SUITE_P(Matrices, Nf4Goldens,
                         testing::Values("whole.nested", "whole.f32", "rest.nested", "rest.f32",
                                         "groups.nested", "odd.nested", "odd.f32"));

// ---- Folders of bitsandbytes. ----

struct Logits {
  std::vector<int32_t> ids;
  std::vector<float> values;
};

Logits GoldenLogits() {
  const auto j = Json::parse(ReadFile(std::string(kFolder) + "/logits.json"));
  return {j["ids"].get<std::vector<int32_t>>(), j["logits"].get<std::vector<float>>()};
}

std::vector<float> LogitsOf(Gpt& model, const std::vector<int32_t>& ids) {
  const NoGrad no_grad;
  return model(Tensor::FromVector(ids, {1, std::ssize(ids)})).ToVector<float>();
}

std::unique_ptr<Gpt> Load(const std::string& folder, const std::string& base,
                          Device device = kCpu) {
  GptConfig config = ReadHfConfig(folder);
  config.lora = {.rank = 2, .base = base};
  auto model = std::make_unique<Gpt>(config);
  model->Materialize(device, 0);
  LoadHfWeights(*model, folder);
  return model;
}

TEST(BitsAndBytesFolder, HasTheLogitsOfItsDequantisedWeights) {
  const Logits golden = GoldenLogits();
  for (const char* base : {"model", "nf4"}) {  // dequantised as it is read, or with each product
    const auto model = Load(kFolder, base);
    EXPECT_EQ(nn::QuantizedLayers(*model).empty(), base == std::string("model"));
    const std::vector<float> logits = LogitsOf(*model, golden.ids);
    ASSERT_EQ(logits.size(), golden.values.size());
    for (size_t i = 0; i < logits.size(); ++i) EXPECT_NEAR(logits[i], golden.values[i], 2e-5);
  }
}

TEST(BitsAndBytesFolder, GeneratesTheTokensOfItsDequantisedWeights) {
  EXPECT_EQ(BaseFor("auto", kFolder, {}), "nf4");
  EXPECT_EQ(BaseFor("model", kFolder, {}), "model");
  const std::vector<int32_t> prompt = {3, 1, 4, 15};
  std::vector<std::vector<int32_t>> texts;
  for (const char* base : {"model", "nf4"}) {
    const auto model = LoadSampledModel(kFolder, base, nullptr,
                                        std::make_shared<dist::TensorRanks>(nullptr, 1), kCpu);
    EXPECT_EQ(nn::QuantizedLayers(*model).empty(), base == std::string("model"));
    for (const bool cached : {true, false}) {
      texts.push_back(Generate(*model, prompt, 31, {.tokens = 20, .kv_cache = cached}));
    }
  }
  EXPECT_EQ(texts[0].size(), 20u);
  for (const auto& text : texts) EXPECT_EQ(text, texts[0]);
}

TEST(BitsAndBytesFolder, OtherScalesAreRefused) {
  EXPECT_THAT(MessageOf<InputError>([] { Load(kFolder, "nf4_single"); }),
              AllOf(HasSubstr("q_proj.weight' has scales of 8 bits: use --lora.base=nf4")));
}

TEST(BitsAndBytesFolder, OtherMethodsAreRefusedByTheirField) {
  const std::string config = ReadFile(std::string(kFolder) + "/config.json");
  const auto message = [&](const std::string& from, const std::string& to) {
    std::string changed = config;
    changed.replace(changed.find(from), from.size(), to);
    return MessageOf<InputError>([&] { FromHfConfig(changed, "config.json"); });
  };
  EXPECT_THAT(message("\"quant_method\": \"bitsandbytes\"", "\"quant_method\": \"gptq\""),
              HasSubstr("config.json: \"quantization_config\" has the quant_method \"gptq\""));
  EXPECT_THAT(message("\"bnb_4bit_quant_type\": \"nf4\"", "\"bnb_4bit_quant_type\": \"fp4\""),
              HasSubstr("\"bnb_4bit_quant_type\": \"nf4\""));
  EXPECT_THAT(message("\"load_in_4bit\": true", "\"load_in_4bit\": false"),
              HasSubstr("config.json: \"quantization_config\" must have \"load_in_4bit\": true"));
}

// A matrix [2, 64] of a file whose entries can be changed.
struct Stored {
  std::map<std::string, std::vector<std::byte>> bytes;
  std::map<std::string, SafetensorsEntry> entries;

  void Set(const std::string& suffix, const std::string& dtype,
           std::span<const std::byte> content) {
    const std::string name = "w" + suffix;
    bytes[name].assign(content.begin(), content.end());
    entries[name] = {.name = name,
                     .dtype_name = dtype,
                     .shape = {std::ssize(content)},
                     .bytes = bytes[name],
                     .source = std::make_shared<const std::string>("file")};
  }
  void SetState(const std::string& json) {
    Set(".quant_state.bitsandbytes__nf4", "U8", std::as_bytes(std::span(json)));
  }
  std::string Message() const {
    return MessageOf<InputError>([&] {
      ReadBitsAndBytes(
          [&](const std::string& name) {
            const auto it = entries.find(name);
            return it == entries.end() ? nullptr : &it->second;
          },
          "w", {2, 64});
    });
  }
};

constexpr char kState[] = R"({"quant_type": "nf4", "blocksize": 64, "shape": [2, 64]})";

Stored Valid() {
  Stored s;
  s.Set("", "U8", std::vector<std::byte>(64));
  s.Set(".quant_map", "F32", std::as_bytes(std::span(kNf4Code)));
  const std::array<float, 2> scales = {1, 2};
  s.Set(".absmax", "F32", std::as_bytes(std::span(scales)));
  s.SetState(kState);
  return s;
}

TEST(BitsAndBytesFolder, DamagedMatricesAreRefused) {
  EXPECT_EQ(Valid().Message(), "no error");
  const auto with = [](const auto& change) {
    Stored s = Valid();
    change(s);
    return s.Message();
  };
  EXPECT_THAT(with([](Stored& s) { s.entries.erase("w.absmax"); }),
              HasSubstr("file: 'w' has 4 bits a weight, but 'w.absmax' is missing"));
  EXPECT_THAT(with([](Stored& s) { s.entries.erase("w.quant_state.bitsandbytes__nf4"); }),
              HasSubstr("file: 'w' has integers, and no 'w.quant_state.bitsandbytes__nf4'"));
  EXPECT_THAT(with([](Stored& s) { s.Set("", "U8", std::vector<std::byte>(63)); }),
              HasSubstr("file: 'w' must have 64 elements of u8, and has 63 bytes of U8"));
  EXPECT_THAT(with([](Stored& s) {
                const std::array<float, 2> scales = {1, INFINITY};
                s.Set(".absmax", "F32", std::as_bytes(std::span(scales)));
              }),
              HasSubstr("file: 'w.absmax' has inf as element 1"));
  EXPECT_THAT(with([](Stored& s) {
                std::array<float, 16> code = kNf4Code;
                code[3] = 0;
                s.Set(".quant_map", "F32", std::as_bytes(std::span(code)));
              }),
              HasSubstr("file: 'w.quant_map' does not have the values of nf4"));
  for (const auto& [state, message] : std::vector<std::pair<std::string, std::string>>{
           {"[]", "is not a JSON object"},
           {"{", "quant_state.bitsandbytes__nf4"},
           {R"({"quant_type": "fp4"})", "\"quant_type\" is \"fp4\"; only \"nf4\" is supported"},
           {R"({"blocksize": 128})", "\"blocksize\" is 128; only 64 is supported"},
           {R"({"shape": [2, 32]})", "\"shape\" is [2,32], but this model needs [2, 64]"},
           {R"({"shape": 7})", "\"shape\" must be a list"},
           {"{}", "\"shape\" is [], but this model needs [2, 64]"}}) {
    EXPECT_THAT(with([&](Stored& s) { s.SetState(state); }), HasSubstr(message)) << state;
  }
}

// ---- Models whose weights are quantised as they are read. ----

GptConfig Llama() {
  return Resolved({.vocab_size = 61,
                   .block_size = 32,
                   .n_layer = 3,
                   .n_head = 4,
                   .n_embd = 64,
                   .bias = false,
                   .tie_embeddings = false,
                   .n_kv_head = 2,
                   .norm = NormKind::kRmsNorm,
                   .activation = nn::MlpActivation::kSwiGlu,
                   .position = Position::kRope,
                   .init_std = 0.3});
}
GptConfig Gpt2() {
  return Resolved({.vocab_size = 61,
                   .block_size = 32,
                   .n_layer = 2,
                   .n_head = 2,
                   .n_embd = 48,
                   .init_std = 0.3});
}

// Writes a random model and returns it.
std::unique_ptr<Gpt> Write(const GptConfig& config, DType dtype, const std::string& folder) {
  auto model = std::make_unique<Gpt>(config);
  model->Materialize(kCpu, 5, dtype);
  for (const auto& [name, p] : model->NamedParameters()) {
    if (name.ends_with(".bias")) p->value().Detach().Fill(0.25);
  }
  WriteHfFolder(folder, ToHfConfig(config, dtype), ToHfTensors(*model), int64_t{1} << 40);
  return model;
}

class QuantizedBase : public testing::TestWithParam<bool> {
 protected:
  GptConfig config() const { return GetParam() ? Llama() : Gpt2(); }
  const test::TempFolder folder_{"quantized"};
};
INSTANTIATE_TEST_SUITE_P(Families, QuantizedBase, testing::Bool(),
                         [](const auto& info) { return info.param ? "llama" : "gpt2"; });

// Rows of the fused matrices that are one in the file.
std::vector<int64_t> RowsOf(const GptConfig& c, const std::string& path) {
  const int64_t head = c.n_embd / c.n_head;
  if (c.position != Position::kRope) return {};
  if (path.ends_with("c_attn")) return {c.n_embd, c.n_kv_head * head, c.n_kv_head * head};
  if (path.ends_with("c_fc")) return {c.n_inner, c.n_inner};
  return {};
}

TEST_P(QuantizedBase, EachMatrixOfTheFileIsQuantisedByItself) {
  const auto source = Write(config(), DType::kF32, folder_.path());
  const auto model = Load(folder_.path(), "nf4");
  const auto layers = nn::QuantizedLayers(*model);
  EXPECT_EQ(layers.size(), static_cast<size_t>(4 * config().n_layer));
  for (const auto& [name, p] : source->NamedParameters()) {
    for (const auto& [path, layer] : layers) {
      if (name != path + ".weight") continue;
      std::vector<int64_t> rows = RowsOf(config(), path);
      if (rows.empty()) rows = {p->logical_shape()[0]};
      ASSERT_EQ(layer->num_matrices(), rows.size()) << path;
      int64_t begin = 0;
      for (size_t i = 0; i < rows.size(); ++i) {
        const Tensor part = p->value().Detach().Slice(0, begin, begin + rows[i]);
        EXPECT_EQ(Bytes(layer->matrix(i)), Bytes(ops::Nf4Quantize(part))) << path << " " << i;
        begin += rows[i];
      }
    }
  }
}

// A step has the loss and the gradients of one with adapters beside the dequantised weights.
TEST_P(QuantizedBase, StepsAreThoseOfTheDequantisedWeights) {
  Write(config(), DType::kF32, folder_.path());
  const auto quantized = Load(folder_.path(), "nf4"), plain = Load(folder_.path(), "model");
  CopyDequantized(*quantized, *plain);
  const auto adapters = nn::LoraParameters(*quantized), others = nn::LoraParameters(*plain);
  ASSERT_EQ(adapters.size(), others.size());
  ASSERT_FALSE(adapters.empty());
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 2 * 25; ++i) ids.push_back(i * i % 61);
  const Tensor x = Tensor::FromVector(ids, {2, 25});
  std::vector<float> losses;
  for (Gpt* model : {quantized.get(), plain.get()}) {
    for (const auto& [name, p] : nn::LoraParameters(*model)) {
      if (name.find("lora_B") != name.npos) p->value().Detach().Fill(0.01);
    }
    const Tensor loss = model->Loss(x, x);
    losses.push_back(static_cast<float>(loss.Item()));
    Backward(loss);
  }
  EXPECT_EQ(losses[0], losses[1]);
  for (size_t i = 0; i < adapters.size(); ++i) {
    ASSERT_EQ(adapters[i].first, others[i].first);
    const auto got = adapters[i].second->grad().ToVector<float>();
    const auto want = others[i].second->grad().ToVector<float>();
    EXPECT_EQ(got, want) << adapters[i].first;
  }
  for (const auto& [name, p] : quantized->NamedParameters()) {
    EXPECT_EQ(p->trainable(), IsOfAdapter(name)) << name;
  }
}

// The 16-bit model is never in memory: beside what stays there are one or two copies of a matrix.
TEST_P(QuantizedBase, LoadingTakesTheMemoryOfOneMatrix) {
  GptConfig config = this->config();
  config.n_layer = 12;
  config.n_embd = 192;
  config.n_inner = 0;
  config = Resolved(config);
  const int64_t whole = Write(config, DType::kBF16, folder_.path())->NumParameters() * 2;
  Allocator& allocator = GetAllocator(kCpu);
  allocator.ResetPeak();
  const int64_t before = allocator.stats().live_bytes;
  config.lora = {.rank = 2, .base = "nf4"};
  Gpt model(config);
  model.Materialize(kCpu, 0, DType::kBF16);
  LoadHfWeights(model, folder_.path());
  int64_t kept = 0, matrix = 0;
  for (const auto& p : model.Parameters()) kept += p->value().bytes();
  for (const auto& [path, layer] : nn::QuantizedLayers(model)) {
    for (const Nf4Matrix& m : layer->matrices()) {
      matrix = std::max(matrix, 2 * m.shape.numel());
      kept += m.data.bytes();
    }
  }
  const AllocatorStats stats = allocator.stats();
  EXPECT_LT(stats.live_bytes - before, kept + 100'000);
  EXPECT_LT(stats.peak_bytes - before, kept + 3 * matrix + 100'000);
  EXPECT_LT(stats.peak_bytes - before, whole / 2);
}

// ---- Errors. ----

TEST(QuantizedBaseErrors, SayWhichWeightAndWhy) {
  const test::TempFolder folder("quantized");
  GptConfig config = Gpt2();
  auto source = Write(config, DType::kF32, folder.path());
  for (const auto& [name, p] : source->NamedParameters()) {
    if (name == "h.1.mlp.c_fc.weight") p->value().Detach().Slice(0, 3, 4).Fill(NAN);
  }
  WriteHfFolder(folder.path(), ToHfConfig(config), ToHfTensors(*source), int64_t{1} << 40);
  EXPECT_THAT(MessageOf<InputError>([&] { Load(folder.path(), "nf4"); }),
              AllOf(HasSubstr("model.safetensors: 'h.1.mlp.c_fc.weight': "),
                    HasSubstr("infinite or undefined (NaN) weights")));
  EXPECT_THAT(MessageOf<InputError>([&] { Load(folder.path(), "nf4_single"); }), HasSubstr("NaN"));
  EXPECT_THAT(MessageOf([] {
                nn::QuantizedLinear(nn::Linear(4, 6), {.rows = {2, 3}});
              }),
              HasSubstr("must have 6 rows together"));
  nn::Linear linear(4, 6);
  EXPECT_THAT(MessageOf([&] { nn::QuantizeLinear(linear, "fc"); }),
              HasSubstr("QuantizeLinear: there is no linear layer at 'fc'"));
  nn::QuantizedLinear quantized(linear);
  EXPECT_THAT(MessageOf([&] {
                quantized.SetMatrix(0, Nf4Matrix::Empty({6, 5}, true));
              }),
              HasSubstr("matrix 0 cannot become one of shape [6, 5]"));
}

}  // namespace
}  // namespace lockstep::models
