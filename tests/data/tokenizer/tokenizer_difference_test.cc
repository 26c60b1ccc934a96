#include "data/tokenizer/tokenizer_difference.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/io/file.h"
#include "core/io/json.h"
#include "data/tokenizer/byte_tokenizer.h"
#include "data/tokenizer/char_tokenizer.h"
#include "data/tokenizer/id_tokenizer.h"
#include "tests/data/data_test_util.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class TokenizerDifference : public testing::Test {
 protected:
  // How the tokenizer of `json` differs from that of json_.
  std::string Difference(const OrderedJson& json) const {
    const auto make = [](const OrderedJson& j) { return Tokenizer::FromJson(j.dump(), "test"); };
    return DifferenceOf(*make(json_), *make(json));
  }

  const OrderedJson json_ =
      OrderedJson::parse(ReadFile(TestData("tokenizers/gpt2.json")))["tokenizer"]
          .get<OrderedJson>();
};

TEST_F(TokenizerDifference, TheSameVocabularyWrittenDifferentlyHasNone) {
  const auto a = Tokenizer::FromJson(json_.dump(), "compact");
  const auto b = Tokenizer::FromJson(json_.dump(2), "indented");
  ASSERT_NE(a->ToJson(), b->ToJson());
  EXPECT_EQ(DifferenceOf(*a, *b), "");
  EXPECT_EQ(DifferenceOf(*a, *a), "");
}

TEST_F(TokenizerDifference, NamesTheFirstIdThatHasAnotherText) {
  OrderedJson other = json_;
  OrderedJson& vocab = other["model"]["vocab"];
  const int64_t a = vocab["x"], b = vocab["y"];
  std::swap(vocab["x"], vocab["y"]);
  ASSERT_LT(a, b);
  EXPECT_EQ(Difference(other),
            "token " + std::to_string(a) + " is \"x\" in the former and \"y\" in the latter");
}

// A probe of a sentence would not have them all.
TEST_F(TokenizerDifference, FindsAnyMergeThatIsMissing) {
  const size_t merges = json_["model"]["merges"].size();
  for (const size_t merge : {size_t{0}, merges / 2, merges - 1}) {
    OrderedJson other = json_;
    OrderedJson::Array& list = other["model"]["merges"].list();
    list.erase(list.begin() + static_cast<std::ptrdiff_t>(merge));
    EXPECT_THAT(Difference(other), HasSubstr("have the same tokens, but encode \"")) << merge;
  }
}

TEST_F(TokenizerDifference, FindsAnotherWayOfSplitting) {
  OrderedJson other = json_;
  other["pre_tokenizer"] = {
      {"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}};
  EXPECT_THAT(Difference(other), HasSubstr("have the same tokens, but encode \""));
}

TEST(TokenizerDifferenceOfKinds, NamesSizesAndKinds) {
  EXPECT_EQ(DifferenceOf(ByteTokenizer(), CharTokenizer("abc")),
            "the former (byte) has 256 tokens, the latter (char) 3");
  EXPECT_EQ(DifferenceOf(CharTokenizer("abc"), CharTokenizer("abd")),
            "token 2 is \"c\" in the former and \"d\" in the latter");
  EXPECT_EQ(DifferenceOf(CharTokenizer("abc"), CharTokenizer("abc")), "");
  EXPECT_EQ(DifferenceOf(IdTokenizer(100), IdTokenizer(100)), "");
  EXPECT_THAT(DifferenceOf(IdTokenizer(50257), ByteTokenizer()), HasSubstr("(ids) has 50257"));
}

}  // namespace
}  // namespace lockstep::data
