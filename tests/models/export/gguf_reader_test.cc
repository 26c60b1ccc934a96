// GGUF files as models to start from: what Lockstep writes, and what gguf-py does, read back.
#include "models/gpt/gguf/gguf_reader.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <map>

#include "core/io/file.h"
#include "core/io/json.h"
#include "data/conversations/model_template.h"
#include "data/tokenizer/bpe_tokenizer.h"
#include "models/checkpoint/checkpoint.h"
#include "models/export/gguf_tokenizer.h"
#include "models/gpt/hf/hf_format.h"
#include "tests/message_of.h"
#include "tests/models/export/all_merges.h"
#include "tests/models/export/gguf_families.h"

namespace lockstep::models {
namespace {
using test::GgufFamily;
using test::GgufFamilyCases;
using testing::AllOf;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

// Without what only training knows.
std::string Numbers(GptConfig c) {
  c.init_std = 0.02;
  c.dropout = 0;
  c.mixture.balance_loss = c.mixture.z_loss = 0;
  return ToHfConfig(c);
}

// The numbers of a loaded model, by parameter.
std::map<std::string, std::vector<float>> Weights(const GptConfig& config,
                                                  const std::string& path) {
  Gpt model(config);
  model.Materialize(kCpu, 0);
  LoadHfWeights(model, path);
  std::map<std::string, std::vector<float>> out;
  for (const auto& [name, p] : model.NamedParameters()) {
    out[name] = p->value().Detach().ToVector<float>();
  }
  return out;
}

std::vector<float> Logits(const GptConfig& config, const std::string& path) {
  Gpt model(config);
  model.Materialize(kCpu, 0);
  LoadHfWeights(model, path);
  const NoGrad no_grad;
  const Ids ids = {3, 1, 4, 1, 5, 9, 2, 6};
  return model(Tensor::FromVector(ids, {1, std::ssize(ids)})).ToVector<float>();
}

template <class T>
std::vector<float> Rounded(std::vector<float> x) {
  for (float& v : x) v = static_cast<float>(T(v));
  return x;
}

class ReadFamilies : public testing::TestWithParam<size_t> {
 protected:
  std::string WriteAs(GgufType type) const {
    const std::string path = scratch_.Path(StrCat(static_cast<uint32_t>(type), ".gguf"));
    test::WriteFamily(config_, weights_, type, path);
    return path;
  }

  const GgufFamily& case_ = GgufFamilyCases()[GetParam()];
  const GptConfig config_ = test::ConfigOf(case_, case_.changes);
  const test::TempFolder scratch_{"gguf"};
  const std::string weights_ = test::WeightsOf(case_, config_, scratch_);
};

TEST_P(ReadFamilies, HaveTheirBitsBack) {
  const auto wanted = Weights(config_, weights_);
  for (const GgufType type : {GgufType::kF32, GgufType::kF16, GgufType::kBF16}) {
    const std::string path = WriteAs(type);
    const GptConfig read = ReadHfConfig(path);
    EXPECT_EQ(Numbers(read), Numbers(config_));
    const auto got = Weights(read, path);
    ASSERT_EQ(got.size(), wanted.size());
    for (const auto& [name, w] : wanted) {
      const std::vector<float>& g = got.at(name);
      const bool norm = config_.norm_offset == 1 && name.ends_with(".weight") &&
                        (name.find("ln_") != name.npos || name.find("_norm") != name.npos);
      if (norm) {  // w + 1, which is rounded, is what is written, and what multiplies
        ASSERT_EQ(g.size(), w.size());
        for (size_t i = 0; i < w.size(); ++i) EXPECT_EQ(1 + g[i], 1 + w[i]) << name;
      } else {
        EXPECT_TRUE(g == w || (type == GgufType::kF16 && g == Rounded<F16>(w)) ||
                    (type == GgufType::kBF16 && g == Rounded<BF16>(w)))
            << name << " in type " << static_cast<uint32_t>(type);
      }
    }
    // Written again, it is the same file.
    const test::GgufFile first(path), again = test::WriteFamily(read, path, type);
    EXPECT_EQ(again.metadata, first.metadata);
    ASSERT_EQ(again.tensors.size(), first.tensors.size());
    for (const auto& [name, t] : first.tensors) {
      EXPECT_EQ(again.tensors.at(name).bytes, t.bytes) << name;
    }
  }
  EXPECT_EQ(Logits(ReadHfConfig(WriteAs(GgufType::kF32)), WriteAs(GgufType::kF32)),
            Logits(config_, weights_));
}

// A folder with what a reader of its own makes of the blocks.
TEST_P(ReadFamilies, QuantizedOnesAreTheirDequantizedWeights) {
  const std::string path = WriteAs(GgufType::kQ8_0);
  const GptConfig read = ReadHfConfig(path);
  const test::GgufFile file(path);
  std::vector<SafetensorsItem> items;
  for (auto& [name, m] : test::HfTensorsByHand(file, config_).All()) {
    if (config_.norm_offset == 1 && name.ends_with("norm.weight")) {
      for (float& v : m.values) v -= 1;
    }
    items.push_back(SafetensorsItem::Of(
        name, Tensor::FromVector(m.values, Shape(std::span<const int64_t>(m.shape)))));
  }
  WriteHfFolder(scratch_.Path("by_hand"), ToHfConfig(config_), items, 1 << 30);
  EXPECT_EQ(Weights(read, path), Weights(config_, scratch_.Path("by_hand")));
  EXPECT_EQ(Logits(read, path), Logits(config_, scratch_.Path("by_hand")));
}

INSTANTIATE_TEST_SUITE_P(All, ReadFamilies, testing::Range(size_t{0}, GgufFamilyCases().size()),
                         [](const auto& info) { return GgufFamilyCases()[info.param].family; });

// Made by tests/peers/make_gguf_goldens.py.
TEST(GgufReaderTest, ReadsEachTypeAsGgufPyDoes) {
  const std::string folder = "tests/models/export/testdata/";
  const GgufFile file = GgufFile::Open(folder + "types.gguf");
  const Json golden = Json::parse(ReadFile(folder + "types_golden.json"));
  ASSERT_EQ(file.tensors().size(), golden.size());
  for (const auto& [name, entry] : file.tensors()) {
    EXPECT_EQ(GgufTypeName(static_cast<uint32_t>(entry.type)), golden.at(name).at("type"));
    const Tensor x = entry.ToTensor();
    EXPECT_EQ(x.shape(), Shape({2, golden.at(name).at("columns").get<int64_t>()})) << name;
    std::vector<uint32_t> bits;
    for (const float v : x.To(DType::kF32).ToVector<float>()) {
      bits.push_back(std::bit_cast<uint32_t>(v));
    }
    EXPECT_EQ(bits, golden.at(name).at("f32_bits").get<std::vector<uint32_t>>()) << name;
  }
}

// ---- Damaged and foreign files. ----

// The bytes of a file, and edits of it.
class Edited {
 public:
  Edited() {
    const GgufFamily& c = GgufFamilyCases()[1];
    const test::TempFolder to("gguf");
    test::WriteFamily(test::ConfigOf(c, c.changes), test::FolderOf(c), GgufType::kF32,
                      to.Path("f"));
    bytes = ReadFile(to.Path("f"));
  }
  size_t At(const std::string& text) const {
    const size_t at = bytes.find(text);
    EXPECT_NE(at, std::string::npos) << text;
    return at;
  }
  template <class T>
  Edited& Set(size_t at, T value) {
    std::memcpy(&bytes[at], &value, sizeof value);
    return *this;
  }
  // A text of the same length.
  Edited& Replace(const std::string& from, const std::string& to) {
    EXPECT_EQ(from.size(), to.size());
    bytes.replace(At(from), from.size(), to);
    return *this;
  }
  // Where what describes a tensor stands, behind its name.
  size_t Info(const std::string& tensor) const { return At(tensor) + tensor.size(); }
  std::string Error() const {
    return test::MessageOf<InputError>([&] {
      const GgufFile file = GgufFile::Parse(std::as_bytes(std::span(bytes)), "m.gguf");
      HfTensorsOf(file);
    });
  }

  std::string bytes;
};

TEST(GgufReaderTest, NamesWhatIsWrong) {
  EXPECT_EQ(Edited().Error(), "no error");
  constexpr char kLayers[] = "llama.block_count";
  constexpr char kTensor[] = "blk.0.attn_norm.weight";  // [32]
  constexpr size_t kDims = 0, kSize = 4, kType = 12, kOffset = 16;
  const auto info = [&](size_t field, auto value) {
    Edited e;
    return e.Set(e.Info(kTensor) + field, value).Error();
  };
  const auto key = [&](const std::string& name, size_t field, auto value) {
    Edited e;
    return e.Set(e.Info(name) + field, value).Error();
  };
  const std::pair<std::string, const char*> cases[] = {
      {Edited().Set(0, 'X').Error(), "m.gguf: is not a GGUF file"},
      {Edited().Set(4, uint32_t{1}).Error(), "version 1 is not supported"},
      {Edited().Set(4, uint32_t{3} << 24).Error(), "big-endian"},
      {Edited().Set(8, ~uint64_t{0}).Error(), "m.gguf: "},
      {Edited().Set(16, ~uint64_t{0}).Error(), "m.gguf: "},
      {Edited().Set(24, ~uint64_t{0}).Error(), "too long"},
      {Edited().Set(24, uint64_t{1} << 25).Error(), "truncated"},
      {key(kLayers, 0, uint32_t{13}), "\"llama.block_count\" has a value of type 13"},
      {key(kLayers, 4, uint32_t{1}), "no use for these tensors: blk.1."},
      {key(kLayers, 4, uint32_t{9}), "tensors of this model are missing: blk."},
      {key("llama.embedding_length", 4, uint32_t{0}), "m.gguf"},
      {key("llama.attention.head_count", 4, uint32_t{0}), "m.gguf"},
      {key("llama.attention.value_length", 4, uint32_t{3}), "\"llama.attention.value_length\""},
      {key("llama.rope.dimension_count", 4, uint32_t{3}), "\"llama.rope.dimension_count\""},
      {key("llama.rope.scaling.original_context_length", 4, uint32_t{999}), "rope_freqs.weight"},
      {Edited().Replace("llama.block_count", "llama.block_coun_").Error(),
       "\"llama.block_count\" must be"},
      {Edited().Replace("llama.vocab_size", "llama.logit_size").Error(),
       "\"llama.logit_size\" is not known"},
      {Edited().Replace("llama.vocab_size", "llama.block_size").Error(), "is not known"},
      {Edited().Replace("general.name", "general.type").Error(), "\"general.type\" appears twice"},
      {info(kDims, uint32_t{0}), "has 0 dimensions"},
      {info(kDims, uint32_t{5}), "has 5 dimensions"},
      {info(kSize, uint64_t{0}), "has a size of 0"},
      {info(kSize, ~uint64_t{0}), "has a size of -1"},
      {info(kSize, uint64_t{1} << 60), "too large"},
      {info(kSize, uint64_t{33}), "the tensor before it ends"},
      {info(kType, uint32_t{12}), "has the type Q4_K"},
      {info(kType, uint32_t{99}), "has the type number 99"},
      {info(kOffset, uint64_t{1}), "begins at 1"},
      {info(kOffset, ~uint64_t{0}), "begins at 18446744073709551615"},
      {Edited().Replace("blk.0.attn_norm.weight", "blk.1.attn_norm.weight").Error(),
       "\"blk.1.attn_norm.weight\" appears twice"},
      {Edited().Replace("blk.0.attn_norm.weight", "blk.0.attn_none.weight").Error(),
       "are missing: blk.0.attn_norm.weight"},
  };
  for (const auto& [error, want] : cases) EXPECT_THAT(error, HasSubstr(want));
}

TEST(GgufReaderTest, NeedsTheWholeFile) {
  const Edited whole;
  const size_t header = whole.At("blk.0.attn_norm.weight");
  for (size_t size = 0; size < whole.bytes.size() - 32; size += size < header ? 1 : 997) {
    const std::string part = whole.bytes.substr(0, size);
    EXPECT_THAT(test::MessageOf<InputError>(
                    [&] { GgufFile::Parse(std::as_bytes(std::span(part)), "m.gguf"); }),
                HasSubstr("m.gguf: "))
        << size;
  }
}

GgufFile WithKeys(const GgufMetadata& metadata, const test::TempFolder& to) {
  WriteGguf(to.Path("keys.gguf"), metadata, {});
  return GgufFile::Open(to.Path("keys.gguf"));
}

TEST(GgufReaderTest, RefusesFilesOfOtherKinds) {
  const test::TempFolder to("gguf");
  const auto error = [&](const GgufMetadata& metadata) {
    return test::MessageOf<InputError>([&] { HfConfigOf(WithKeys(metadata, to)); });
  };
  EXPECT_THAT(error({{"split.count", uint32_t{3}}}), HasSubstr("llama-gguf-split --merge"));
  EXPECT_THAT(error({{"general.alignment", uint32_t{3}}}), HasSubstr("\"general.alignment\" is 3"));
  EXPECT_THAT(error({{"general.type", std::string("adapter")}}), HasSubstr("\"general.type\""));
  EXPECT_THAT(error({{"general.architecture", std::string("bloom")}}),
              AllOf(HasSubstr("\"general.architecture\" is \"bloom\""), HasSubstr("gemma3")));
  EXPECT_THAT(error({{"general.architecture", std::string("llama")}}),
              HasSubstr("token_embd.weight"));
  WriteFileAtomically(to.Path("text"), "no model");
  EXPECT_THAT(test::MessageOf<InputError>([&] { ReadHfConfig(to.Path("text")); }),
              HasSubstr("text: is a file; of models in one file only GGUF"));
  WriteFileAtomically(to.Path("text.gguf"), "no model");
  EXPECT_THAT(test::MessageOf<InputError>([&] { ReadHfConfig(to.Path("text.gguf")); }),
              HasSubstr("is not a GGUF file"));
}

// ---- Tokenizers. ----

Json Golden(const std::string& kind) {
  return Json::parse(ReadFile("tests/data/testdata/tokenizers/" + kind + ".json"));
}

std::unique_ptr<data::Tokenizer> Reread(const data::Tokenizer& source, GgufMetadata more = {}) {
  GgufMetadata metadata = ToGgufTokenizer(source, source.vocab_size() + 2, "t.json").metadata;
  metadata.insert(metadata.end(), more.begin(), more.end());
  const test::TempFolder to("gguf");
  return TokenizerOf(WithKeys(metadata, to));
}

void ExpectSame(const data::Tokenizer& a, const data::Tokenizer& b, const std::string& kind) {
  ASSERT_EQ(a.vocab_size(), b.vocab_size()) << kind;
  for (int32_t id = 0; id < a.vocab_size(); ++id) {
    EXPECT_EQ(a.TokenText(id), b.TokenText(id)) << kind << " " << id;
  }
  const data::SpecialIds x = a.special_ids(), y = b.special_ids();
  EXPECT_EQ(x.before, y.before) << kind;
  EXPECT_EQ(x.after, y.after) << kind;
  EXPECT_EQ(x.bos, y.bos) << kind;
  EXPECT_EQ(x.eos, y.eos) << kind;
  EXPECT_EQ(a.end_of_text(), b.end_of_text()) << kind;
}

TEST(GgufReaderTest, ByteLevelTokenizersHaveTheirIdsBack) {
  for (const char* kind : {"gpt2", "smollm", "llama3", "qwen2", "gpt4o", "tekken"}) {
    const Json golden = Golden(kind);
    Json tokenizer = golden["tokenizer"];
    if (std::string(kind) == "tekken") tokenizer["model"]["ignore_merges"] = true;
    const data::BpeTokenizer source(tokenizer, tokenizer.dump(), "", "t.json");
    const auto read = Reread(source);
    ExpectSame(*read, source, kind);
    for (const Json& c : golden["cases"]) {
      const std::string text = c["text"];
      EXPECT_EQ(read->Encode(text), source.Encode(text)) << kind << ": " << text;
      EXPECT_EQ(read->EncodeWithSpecials(text), source.EncodeWithSpecials(text)) << kind;
    }
  }
}

TEST(GgufReaderTest, SentencePieceTokenizersHaveTheirIdsBack) {
  for (const char* kind : {"llama2_prepend", "gemma"}) {
    const Json golden = Golden(kind);
    const Json tokenizer = test::WithAllMerges(golden["tokenizer"]);
    const data::BpeTokenizer source(tokenizer, tokenizer.dump(), "", "t.json");
    const auto read = Reread(source);
    ExpectSame(*read, source, kind);
    for (const Json& c : golden["cases"]) {
      const std::string text = c["text"];
      EXPECT_EQ(read->EncodeWithSpecials(text), source.EncodeWithSpecials(text))
          << kind << ": " << text;
    }
  }
}

TEST(GgufReaderTest, CharactersAndBytesComeBack) {
  for (const auto& [kind, text] : {std::pair("char", "b a\\\n\u00e9"), {"byte", ""}}) {
    const auto source = data::MakeTokenizer(kind, text);
    const auto read = Reread(*source);
    EXPECT_EQ(read->name(), kind);
    EXPECT_EQ(read->ToJson(), source->ToJson());
  }
}

TEST(GgufReaderTest, KeepsChatTemplates) {
  const Json tokenizer = Golden("qwen2")["tokenizer"];
  const data::BpeTokenizer qwen(tokenizer, tokenizer.dump(), "", "t.json");
  const auto config = [&](GgufMetadata more) {
    return Json::parse(Reread(qwen, std::move(more))->ConfigJson());
  };
  EXPECT_FALSE(config({}).contains("chat_template"));
  EXPECT_EQ(config({{"tokenizer.chat_template", std::string("D")}})["chat_template"], "D");
  EXPECT_EQ(
      config({{"tokenizer.chat_template", std::string("D")},
              {"tokenizer.chat_template.tools", std::string("T")},
              {"tokenizer.chat_templates", std::vector<std::string>{"tools"}}})["chat_template"],
      Json::array(
          {{{"name", "default"}, {"template", "D"}}, {{"name", "tools"}, {"template", "T"}}}));
  // No folder has one, but the tokenizer does.
  const data::ModelTemplate found = data::LoadModelTemplate(
      "", {"m.gguf"}, Reread(qwen, {{"tokenizer.chat_template", std::string("{{ bos_token }}")}}));
  EXPECT_NE(found.chat_template, nullptr);
  EXPECT_THAT(
      test::MessageOf<InputError>([&] { data::LoadModelTemplate("", {"m.gguf"}, Reread(qwen)); }),
      HasSubstr("there is none in m.gguf"));
}

TEST(GgufReaderTest, RefusesTokenizersByTheirKey) {
  const test::TempFolder to("gguf");
  const auto error = [&](GgufMetadata metadata) {
    metadata.emplace_back("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b"});
    return test::MessageOf<InputError>([&] { TokenizerOf(WithKeys(metadata, to)); });
  };
  using Texts = std::vector<std::string>;
  const std::string model = "tokenizer.ggml.model", pre = "tokenizer.ggml.pre";
  EXPECT_EQ(TokenizerOf(WithKeys({}, to)), nullptr);
  EXPECT_THAT(error({{model, std::string("bert")}}),
              AllOf(HasSubstr("\"tokenizer.ggml.model\" is \"bert\""),
                    HasSubstr("--data.tokenizer=FOLDER"), HasSubstr("--tokenizer=FOLDER")));
  EXPECT_THAT(error({{model, std::string("gpt2")}, {pre, std::string("olmo")}}),
              AllOf(HasSubstr("\"tokenizer.ggml.pre\" is \"olmo\""), HasSubstr("qwen2")));
  EXPECT_THAT(error({{model, std::string("gpt2")}, {pre, std::string("gpt-2")}}),
              HasSubstr("no token is the single byte"));
  EXPECT_THAT(error({{model, std::string("llama")}}), HasSubstr("\"tokenizer.ggml.scores\""));
  EXPECT_THAT(error({{model, std::string("rwkv")}, {"tokenizer.ggml.token_type", Ids{1}}}),
              HasSubstr("\"tokenizer.ggml.token_type\" has 1 elements"));
  EXPECT_THAT(error({{model, std::string("rwkv")}, {"tokenizer.ggml.token_type", Texts{"1", "1"}}}),
              HasSubstr("\"tokenizer.ggml.token_type\""));
  EXPECT_THAT(error({{model, std::string("llama")},
                     {"tokenizer.ggml.scores", std::vector<float>{1, 2}},
                     {"tokenizer.ggml.bos_token_id", uint32_t{2}}}),
              HasSubstr("\"tokenizer.ggml.bos_token_id\" is 2"));
}

}  // namespace
}  // namespace lockstep::models
