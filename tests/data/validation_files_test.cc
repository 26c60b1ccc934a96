// Files that are only for validation, and the validation tokens of a mixture's sources.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "data/mixture_dataset.h"
#include "data/token_file.h"
#include "tests/data/dataset_fixture.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class ValidationFiles : public DatasetTest {
 protected:
  ValidationFiles() {
    options_.val_fraction = 0;
    WriteText(path_, "abcdefghij");
  }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  void WriteTokens(const std::string& name, const std::vector<int32_t>& tokens) {
    WriteTokenFile(Path(name), TokenFormat::kNanoGpt, tokens);
  }
  Dataset Open(const std::string& paths) const {
    Dataset dataset = OpenDataset(options_);
    OpenValidation(paths, options_, OpenDataset, &dataset);
    return dataset;
  }
  std::string Error(const std::string& paths) const {
    return MessageOf<InputError>([&] { Open(paths); });
  }
};

TEST_F(ValidationFiles, EachIsAPartOfTheWhole) {
  WriteText(Path("one.txt"), "jihg");
  WriteText(Path("two.txt"), "bad");
  WriteText(Path("three.jsonl"), "{\"text\": \"face\"}\n");
  const Dataset dataset = Open(Path("tw*.txt") + "," + Path("one.txt") + "," + Path("three.jsonl"));
  EXPECT_EQ(Text(dataset, *dataset.train), "abcdefghij");
  EXPECT_EQ(Text(dataset, *dataset.val), "badjihgface");
  ASSERT_EQ(dataset.val_parts.size(), 3u);
  EXPECT_EQ(dataset.val_parts[0].name, Path("two.txt"));
  EXPECT_EQ(Text(dataset, *dataset.val_parts[0].tokens), "bad");
  EXPECT_EQ(Text(dataset, *dataset.val_parts[2].tokens), "face");
  // Training is what it is without them, and the losses of other files are others.
  EXPECT_EQ(dataset.fingerprint, OpenDataset(options_).fingerprint);
  EXPECT_NE(dataset.val_fingerprint, Open(Path("one.txt")).val_fingerprint);
  EXPECT_EQ(Text(dataset, *Open(Path("one.txt")).val), "jihg");
}

TEST_F(ValidationFiles, TokensMayBeLargerThanThoseOfTraining) {
  WriteTokens("a.bin", {1, 2, 3, 4, 5});
  WriteTokens("b.bin", {7, 8, 9});
  options_.path = Path("a.bin");
  const Dataset dataset = Open(Path("b.bin"));
  EXPECT_THAT(All(*dataset.val), ElementsAre(7, 8, 9));
  EXPECT_EQ(dataset.vocab_size, 10);
  EXPECT_EQ(dataset.files.back().path, Path("b.bin"));
  options_.vocab_size = 8;
  EXPECT_THAT(Error(Path("b.bin")), AllOf(HasSubstr("data.val_path: "), HasSubstr("b.bin")));
  options_.vocab_size = 0;
  EXPECT_THAT(Error(path_), AllOf(HasSubstr("data.val_path: "), HasSubstr("tokenizer is not known"),
                                  HasSubstr("--data.tokenizer=")));
}

TEST_F(ValidationFiles, AreRefusedBesideThoseThatNamesTell) {
  WriteTokens("x_train_000001.bin", {1, 2, 3, 4, 5});
  WriteTokens("x_train_000002.bin", {1, 2, 3, 4, 5});
  WriteTokens("x_val_000000.bin", {1, 2, 3});
  WriteTokens("other.dat", {1, 2, 3});
  options_.path = Path("x*.bin");
  EXPECT_THAT(Error(Path("x_val_000000.bin")),
              AllOf(HasSubstr("x*.bin has files for validation"), HasSubstr("x_val_000000.bin"),
                    HasSubstr("--data.path='" + Path("x_train_00000*.bin'"))));
  options_.path = Path("x_train_*.bin");
  EXPECT_EQ(Open(Path("x_val_000000.bin")).val->size(), 3);
  options_.path = "";
  options_.mix = Path("x*.bin") + ":1";
  EXPECT_THAT(Error(Path("x_val_000000.bin")),
              AllOf(HasSubstr("in data.path or data.mix"), Not(HasSubstr("--data.path"))));
}

TEST_F(ValidationFiles, BadOnesAreErrors) {
  WriteText(Path("one.txt"), "j");
  WriteText(Path("two.txt"), "xyz");
  EXPECT_THAT(Error(Path("none.txt")), HasSubstr("data.val_path: " + Path("none.txt: no such")));
  EXPECT_THAT(Error(Path("one.txt")), HasSubstr("data.val_path: " + Path("one.txt: 1 tokens")));
  EXPECT_THAT(Error(Path("two.txt")), AllOf(HasSubstr("data.val_path: "), HasSubstr("two.txt")));
  EXPECT_THAT(Error(folder_), HasSubstr("is a folder: name the files in it"));
  EXPECT_THAT(Error(path_ + "," + path_), HasSubstr("text.txt is there twice"));
  EXPECT_THAT(Error(path_ + ","), HasSubstr("data.val_path: "));
}

TEST_F(ValidationFiles, AMixtureKnowsThoseOfItsSources) {
  WriteText(Path("b.txt"), std::string(50, 'b'));
  const Dataset dataset = OpenDataset(
      {.mix = path_ + ":3," + Path("b.txt:1"), .tokenizer = "byte", .val_fraction = 0.2});
  EXPECT_EQ(Text(dataset, *dataset.val), "ij" + std::string(10, 'b'));
  ASSERT_EQ(dataset.val_parts.size(), 2u);
  EXPECT_EQ(dataset.val_parts[0].name, path_);
  EXPECT_EQ(Text(dataset, *dataset.val_parts[1].tokens), std::string(10, 'b'));
}

}  // namespace
}  // namespace lockstep::data
