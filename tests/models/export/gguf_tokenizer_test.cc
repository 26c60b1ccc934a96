// Tokenizers as GGUF: what llama.cpp makes of their tokens, scores and merges.
#include "models/export/gguf_tokenizer.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <map>

#include "core/io/file.h"
#include "core/io/json.h"
#include "data/tokenizer/bpe_tokenizer.h"
#include "tests/message_of.h"
#include "tests/models/export/all_merges.h"

namespace lockstep::models {
namespace {
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using Ids = std::vector<int32_t>;

Json Golden(const std::string& kind) {
  return Json::parse(ReadFile("tests/data/testdata/tokenizers/" + kind + ".json"));
}

std::unique_ptr<data::Tokenizer> Load(const Json& tokenizer) {
  return std::make_unique<data::BpeTokenizer>(tokenizer, tokenizer.dump(), "", "t.json");
}

class Exported {
 public:
  explicit Exported(const Json& tokenizer, int64_t more = 0)
      : source(Load(tokenizer)),
        gguf(ToGgufTokenizer(*source, source->vocab_size() + more, "t.json")),
        values_(gguf.metadata.begin(), gguf.metadata.end()) {}

  template <class T>
  T Get(const std::string& key) const {
    return std::get<T>(values_.at("tokenizer.ggml." + key));
  }
  bool Has(const std::string& key) const { return values_.contains("tokenizer.ggml." + key); }

  const std::unique_ptr<data::Tokenizer> source;
  const GgufTokenizer gguf;

 private:
  const std::map<std::string, GgufValue> values_;
};

std::string Refusal(const Json& tokenizer) {
  return test::MessageOf<InputError>([&] { Exported{tokenizer}; });
}

TEST(GgufTokenizerTest, NamesTheCutOfByteLevelOnes) {
  const std::map<std::string, std::string> pres = {{"gpt2", "gpt-2"},       {"smollm", "smollm"},
                                                   {"llama3", "llama-bpe"}, {"qwen2", "qwen2"},
                                                   {"gpt4o", "gpt-4o"},     {"tekken", "tekken"}};
  for (const auto& [kind, pre] : pres) {
    Json tokenizer = Golden(kind)["tokenizer"];
    if (kind == "tekken") tokenizer["model"]["ignore_merges"] = true;
    const Exported e(tokenizer);
    EXPECT_EQ(e.Get<std::string>("model"), "gpt2") << kind;
    EXPECT_EQ(e.Get<std::string>("pre"), pre) << kind;
    EXPECT_FALSE(e.Has("scores")) << kind;
    const auto tokens = e.Get<std::vector<std::string>>("tokens");
    ASSERT_EQ(std::ssize(tokens), e.source->vocab_size());
    const Json& model = tokenizer["model"];
    for (const auto& [token, id] : model["vocab"].items()) {
      EXPECT_EQ(tokens[id.get<size_t>()], token) << kind;
    }
    const auto merges = e.Get<std::vector<std::string>>("merges");
    ASSERT_EQ(merges.size(), model["merges"].size());
    for (size_t i = 0; i < merges.size(); ++i) {
      const Json& m = model["merges"][i];
      EXPECT_EQ(merges[i], m.is_string() ? m.get<std::string>()
                                         : m[0].get<std::string>() + " " + m[1].get<std::string>());
    }
    EXPECT_EQ(e.Get<bool>("add_bos_token"), kind == "llama3" || kind == "tekken") << kind;
    EXPECT_FALSE(e.Get<bool>("add_eos_token")) << kind;
    EXPECT_EQ(e.gguf.differences.empty(), kind != "qwen2") << kind;  // NFC
  }
  for (const char* kind : {"cl100k", "deepseek", "nanochat"}) {
    EXPECT_THAT(Refusal(Golden(kind)["tokenizer"]),
                AllOf(HasSubstr("pre_tokenizer"), HasSubstr("gpt-2, smollm, llama-bpe")))
        << kind;
  }
  Json llama3 = Golden("llama3")["tokenizer"];
  llama3["model"]["ignore_merges"] = false;
  EXPECT_EQ(Exported(llama3).Get<std::string>("pre"), "smaug-bpe");
  Json qwen2 = Golden("qwen2")["tokenizer"];
  qwen2["model"]["ignore_merges"] = true;
  EXPECT_THAT(Refusal(qwen2), HasSubstr("ignore_merges"));
}

TEST(GgufTokenizerTest, MarksTokens) {
  const Exported e(Golden("llama3")["tokenizer"], /*more=*/3);
  const auto types = e.Get<Ids>("token_type");
  const auto tokens = e.Get<std::vector<std::string>>("tokens");
  const Json added = Golden("llama3")["tokenizer"]["added_tokens"];
  ASSERT_GT(added.size(), 0u);
  for (const Json& token : added) {
    const auto id = token["id"].get<size_t>();
    EXPECT_EQ(tokens[id], token["content"]);
    EXPECT_EQ(types[id], token["special"].get<bool>() ? 3 : 4);
  }
  EXPECT_EQ(std::ranges::count(types, 5), 3);
  EXPECT_EQ(types.back(), 5);
  EXPECT_EQ(tokens.back(), StrCat("[PAD", tokens.size() - 1, "]"));
  EXPECT_EQ(e.Get<uint32_t>("bos_token_id"),
            static_cast<uint32_t>(e.source->special_ids().bos.value()));
}

// llama.cpp's tokenizer after SentencePiece: of all neighbours whose text together is a token, the
// one with the highest score is joined, the first of equals, until there is none; what is no token
// then becomes bytes.
Ids TokenizeByScores(const std::string& text, const Exported& e) {
  const auto tokens = e.Get<std::vector<std::string>>("tokens");
  const auto scores = e.Get<std::vector<float>>("scores");
  std::map<std::string, int32_t> ids;
  for (size_t i = 0; i < tokens.size(); ++i) ids.emplace(tokens[i], static_cast<int32_t>(i));
  std::vector<std::string> symbols;
  const std::string with_space =
      (e.Get<bool>("add_space_prefix") && !text.empty() ? " " : "") + text;
  for (const char byte : with_space) {
    const bool inside = (static_cast<uint8_t>(byte) & 0xC0) == 0x80;
    if (inside && !symbols.empty()) {
      symbols.back() += byte;
    } else {
      symbols.push_back(byte == ' ' ? "\u2581" : std::string(1, byte));
    }
  }
  for (;;) {
    size_t best = symbols.size();
    float score = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto it = ids.find(symbols[i] + symbols[i + 1]);
      if (it == ids.end()) continue;
      const float own = scores[static_cast<size_t>(it->second)];
      if (best == symbols.size() || own > score) best = i, score = own;
    }
    if (best == symbols.size()) break;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
  Ids out;
  constexpr std::string_view kHex = "0123456789ABCDEF";
  for (const std::string& symbol : symbols) {
    if (ids.contains(symbol)) {
      out.push_back(ids.at(symbol));
      continue;
    }
    for (const char c : symbol) {
      const auto byte = static_cast<uint8_t>(c);
      out.push_back(ids.at(std::string("<0x") + kHex[byte / 16] + kHex[byte % 16] + ">"));
    }
  }
  return out;
}

class SentencePieceTest : public testing::TestWithParam<const char*> {};

TEST_P(SentencePieceTest, ScoresGiveTheIdsOfMerges) {
  const Json golden = Golden(GetParam());
  const Exported e(test::WithAllMerges(golden["tokenizer"]));
  EXPECT_EQ(e.Get<std::string>("model"), "llama");
  EXPECT_FALSE(e.Has("merges"));
  EXPECT_EQ(e.Get<bool>("add_space_prefix"), std::string(GetParam()) != "gemma");
  const bool metaspace = std::string(GetParam()) == "llama2_metaspace";
  const auto& notes = e.gguf.differences;
  EXPECT_EQ(std::ranges::count_if(notes, [](auto& n) { return n.starts_with("puts a space"); }),
            metaspace ? 1 : 0);
  const auto types = e.Get<Ids>("token_type");
  EXPECT_EQ(std::ranges::count(types, 6), 256);
  EXPECT_EQ(std::ranges::count(types, 2), 1);
  int compared = 0;
  for (const Json& c : golden["cases"]) {
    const std::string text = c["text"];
    const auto spells_added = [&](const Json& token) {
      return text.find(token["content"].get<std::string>()) != std::string::npos;
    };
    if (std::ranges::any_of(golden["tokenizer"]["added_tokens"], spells_added)) continue;
    if (metaspace && (text.starts_with(" ") || text.starts_with("\u2581"))) continue;
    const Ids ids = TokenizeByScores(text, e);
    const auto is_added = [&](int32_t id) { return types[static_cast<size_t>(id)] == 4; };
    if (const auto it = std::ranges::find_if(ids, is_added); it != ids.end()) {
      // As was told.
      const std::string token = e.Get<std::vector<std::string>>("tokens")[static_cast<size_t>(*it)];
      EXPECT_THAT(notes, testing::Contains(AllOf(HasSubstr("also makes the added token"),
                                                 HasSubstr(Quoted(token)))));
      continue;
    }
    EXPECT_EQ(ids, e.source->Encode(text)) << text;
    ++compared;
  }
  EXPECT_GE(compared, 40);
}

INSTANTIATE_TEST_SUITE_P(All, SentencePieceTest,
                         testing::Values("llama2_prepend", "llama2_metaspace", "gemma"));

// llama.cpp's "rwkv" takes the longest token, with escapes undone.
TEST(GgufTokenizerTest, CharactersAndBytesAreTokens) {
  using Tokens = std::vector<std::string>;
  const auto exported = [](const char* kind, const char* text, int64_t size) {
    const GgufTokenizer gguf = ToGgufTokenizer(*data::MakeTokenizer(kind, text), size, "t.json");
    std::map<std::string, GgufValue> values(gguf.metadata.begin(), gguf.metadata.end());
    EXPECT_EQ(std::get<std::string>(values.at("tokenizer.ggml.model")), "rwkv");
    EXPECT_EQ(values.count("tokenizer.ggml.eos_token_id"), 0u);
    return std::pair(std::get<Tokens>(values.at("tokenizer.ggml.tokens")), gguf.differences.size());
  };
  EXPECT_EQ(exported("char", "b a\\\n", 5),
            std::pair(Tokens{"\\x0a", "\\x20", "\\x5c", "a", "b"}, size_t{0}));
  EXPECT_EQ(exported("char", "a\u00e9", 3),
            std::pair(Tokens{"a", "\\xc3\\xa9", "\\xff\\xff[PAD2]"}, size_t{1}));
  const auto [bytes, differences] = exported("byte", "", 256);
  EXPECT_EQ(bytes['A'], "A");
  EXPECT_EQ(bytes[200], "\\xc8");
  EXPECT_EQ(differences, 0u);
}

TEST(GgufTokenizerTest, AddedTokensThatTheModelLacksAreLeftOut) {
  const auto source = Load(Golden("qwen2")["tokenizer"]);  // its last is an added one
  const GgufTokenizer gguf = ToGgufTokenizer(*source, source->vocab_size() - 1, "t.json");
  EXPECT_THAT(gguf.differences,
              testing::Contains(HasSubstr(source->TokenText(source->vocab_size() - 1))));
}

TEST(GgufTokenizerTest, RefusesWhatItCannotSay) {
  EXPECT_THAT(Refusal(Golden("llama2_prepend")["tokenizer"]),
              AllOf(HasSubstr("t.json: model.merges"), HasSubstr("not all there are")));
  const Json llama2 = test::WithAllMerges(Golden("llama2_prepend")["tokenizer"]);
  Json j = llama2;
  Json::Array& merges = j["model"]["merges"].list();
  const auto made = [](const Json& m) { return m[0].get<std::string>() + m[1].get<std::string>(); };
  for (size_t i = 1; i < merges.size(); ++i) {
    if (made(merges[i]) != made(merges[i - 1])) continue;
    const Json apart = merges[i];
    merges.erase(merges.begin() + static_cast<std::ptrdiff_t>(i));
    merges.push_back(apart);
    break;
  }
  EXPECT_THAT(Refusal(j), HasSubstr("do not follow one another"));
  j = llama2;
  j["model"]["vocab"].erase("<0x41>");
  j["model"]["byte_fallback"] = false;
  EXPECT_THAT(Refusal(j), AllOf(HasSubstr("vocab"), HasSubstr("<0x00> to <0xFF>")));
  const auto source = Load(llama2);
  EXPECT_THAT(test::MessageOf<InputError>(
                  [&] { ToGgufTokenizer(*source, source->vocab_size() - 1, "t.json"); }),
              AllOf(HasSubstr(StrCat("has ", source->vocab_size(), " tokens")),
                    HasSubstr("another model")));
  Json gpt2 = Golden("gpt2")["tokenizer"];
  gpt2["pre_tokenizer"]["add_prefix_space"] = true;
  EXPECT_THAT(Refusal(gpt2), HasSubstr("add_prefix_space"));
}

}  // namespace
}  // namespace lockstep::models
