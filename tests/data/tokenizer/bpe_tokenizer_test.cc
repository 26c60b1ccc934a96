#include "data/tokenizer/bpe_tokenizer.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <random>
#include <sstream>
#include <thread>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "data/text/text_parts.h"
#include "data/tokenizer/byte_alphabet.h"
#include "data/utf8.h"
#include "tests/data/data_test_util.h"

namespace lockstep::data {
namespace {
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Ids = std::vector<int32_t>;

std::unique_ptr<Tokenizer> Load(const Json& file, const std::string& config = "") {
  return std::make_unique<BpeTokenizer>(file, file.dump(), config, "t.json");
}

// Tokenizers of each kind, and what Hugging Face's library makes of awkward texts
// (tests/peers/make_tokenizer_goldens.py).
class GoldenTest : public testing::TestWithParam<std::string> {
 protected:
  const Json golden_ = Json::parse(ReadFile(TestData("tokenizers/" + GetParam() + ".json")));
  const std::unique_ptr<Tokenizer> tokenizer_ = Load(golden_["tokenizer"]);
};

TEST_P(GoldenTest, IdsAndTextsAreHuggingFaces) {
  ASSERT_GE(golden_["cases"].size(), 70u);
  for (const Json& golden : golden_["cases"]) {
    const std::string text = golden["text"];
    const Ids ids = tokenizer_->Encode(text);
    ASSERT_EQ(ids, golden["ordinary"].get<Ids>()) << text;
    ASSERT_EQ(tokenizer_->EncodeWithSpecials(text),
              golden.value("specials", golden["ordinary"]).get<Ids>())
        << text;
    const Json decoded = golden.value("decoded", Json(text));
    if (!decoded.is_null()) {
      ASSERT_EQ(tokenizer_->Decode(ids), decoded) << text;
    }
    ASSERT_EQ(tokenizer_->Encode(text), ids) << "from the cache: " << text;
  }
}

TEST_P(GoldenTest, KnowsWhatStandsAroundAText) {
  const SpecialIds special = tokenizer_->special_ids();
  EXPECT_EQ(special.before, golden_["around"].get<Ids>());
  EXPECT_THAT(special.after, IsEmpty());
}

TEST_P(GoldenTest, SurvivesItsOwnJson) {
  const auto same = Tokenizer::FromJson(tokenizer_->ToJson(), "again");
  EXPECT_EQ(same->ToJson(), tokenizer_->ToJson());
  for (const Json& golden : golden_["cases"]) {
    ASSERT_EQ(same->Encode(golden["text"].get<std::string>()), golden["ordinary"].get<Ids>());
  }
}

TEST_P(GoldenTest, TokenTextsMakeUpTheText) {
  for (const Json& golden : golden_["cases"]) {
    const Ids ids = golden["ordinary"];
    if (ids.empty()) continue;
    std::string text = tokenizer_->Decode(Ids{ids[0]});
    for (size_t i = 1; i < ids.size(); ++i) text += tokenizer_->TokenText(ids[i]);
    ASSERT_EQ(text, tokenizer_->Decode(ids));
  }
}

TEST_P(GoldenTest, MalformedBytesDoNotTouchTheirNeighbours) {
  const std::string left = "cat";
  const Ids first = tokenizer_->Encode(left), ids = tokenizer_->Encode(left + "\xff\xc3" + "bar");
  ASSERT_GE(ids.size(), first.size());
  EXPECT_TRUE(std::equal(first.begin(), first.end(), ids.begin()));
  if (GetParam() == "unknown") return;  // has no tokens for bytes
  EXPECT_THAT(tokenizer_->Decode(ids), HasSubstr("cat\xff\xc3"));
}

// Encodes `text` in pieces, each cut at the first place from `piece` bytes on; counts the cuts.
Ids EncodeInPieces(const Tokenizer& tokenizer, std::string_view text, size_t piece, int* cuts) {
  Ids ids;
  for (bool first = true; !text.empty(); first = false) {
    const std::string_view part = text.substr(0, FindTextCut(text, piece, text.size()));
    if (first) {
      tokenizer.EncodeTo(part, &ids);
    } else {
      tokenizer.EncodeRestTo(part, &ids);
    }
    text.remove_prefix(part.size());
    *cuts += !text.empty();
  }
  return ids;
}

TEST_P(GoldenTest, PiecesHaveTheIdsOfTheWhole) {
  const bool known = GetParam() != "behaviors" && GetParam() != "flags" && GetParam() != "unknown";
  const bool in_parts = EncodesInParts(*tokenizer_);
  if (known) {
    ASSERT_TRUE(in_parts);
  }
  if (!in_parts) return;
  const std::vector<std::string> parts = {
      " ",      "  ",     "\n",         "\n\n", "\r\n",        "\t",      "\u3000", "\u00a0",
      "\u180e", "a",      "B",          "the",  "\u00e9",      "e\u0301", "\u4e2d", "\u05d0",
      "7",      "123",    "\u0663",     "'s",   "'",           ".",       "/",      "(",
      "\u3002", "\u0301", "\U0001F600", "<b>",  "\u1100\u1161"};
  std::mt19937 random(3);
  int cuts = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    const size_t count = 1 + random() % 40;
    while (text.size() < 3 * count) text += parts[random() % parts.size()];
    ASSERT_EQ(EncodeInPieces(*tokenizer_, text, 1 + random() % 20, &cuts), tokenizer_->Encode(text))
        << Json(text);
  }
  EXPECT_GT(cuts, 3000);
  for (const Json& golden : golden_["cases"]) {
    const std::string text = golden["text"];
    ASSERT_EQ(EncodeInPieces(*tokenizer_, text, 1, &cuts), golden["ordinary"].get<Ids>()) << text;
  }
}

// A byte-level tokenizer with a pattern whose words end behind the white space.
TEST(TextPartsTest, APatternThatJoinsWordsIsNoticed) {
  const Json golden = Json::parse(ReadFile(TestData("tokenizers/llama3.json")));
  Json file = golden["tokenizer"];
  ASSERT_TRUE(EncodesInParts(*Load(file)));
  file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = R"(\S+\s*|\s+)";
  file["model"]["ignore_merges"] = false;
  const std::string space = BytesToPrintable(" ");
  Json::Array& merges = file["model"]["merges"].list();
  merges.insert(merges.begin(), Json::array({"e", space}));
  Json& vocab = file["model"]["vocab"];
  vocab["e" + space] = vocab.size();
  EXPECT_FALSE(EncodesInParts(*Load(file)));
}

// One without words, of whose tokens one crosses a place to cut.
TEST(TextPartsTest, ATokenOfSeveralWordsIsNoticed) {
  Json file = Json::parse(ReadFile(TestData("tokenizers/llama3.json")))["tokenizer"];
  file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = R"([\s\S]+)";
  file["model"]["ignore_merges"] = false;
  EXPECT_TRUE(EncodesInParts(*Load(file)));
  const std::string space = BytesToPrintable(" ");
  Json::Array& merges = file["model"]["merges"].list();
  merges.insert(merges.begin(), {Json::array({"n", space}), Json::array({"n" + space, "t"})});
  Json& vocab = file["model"]["vocab"];
  for (const char* end : {"", "t"}) vocab["n" + space + end] = vocab.size();
  EXPECT_FALSE(EncodesInParts(*Load(file)));
}

std::vector<std::string> GoldenNames() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(TestData("tokenizers"))) {
    names.push_back(entry.path().stem());
  }
  std::ranges::sort(names);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Kinds, GoldenTest, testing::ValuesIn(GoldenNames()),
                         [](const auto& info) { return info.param; });

TEST(GoldenFilesTest, AllKindsAreThere) {
  EXPECT_THAT(GoldenNames(),
              testing::IsSupersetOf({"gpt2", "llama3", "qwen2", "gpt4o", "tekken", "smollm",
                                     "llama2_prepend", "llama2_metaspace", "gemma"}));
}

// A byte-level tokenizer of the bytes and the merges.
Json ByteLevelFile(const std::vector<std::pair<std::string, std::string>>& merges) {
  Json vocab = Json::object(), list = Json::array();
  for (int byte = 0; byte < 256; ++byte) {
    vocab[BytesToPrintable(std::string(1, static_cast<char>(byte)))] = byte;
  }
  for (const auto& [left, right] : merges) {
    list.push_back({left, right});
    vocab.emplace(left + right, vocab.size());
  }
  return {
      {"added_tokens", Json::array()},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", list}}}};
}

// A tokenizer of characters without pre-tokenizer, with bytes to fall back to.
Json CharacterFile(const std::string& characters,
                   const std::vector<std::pair<std::string, std::string>>& merges) {
  Json vocab = {{"<unk>", 0}}, list = Json::array();
  for (int byte = 0; byte < 256; ++byte) {
    char token[8];
    std::snprintf(token, sizeof(token), "<0x%02X>", byte);
    vocab[token] = vocab.size();
  }
  for (size_t i = 0; i < characters.size();) {
    const size_t length = DecodeUtf8(characters, i).length;
    vocab.emplace(characters.substr(i, length), vocab.size());
    i += length;
  }
  for (const auto& [left, right] : merges) {
    list.push_back({left, right});
    vocab.emplace(left + right, vocab.size());
  }
  return {{"normalizer", nullptr},
          {"pre_tokenizer", nullptr},
          {"decoder", {{"type", "Sequence"}, {"decoders", {{{"type", "ByteFallback"}}}}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"vocab", vocab},
            {"merges", list}}}};
}

// The definition: the earliest merge that applies anywhere in the whole text, at its leftmost
// place, until none does.
std::vector<std::string> Naive(const Json& file, std::vector<std::string> parts) {
  for (bool merged = true; merged;) {
    merged = false;
    for (const Json& merge : file["model"]["merges"]) {
      for (size_t i = 0; i + 1 < parts.size() && !merged; ++i) {
        if (parts[i] != merge[0] || parts[i + 1] != merge[1]) continue;
        parts[i] += parts[i + 1];
        parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        merged = true;
      }
      if (merged) break;
    }
  }
  return parts;
}

// The cuts between words, the cache and the heap change nothing.
TEST(BpeTokenizerTest, EqualsTheDefinitionOnRandomMerges) {
  const std::vector<std::string> units = {"a",      "b",      "c",     " ",
                                          "\u00e9", "\u4e2d", "<unk>", "<0x41>"};
  std::mt19937 random(3);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<std::string> known(units.begin(), units.begin() + (trial % 4 ? 6 : 8));
    std::vector<std::pair<std::string, std::string>> merges;
    for (int i = random() % 12; i > 0; --i) {
      const std::string left = known[random() % known.size()],
                        right = known[random() % known.size()];
      if (std::ranges::find(merges, std::pair(left, right)) != merges.end()) continue;
      merges.emplace_back(left, right);
      if (std::ranges::find(known, left + right) == known.end()) known.push_back(left + right);
    }
    const Json file = CharacterFile("abc \u00e9\u4e2d", merges);
    const auto tokenizer = Load(file);
    for (int text_number = 0; text_number < 20; ++text_number) {
      std::string text;
      std::vector<std::string> parts;
      for (int i = random() % 60; i > 0; --i) {
        parts.push_back(units[random() % 6]);
        text += parts.back();
      }
      Ids expected;
      for (const std::string& part : Naive(file, parts)) {
        expected.push_back(file["model"]["vocab"][part]);
      }
      ASSERT_EQ(tokenizer->Encode(text), expected) << text << file["model"]["merges"];
    }
  }
}

TEST(BpeTokenizerTest, LongWordsTakeNearLinearTime) {
  std::vector<std::pair<std::string, std::string>> merges;
  for (std::string a = "a"; a.size() < 100000; a += a) merges.emplace_back(a, a);
  for (const Json& file : {ByteLevelFile(merges), CharacterFile("a", merges)}) {
    const auto tokenizer = Load(file);
    const std::string text(3 << 20, 'a');
    EXPECT_EQ(tokenizer->Encode(text).size(), 24u);
    EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text)), text);
  }
}

TEST(BpeTokenizerTest, UnknownCharacters) {
  Json file = CharacterFile("ab", {{"a", "b"}});
  const int32_t first_byte = 1, ab = 259;
  EXPECT_THAT(Load(file)->Encode("ab\u00e9"),
              ElementsAre(ab, first_byte + 0xc3, first_byte + 0xa9));
  EXPECT_EQ(Load(file)->Decode(Load(file)->Encode("\u00e9\xff")), "\u00e9\xff");
  file["model"]["byte_fallback"] = false;
  EXPECT_THAT(Load(file)->Encode("\u00e9\u00e9ab\u00e9"), ElementsAre(0, ab, 0));
  EXPECT_THAT(Load(file)->Encode("\xff\xffx"), ElementsAre(0, 0));
  file["model"]["fuse_unk"] = false;
  EXPECT_THAT(Load(file)->Encode("\u00e9\u00e9"), ElementsAre(0, 0));
  file["model"].erase("unk_token");
  EXPECT_THAT(Load(file)->Encode("\u00e9ab"), ElementsAre(ab));
  EXPECT_THAT(MessageOf<InputError>([&] { Load(file)->Encode("\xff"); }),
              HasSubstr("the text is not UTF-8 (byte 255)"));
}

TEST(BpeTokenizerTest, SpecialIdsComeFromTemplateAndConfig) {
  Json file = ByteLevelFile({{"a", "b"}});
  file["added_tokens"] = {{{"id", 300}, {"content", "<bos>"}, {"special", true}},
                          {{"id", 301}, {"content", "<|im_end|>"}, {"special", true}},
                          {{"id", 302}, {"content", "<|endoftext|>"}, {"special", true}},
                          {{"id", 303}, {"content", "<think>"}, {"special", false}}};
  file["post_processor"] = {
      {"type", "Sequence"},
      {"processors",
       {{{"type", "ByteLevel"}},
        {{"type", "TemplateProcessing"},
         {"single",
          {{{"SpecialToken", {{"id", "<bos>"}, {"type_id", 0}}}},
           {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
           {{"SpecialToken", {{"id", "end"}, {"type_id", 0}}}}}},
         {"special_tokens",
          {{"<bos>", {{"id", "<bos>"}, {"ids", {300}}, {"tokens", {"<bos>"}}}},
           {"end", {{"id", "end"}, {"ids", {301, 302}}, {"tokens", {"x", "y"}}}}}}}}}};
  const auto tokenizer =
      Load(file, R"({"eos_token": {"content": "<|im_end|>"}, "pad_token": "<|endoftext|>"})");
  EXPECT_EQ(tokenizer->vocab_size(), 304);
  const SpecialIds special = tokenizer->special_ids();
  EXPECT_THAT(special.before, ElementsAre(300));
  EXPECT_THAT(special.after, ElementsAre(301, 302));
  EXPECT_EQ(special.bos, 300);
  EXPECT_EQ(special.eos, 301);
  EXPECT_EQ(special.pad, 302);
  EXPECT_EQ(special.unk, std::nullopt);
  EXPECT_EQ(tokenizer->end_of_text(), 302);
  EXPECT_EQ(tokenizer->AddedId("<think>"), 303);
  EXPECT_EQ(tokenizer->AddedId("ab"), std::nullopt);
  // Ordinary text spells no special token; others belong to the vocabulary.
  EXPECT_EQ(tokenizer->Encode("<|im_end|>").size(), 10u);
  EXPECT_THAT(tokenizer->Encode("<think>ab"), ElementsAre(303, 256));
  EXPECT_THAT(tokenizer->EncodeWithSpecials("ab<|im_end|><think>"), ElementsAre(256, 301, 303));
  EXPECT_EQ(tokenizer->Decode(Ids{300, 256, 299, 303}), "<bos>ab<think>");  // 299 is a gap
  EXPECT_THAT(MessageOf<ArgumentError>([&] { tokenizer->Decode(Ids{304}); }),
              HasSubstr("token 304 is outside"));
}

TEST(BpeTokenizerTest, FoldersKeepTheirConfig) {
  const std::string folder = TestFolder();
  const std::string config = R"({"eos_token": "<end>", "chat_template": "x"})";
  Json file = ByteLevelFile({});
  file["added_tokens"] = {{{"id", 256}, {"content", "<end>"}, {"special", true}}};
  WriteText(folder + "/tokenizer.json", file.dump(1));
  WriteText(folder + "/tokenizer_config.json", config);
  const auto tokenizer = LoadTokenizer(folder);
  EXPECT_EQ(tokenizer->ToJson(), file.dump(1));  // to the byte
  EXPECT_EQ(tokenizer->ConfigJson(), config);
  EXPECT_EQ(tokenizer->end_of_text(), 256);
  EXPECT_EQ(tokenizer->special_ids().eos, 256);
  WriteText(folder + "/tokenizer_config.json", R"({"eos_token": 5})");
  EXPECT_THAT(MessageOf<InputError>([&] { LoadTokenizer(folder); }),
              AllOf(HasSubstr("tokenizer_config.json"), HasSubstr("eos_token")));
}

TEST(BpeTokenizerTest, ThreadsShareATokenizer) {
  const auto tokenizer = Load(ByteLevelFile({{"l", "o"}, {"lo", "w"}}));
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "low" + std::to_string(i) + " lower\n";
  const Ids expected = tokenizer->Encode(text);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) EXPECT_EQ(tokenizer->Encode(text), expected);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// More different words than the cache holds.
TEST(BpeTokenizerTest, TheCacheForgetsNothingThatMatters) {
  const auto tokenizer = Load(ByteLevelFile({{"1", "2"}, {"12", "3"}}));
  std::string text;
  for (int i = 0; i < 400000; ++i) text += " " + std::to_string(i);
  const Ids ids = tokenizer->Encode(text);
  EXPECT_EQ(tokenizer->Decode(ids), text);
  EXPECT_EQ(tokenizer->Encode(text), ids);
}

class RefusalTest : public testing::Test {
 protected:
  // The error after the value at the pointer is changed.
  std::string Message(const std::string& pointer, const Json& value) const {
    Json file = file_;
    Json* place = &file;
    std::istringstream keys(pointer.substr(1));
    for (std::string key; std::getline(keys, key, '/');) {
      place = place->is_array() ? &place->at(std::stoi(key)) : &(*place)[key];
    }
    *place = value;
    return MessageOf<InputError>([&] { Load(file); });
  }
  Json file_ = ByteLevelFile({{"a", "b"}, {"ab", "c"}});
};

TEST_F(RefusalTest, WhatIsNotImplementedIsNamed) {
  EXPECT_THAT(Message("/model/type", "Unigram"), HasSubstr("t.json: model.type: \"Unigram\""));
  EXPECT_THAT(Message("/model/dropout", 0.1), HasSubstr("model.dropout"));
  EXPECT_THAT(Message("/model/end_of_word_suffix", "</w>"), HasSubstr("model.end_of_word_suffix"));
  EXPECT_THAT(Message("/model/continuing_subword_prefix", "##"),
              HasSubstr("model.continuing_subword_prefix"));
  EXPECT_THAT(Message("/model/new_thing", 1), HasSubstr("model.new_thing"));
  EXPECT_THAT(Message("/new_thing", 1), HasSubstr("t.json: new_thing"));
  EXPECT_THAT(Message("/normalizer", {{"type", "BertNormalizer"}}),
              HasSubstr("normalizer.type: \"BertNormalizer\""));
  EXPECT_THAT(Message("/pre_tokenizer", {{"type", "Whitespace"}}),
              HasSubstr("pre_tokenizer.type: \"Whitespace\""));
  EXPECT_THAT(Message("/pre_tokenizer",
                      {{"type", "Sequence"},
                       {"pretokenizers", {{{"type", "ByteLevel"}}, {{"type", "Digits"}}}}}),
              HasSubstr("pre_tokenizer.pretokenizers[1].type: \"Digits\""));
  EXPECT_THAT(Message("/pre_tokenizer/behavior", "x"), HasSubstr("pre_tokenizer.behavior"));
  EXPECT_THAT(Message("/decoder", {{"type", "WordPiece"}}), HasSubstr("decoder.type"));
  EXPECT_THAT(Message("/decoder", {{"type", "Fuse"}}), HasSubstr("do not belong together"));
  EXPECT_THAT(Message("/post_processor", {{"type", "BertProcessing"}}),
              HasSubstr("post_processor.type: \"BertProcessing\""));
}

TEST_F(RefusalTest, DamagedFilesSayWhere) {
  EXPECT_THAT(Message("/model", 5), HasSubstr("t.json: model: expected an object"));
  EXPECT_THAT(Message("/model/vocab", 5), HasSubstr("model.vocab"));
  EXPECT_THAT(Message("/model/vocab", Json::object()), HasSubstr("single byte 0"));
  EXPECT_THAT(Message("/model/vocab/a", 1LL << 40), HasSubstr("the id of token \"a\""));
  EXPECT_THAT(Message("/model/vocab/a", -1), HasSubstr("the id of token \"a\""));
  EXPECT_THAT(Message("/model/vocab/a", 1.5), HasSubstr("not an integer"));
  EXPECT_THAT(Message("/model/vocab/a", 98), HasSubstr("have the same id 98"));
  EXPECT_THAT(Message("/model/merges", 5), HasSubstr("model.merges: expected a list"));
  EXPECT_THAT(Message("/model/merges/1", 5), HasSubstr("model.merges[1]"));
  EXPECT_THAT(Message("/model/merges/1", {"a", 5}), HasSubstr("is not a merge"));
  EXPECT_THAT(Message("/model/merges/1", "a"), HasSubstr("is not a merge"));
  EXPECT_THAT(Message("/model/merges/1", "a b c"), HasSubstr("is not a merge"));
  EXPECT_THAT(Message("/model/merges/1", {"", "a"}), HasSubstr("is not a merge"));
  EXPECT_THAT(Message("/model/merges/1", "x y"), HasSubstr("\"xy\" is not in the vocabulary"));
  EXPECT_THAT(Message("/model/merges/1", "a b"), HasSubstr("already has a merge"));
  EXPECT_THAT(Message("/model/ignore_merges", "yes"), HasSubstr("model.ignore_merges"));
  EXPECT_THAT(Message("/added_tokens", 5), HasSubstr("added_tokens: expected a list"));
  const Json token = {{"id", 258}, {"content", "<x>"}};
  for (const auto& [key, value, message] : std::vector<std::tuple<std::string, Json, std::string>>{
           {"content", 5, "added_tokens[0].content"},
           {"content", "", "must have 1 to"},
           {"content", std::string(2000, 'x'), "must have 1 to"},
           {"id", 1 << 30, "is not between 0 and"},
           {"id", 0, "another token has it"},
           {"rstrip", 1, "added_tokens[0].rstrip"},
           {"flag", true, "added_tokens[0].flag"}}) {
    Json changed = token;
    changed[key] = value;
    EXPECT_THAT(Message("/added_tokens", Json::array({changed})), HasSubstr(message));
  }
  EXPECT_THAT(Message("/added_tokens", {token, {{"id", 258}, {"content", "<y>"}}}),
              HasSubstr("added_tokens[1].id"));
  Json character = CharacterFile("ab", {});
  character["model"]["unk_token"] = "nothing";
  EXPECT_THAT(MessageOf<InputError>([&] { Load(character); }), HasSubstr("model.unk_token"));
}

TEST_F(RefusalTest, TemplatesAreChecked) {
  const auto message = [&](const Json& single, const Json& tokens) {
    return Message(
        "/post_processor",
        {{"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", tokens}});
  };
  const Json text = {{"Sequence", {{"id", "A"}}}}, bos = {{"SpecialToken", {{"id", "b"}}}};
  EXPECT_THAT(message(Json::array({bos}), {{"b", {{"ids", {0}}}}}), HasSubstr("no Sequence"));
  EXPECT_THAT(message({text, text}, Json::object()), HasSubstr("single[1].Sequence"));
  EXPECT_THAT(message({bos, text}, Json::object()), HasSubstr("special_tokens.b"));
  EXPECT_THAT(message({bos, text}, {{"b", {{"ids", {999}}}}}), HasSubstr("no token 999"));
  EXPECT_THAT(message({bos, text}, {{"b", {{"ids", "x"}}}}), HasSubstr("not a list"));
}

}  // namespace
}  // namespace lockstep::data
