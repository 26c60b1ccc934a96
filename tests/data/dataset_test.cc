#include "data/dataset.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/sha256.h"
#include "data/corpus.h"
#include "data/tokenizer/char_tokenizer.h"
#include "tests/data/compressed_files.h"
#include "tests/data/dataset_fixture.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(DatasetTest, TinyShakespeareSplitsAsNanoGptDoes) {
  const auto path = SharedData("tinyshakespeare.txt");
  if (!path) GTEST_SKIP() << "no shared/data/tinyshakespeare.txt near the workspace";
  const Dataset dataset = OpenDataset({.path = *path, .block_size = 64});
  EXPECT_EQ(dataset.train->size(), 1003854);
  EXPECT_EQ(dataset.val->size(), 111540);
  EXPECT_EQ(dataset.vocab_size, 65);
  EXPECT_EQ(Text(dataset, *dataset.train) + Text(dataset, *dataset.val), ReadFile(*path));
}

TEST_F(DatasetTest, NoPathIsTheEmbeddedCorpus) {
  const Dataset dataset = OpenDataset({.block_size = 128});
  EXPECT_EQ(dataset.tokenizer->name(), "char");
  EXPECT_EQ(dataset.name, "the embedded corpus");
  EXPECT_EQ(dataset.fingerprint, EmbeddedCorpusSha256());
  EXPECT_EQ(Text(dataset, *dataset.train) + Text(dataset, *dataset.val), EmbeddedCorpus());
}

TEST_F(DatasetTest, TextIsCutByCharactersAndBytesByBytes) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += i < 50 ? "\u4e2d" : "b";  // 100 characters, 200 bytes
  WriteText(path_, text);
  options_.val_fraction = 0.6;
  Dataset dataset = OpenDataset(options_);
  EXPECT_EQ(dataset.train->size(), 40);
  EXPECT_EQ(dataset.val->size(), 60);
  EXPECT_EQ(dataset.vocab_size, 2);
  EXPECT_EQ(dataset.fingerprint, Sha256Of(text));
  options_.tokenizer = "byte";
  dataset = OpenDataset(options_);
  EXPECT_EQ(dataset.train->size(), 80);
  EXPECT_EQ(dataset.val->size(), 120);
  EXPECT_EQ(dataset.vocab_size, 256);
  options_.val_fraction = 0;
  dataset = OpenDataset(options_);
  EXPECT_EQ(dataset.train->size(), 200);
  EXPECT_EQ(dataset.val, nullptr);
}

TEST_F(DatasetTest, AByteOrderMarkIsNoText) {
  WriteText(path_,
            "\xEF\xBB\xBF"
            "abcabcabcabcabcabcabcabc");
  EXPECT_EQ(OpenDataset(options_).vocab_size, 3);
  WriteText(path_, "\xEF\xBB\xBF");
  EXPECT_THAT(OpenError(options_), HasSubstr("empty"));
}

TEST_F(DatasetTest, ALoadedTokenizerIsUsedInsteadOfANewOne) {
  WriteText(path_, "abcabcabcabcabcabcabc");
  options_.loaded_tokenizer = std::make_shared<CharTokenizer>("abcdef");
  const Dataset dataset = OpenDataset(options_);
  EXPECT_EQ(dataset.vocab_size, 6);
  EXPECT_EQ(dataset.tokenizer, options_.loaded_tokenizer);
  WriteText(path_, "aaaaaaaaaaaaaaaaaaaz");
  EXPECT_THAT(OpenError(options_),
              AllOf(HasSubstr(path_ + ", from byte 18"), HasSubstr("'z' (U+007A) at byte 1")));
}

TEST_F(DatasetTest, JsonLinesWithoutTheirNameAreRefused) {
  const std::string rows = "{\"text\": \"abcdefgh\"}\n{\"text\": \"ijklmnop\"}\n";
  for (const char* name : {"/rows", "/rows.gz"}) {
    options_.path = folder_ + name;
    WriteText(options_.path, options_.path.ends_with(".gz") ? GzipOf(rows) : rows);
    EXPECT_THAT(OpenError(options_), AllOf(HasSubstr(name), HasSubstr("looks like a JSON object"),
                                           HasSubstr("end in .jsonl"), HasSubstr("in .txt")));
  }
  for (const char* name : {"/table.csv", "/table.tsv.gz"}) {
    options_.path = folder_ + name;
    WriteText(options_.path, options_.path.ends_with(".gz") ? GzipOf("a,b\n1,c") : "a,b\n1,c");
    EXPECT_THAT(OpenError(options_), AllOf(HasSubstr(name), HasSubstr("--ojsonl"),
                                           HasSubstr("let the name end in .txt")));
  }
  options_.path = folder_ + "/rows.txt";
  WriteText(options_.path, rows);
  EXPECT_EQ(OpenError(options_), "no error");
}

TEST_F(DatasetTest, TextErrors) {
  EXPECT_THAT(OpenError(options_), AllOf(HasSubstr(path_ + ": no such file"),
                                         HasSubstr(std::filesystem::current_path().string())));
  WriteText(path_, "");
  EXPECT_THAT(OpenError(options_), AllOf(HasSubstr(path_), HasSubstr("is empty")));
  WriteText(path_, "abc\xff\n");
  EXPECT_THAT(OpenError(options_), AllOf(HasSubstr(path_ + ": not UTF-8: byte 3 is 0xff"),
                                         HasSubstr("iconv"), HasSubstr("data.tokenizer=byte")));
  // UTF-16 and UTF-32, as Windows writes them: with a byte-order mark, and without one.
  const auto wide = [](std::string_view text, size_t unit, bool little) {
    std::string bytes;
    for (const char c : text) {
      std::string character(unit, '\0');
      character[little ? 0 : unit - 1] = c;
      bytes += character;
    }
    return bytes;
  };
  for (const auto& [bytes, name] : std::vector<std::pair<std::string, std::string>>{
           {"\xff\xfe" + wide("Hello, you", 2, true), "utf-16"},
           {"\xfe\xff" + wide("Hello, you", 2, false), "utf-16"},
           {std::string("\xff\xfe\0\0", 4) + wide("Hello", 4, true), "utf-32"},
           {std::string("\0\0\xfe\xff", 4) + wide("Hello", 4, false), "utf-32"},
           {wide("Hello, you", 2, true), "utf-16le"},
           {wide("Hello, you", 2, false), "utf-16be"}}) {
    WriteText(path_, bytes);
    EXPECT_THAT(OpenError(options_),
                AllOf(HasSubstr(path_), HasSubstr("iconv -f " + name + " -t utf-8 " + path_)));
  }
  // A NUL or two do not make it UTF-16.
  WriteText(path_, std::string("abc\0def\xff", 8));
  EXPECT_THAT(OpenError(options_), HasSubstr(path_ + ": byte 3 is NUL"));
  options_.path = folder_ + "/empty";
  MakeDirectories(options_.path);
  EXPECT_THAT(OpenError(options_), AllOf(HasSubstr(options_.path), HasSubstr("no text file")));
  options_.path = folder_ + "/*.md";
  EXPECT_THAT(OpenError(options_), HasSubstr("no file matches"));
  options_.path = folder_ + "/pipe";
  ASSERT_EQ(mkfifo(options_.path.c_str(), 0600), 0);
  EXPECT_THAT(OpenError(options_), HasSubstr(options_.path));  // and does not wait for a writer
}

TEST_F(DatasetTest, TooLittleTextSaysHowMuchIsNeeded) {
  WriteText(path_, "0123456789");
  options_.block_size = 9;
  EXPECT_THAT(OpenError(options_),
              AllOf(HasSubstr("9 tokens are left for training"), HasSubstr("block_size + 1 = 10"),
                    HasSubstr("--model.block_size=8")));
  options_.block_size = 8;
  EXPECT_THAT(OpenError(options_), AllOf(HasSubstr("the validation part has 1 tokens"),
                                         HasSubstr("needs at least 2"), HasSubstr("now 0.1")));
  options_.val_fraction = 0.2;
  options_.block_size = 7;
  EXPECT_EQ(OpenDataset(options_).val->size(), 2);
  options_.val_fraction = 1;
  EXPECT_THAT(OpenError(options_), HasSubstr("data.val_fraction=1: expected"));
  options_.val_fraction = std::nan("");
  EXPECT_THAT(OpenError(options_), HasSubstr("data.val_fraction=nan"));
}

TEST_F(DatasetTest, AModelTooSmallForTheTokenizerIsAnError) {
  WriteText(path_, "abcdefghijklmnopqrstuvwxyz");
  options_.vocab_size = 20;
  EXPECT_THAT(OpenError(options_), AllOf(HasSubstr("26 tokens, but model.vocab_size is 20"),
                                         HasSubstr("--model.vocab_size=26")));
  options_.vocab_size = 26;
  options_.val_fraction = 0;
  EXPECT_NO_THROW(OpenDataset(options_));
}

TEST_F(DatasetTest, MixturesConcatenateTheirSources) {
  WriteText(path_, std::string(100, 'a'));
  WriteText(folder_ + "/b.txt", std::string(50, 'b'));
  const std::string mix = path_ + ":0.75," + folder_ + "/b.txt:0.25";
  const Dataset dataset = OpenDataset({.mix = mix, .tokenizer = "byte", .block_size = 4});
  EXPECT_EQ(Text(dataset, *dataset.train), std::string(90, 'a') + std::string(45, 'b'));
  EXPECT_EQ(Text(dataset, *dataset.val), std::string(10, 'a') + std::string(5, 'b'));
  ASSERT_EQ(dataset.mixture.size(), 2u);
  EXPECT_EQ(dataset.mixture[0].weight, 3);
  EXPECT_EQ(dataset.mixture[1].num_tokens, 45);
  const Sampler sampler = MakeSampler(dataset, Order::kSequential, 1, 4);
  EXPECT_EQ(sampler.windows_per_epoch(), 22 + 11);
  const Dataset other = OpenDataset(
      {.mix = path_ + ":0.5," + folder_ + "/b.txt:0.5", .tokenizer = "byte", .block_size = 4});
  EXPECT_NE(other.fingerprint, dataset.fingerprint);
  EXPECT_THAT(OpenError({.mix = mix}), HasSubstr("vocabulary of its own"));
  EXPECT_THAT(OpenError({.mix = mix, .tokenizer = "byte", .block_size = 45}),
              AllOf(HasSubstr("b.txt"), HasSubstr("block_size")));
  EXPECT_THAT(OpenError({.mix = path_ + ":1, " + folder_ + "/c.txt:1", .tokenizer = "byte"}),
              AllOf(testing::StartsWith("data.mix: "), HasSubstr("/c.txt: no such file")));
  EXPECT_THAT(OpenError({.mix = path_}), HasSubstr("expected path:weight"));
  EXPECT_THAT(OpenError({.path = path_, .mix = mix}), HasSubstr("exclude each other"));
}

}  // namespace
}  // namespace lockstep::data
