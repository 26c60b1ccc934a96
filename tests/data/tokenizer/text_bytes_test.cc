#include "data/tokenizer/text_bytes.h"

#include <memory>

#include "core/io/file.h"
#include "core/io/json.h"
#include "data/tokenizer/bpe_tokenizer.h"
#include "tests/data/data_test_util.h"

namespace lockstep::data {
namespace {

// Of all tokens but the first, which is no target, in rows that do not divide their number.
int64_t BytesAfterTheFirst(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  return CountBytes(EvalBatches(std::make_shared<MemoryTokens>(ids), 3, 2), tokenizer);
}

constexpr char kText[] = "The \u00fcber-fox said: 12345 \u6771\u4eac\n\n  it's <|im_end|> done";

TEST(TextBytesTest, AreThoseOfTheText) {
  const auto bytes = MakeTokenizer("byte", "");
  EXPECT_EQ(BytesAfterTheFirst(*bytes, bytes->Encode(kText)), std::ssize(std::string(kText)) - 1);
  const auto characters = MakeTokenizer("char", kText);
  const auto ids = characters->Encode(kText);
  EXPECT_LT(std::ssize(ids), std::ssize(std::string(kText)));
  EXPECT_EQ(BytesAfterTheFirst(*characters, ids), std::ssize(std::string(kText)) - 1);
}

// Of each kind, also of those that begin a text with a space, and have tokens for parts of
// characters.
TEST(TextBytesTest, OfHuggingFacesKinds) {
  for (const char* kind :
       {"gpt2", "llama3", "gemma", "llama2_prepend", "nanochat", "qwen2", "smollm", "tekken"}) {
    const Json file = Json::parse(ReadFile(TestData(std::string("tokenizers/") + kind + ".json")));
    const BpeTokenizer tokenizer(file["tokenizer"], file["tokenizer"].dump(), "", "t.json");
    std::vector<int32_t> ids = tokenizer.Encode(kText);
    std::string rest;
    for (size_t i = 1; i < ids.size(); ++i) rest += tokenizer.TokenText(ids[i]);
    ASSERT_TRUE(std::string(kText).ends_with(rest)) << kind << ": " << rest;
    EXPECT_EQ(BytesAfterTheFirst(tokenizer, ids), std::ssize(rest)) << kind;
    // Control tokens, and ids beyond the vocabulary, are no text.
    for (const Json& added : file["tokenizer"]["added_tokens"]) {
      if (added["special"].get<bool>()) ids.push_back(added["id"].get<int32_t>());
    }
    ids.push_back(static_cast<int32_t>(tokenizer.vocab_size()) + 3);
    EXPECT_EQ(BytesAfterTheFirst(tokenizer, ids), std::ssize(rest)) << kind;
  }
}

}  // namespace
}  // namespace lockstep::data
