// Data sets of token files.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "data/token_file.h"
#include "data/tokenizer/byte_tokenizer.h"
#include "tests/data/dataset_fixture.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class TokenDatasetTest : public DatasetTest {
 protected:
  TokenDatasetTest() { options_.path = folder_ + "/*.bin"; }
  void Write(const std::string& name, const std::vector<int32_t>& tokens) {
    WriteTokenFile(folder_ + "/" + name, TokenFormat::kNanoGpt, tokens);
  }
};

TEST_F(TokenDatasetTest, DocumentMasksNeedAKnownSeparator) {
  options_.document_mask = true;
  options_.path = path_;
  WriteText(path_, "0123456789");
  EXPECT_THAT(OpenError(options_),
              AllOf(HasSubstr(path_ + ": data.document_mask needs to know where documents begin"),
                    HasSubstr("the char tokenizer has no token for their ends"),
                    HasSubstr("use token files"), HasSubstr("leave data.document_mask out")));
  options_.path = folder_ + "/documents.bin";
  const std::vector<int32_t> tokens = {50256, 1, 2, 3, 50256, 4, 5, 50256, 6, 7};
  WriteTokenFile(options_.path, TokenFormat::kNanoGpt, tokens);
  EXPECT_THAT(OpenError(options_), AllOf(HasSubstr("do not tell which token separates them"),
                                         HasSubstr("--data.tokenizer=")));
  options_.tokenizer = "byte";
  options_.vocab_size = 0;
  WriteTokenFile(options_.path, TokenFormat::kNanoGpt, std::vector<int32_t>(10, 7));
  EXPECT_THAT(OpenError(options_), HasSubstr("the byte tokenizer has no token that separates"));
  options_.tokenizer = "";
  WriteTokenFile(options_.path, TokenFormat::kLlmcGpt2, std::vector<int32_t>(10, 7));
  EXPECT_THAT(OpenError(options_), AllOf(HasSubstr("the token 50256, which would separate them"),
                                         HasSubstr("before each document")));
  WriteTokenFile(options_.path, TokenFormat::kLlmcGpt2, tokens);
  options_.val_fraction = 0.4;
  const Dataset dataset = OpenDataset(options_);
  EXPECT_THAT(DocumentStarts(*dataset.train), ElementsAre(1, 0, 0, 0, 1, 0));
  EXPECT_THAT(DocumentStarts(*dataset.val), ElementsAre(0, 1, 0, 0));
  options_.document_mask = false;
  EXPECT_FALSE(OpenDataset(options_).train->has_documents());
}

TEST_F(TokenDatasetTest, TheTailOfTheStreamIsValidation) {
  Write("a_000001.bin", {6, 7, 8, 9});
  Write("a_000000.bin", {0, 1, 2, 3, 4, 5});
  options_.val_fraction = 0.5;
  const Dataset dataset = OpenDataset(options_);
  EXPECT_THAT(All(*dataset.train), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(All(*dataset.val), ElementsAre(5, 6, 7, 8, 9));
  EXPECT_EQ(dataset.tokenizer, nullptr);
  EXPECT_EQ(dataset.vocab_size, 10);
  options_.val_fraction = 0;
  EXPECT_EQ(OpenDataset(options_).train->size(), 10);
}

TEST_F(TokenDatasetTest, NamesOfShardsTellWhatIsValidation) {
  Write("a_train_000001.bin", {0, 1});
  Write("a_train_000002.bin", {2, 3});
  Write("a_val_000000.bin", {4, 5, 6});
  const Dataset dataset = OpenDataset(options_);
  EXPECT_THAT(All(*dataset.train), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(All(*dataset.val), ElementsAre(4, 5, 6));
  EXPECT_EQ(dataset.vocab_size, 7);
}

TEST_F(TokenDatasetTest, FingerprintsFollowTheContentAndNotThePlace) {
  options_.val_fraction = 0;
  Write("a.bin", {0, 1, 2, 3});
  const std::string first = OpenDataset(options_).fingerprint;
  std::filesystem::create_directory(folder_ + "/other");
  Write("other/b.bin", {0, 1, 2, 3});
  options_.path = folder_ + "/other/b.bin";
  EXPECT_EQ(OpenDataset(options_).fingerprint, first);
  Write("other/b.bin", {0, 1, 2, 4});
  EXPECT_NE(OpenDataset(options_).fingerprint, first);
}

TEST_F(TokenDatasetTest, TokensMustFitTokenizerAndModel) {
  Write("a.bin", std::vector<int32_t>(20, 299));
  EXPECT_EQ(OpenDataset(options_).vocab_size, 300);
  options_.vocab_size = 299;
  EXPECT_THAT(OpenError(options_), HasSubstr("token 299 at position 0"));
  options_.vocab_size = 0;
  options_.tokenizer = "byte";
  EXPECT_THAT(OpenError(options_), HasSubstr("vocabulary of 256"));
  options_.tokenizer = "char";
  EXPECT_THAT(OpenError(options_), HasSubstr("a char tokenizer is made from a text"));
}

// Bytes in a vocabulary as large as Qwen's or Llama 3's.
class LargeTokenizer : public ByteTokenizer {
 public:
  explicit LargeTokenizer(std::optional<int32_t> bos) : bos_(bos) {}
  int64_t vocab_size() const override { return 151936; }
  std::optional<int32_t> end_of_text() const override { return 151643; }
  SpecialIds special_ids() const override { return {.bos = bos_}; }

 private:
  const std::optional<int32_t> bos_;
};

TEST_F(TokenDatasetTest, TheTokenizerTellsWhatSeparatesDocuments) {
  WriteTokenFile(folder_ + "/a.bin", TokenFormat::kLlmcLlama3,
                 std::vector<int32_t>{151643, 128000, 5, 151643, 7, 128000, 9});
  options_.val_fraction = 0;
  options_.document_mask = true;
  EXPECT_EQ(DocumentStarts(*OpenDataset(options_).train), OnesAt(7, {1, 5}));
  options_.loaded_tokenizer = std::make_shared<LargeTokenizer>(128000);
  EXPECT_EQ(DocumentStarts(*OpenDataset(options_).train), OnesAt(7, {1, 5}));
  for (const std::optional<int32_t> bos : {std::optional<int32_t>(), std::optional<int32_t>(2)}) {
    options_.loaded_tokenizer = std::make_shared<LargeTokenizer>(bos);
    EXPECT_EQ(DocumentStarts(*OpenDataset(options_).train), OnesAt(7, {0, 3}));
  }
}

TEST_F(TokenDatasetTest, FewTokensAndNoFiles) {
  EXPECT_THAT(OpenError(options_), HasSubstr("no file matches"));
  Write("a.bin", {1, 2, 3, 4});
  options_.val_fraction = 0;
  options_.block_size = 4;
  EXPECT_THAT(OpenError(options_), AllOf(HasSubstr("4 tokens"), HasSubstr("block_size + 1 = 5"),
                                         HasSubstr("--model.block_size=3")));
  options_.block_size = 3;
  EXPECT_NO_THROW(OpenDataset(options_));
}

}  // namespace
}  // namespace lockstep::data
