#include "data/token_file.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <random>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/sha256.h"
#include "data/token_shards.h"
#include "tests/data/data_test_util.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// Writes the header of an llm.c file by hand.
std::string Header(int32_t magic, int32_t version, int32_t count) {
  std::string bytes(1024, '\0');
  const int32_t head[] = {magic, version, count};
  std::memcpy(bytes.data(), head, sizeof(head));
  return bytes;
}

std::string OpenError(const std::string& path, std::optional<int64_t> vocab_size = std::nullopt) {
  return MessageOf<Error>([&] { TokenFile(path, vocab_size); });
}

class TokenFileTest : public testing::Test {
 protected:
  const std::string folder_ = TestFolder();
  const std::string path_ = folder_ + "/tokens.bin";
};

TEST_F(TokenFileTest, ReadsLayoutsWrittenByHand) {
  WriteText(path_, std::string("\x01\x00\xff\xff\x02\x01", 6));
  EXPECT_THAT(All(TokenFile(path_)), ElementsAre(1, 65535, 258));
  EXPECT_EQ(TokenFile(path_).format(), TokenFormat::kNanoGpt);
  WriteText(path_, Header(20240520, 1, 2) + std::string("\x01\x00\x02\x01", 4));
  EXPECT_THAT(All(TokenFile(path_)), ElementsAre(1, 258));
  EXPECT_EQ(TokenFile(path_).format(), TokenFormat::kLlmcGpt2);
  WriteText(path_, Header(20240801, 7, 2) + std::string("\x01\x00\x00\x00\x02\x00\x01\x00", 8));
  EXPECT_THAT(All(TokenFile(path_)), ElementsAre(1, 65538));
  EXPECT_EQ(TokenFile(path_).format(), TokenFormat::kLlmcLlama3);
}

TEST_F(TokenFileTest, WhatIsWrittenIsRead) {
  std::mt19937 random(1);
  for (const TokenFormat format :
       {TokenFormat::kNanoGpt, TokenFormat::kLlmcGpt2, TokenFormat::kLlmcLlama3}) {
    const int32_t limit = format == TokenFormat::kLlmcLlama3 ? 128256 : 50257;
    for (const int64_t count : {1, 511, 512, 4097, 100000}) {
      const std::vector<int32_t> tokens = RandomIds(&random, count, limit);
      WriteTokenFile(path_, format, tokens);
      const TokenFile file(path_, limit);
      ASSERT_EQ(file.format(), format);
      ASSERT_EQ(All(file), tokens);
      ASSERT_EQ(file.max_token(), *std::ranges::max_element(tokens));
      const int64_t offset = random() % count;
      ASSERT_EQ(file.TokenAt(offset), tokens[offset]);
    }
  }
  EXPECT_THAT(ListDirectory(folder_), ElementsAre("tokens.bin"));
}

TEST_F(TokenFileTest, ShorterThanExpectedItIsWrittenInBoundedMemory) {
  std::mt19937 random(2);
  const std::vector<int32_t> tokens = RandomIds(&random, 1 << 20, 50257);
  const int64_t growth = GrowthKib([&] {
    TokenFileWriter writer(path_, TokenFormat::kLlmcGpt2, 1 << 30);
    for (int i = 0; i < 16; ++i) writer.Write(tokens);  // 32 MiB
    const std::string sha256 = writer.Finish();
    LS_INVARIANT(sha256 == Sha256OfFile(path_));
  });
  EXPECT_THAT(growth, GrewLessThan(8 << 10));
  EXPECT_THAT(ListDirectory(folder_), ElementsAre("tokens.bin"));
  const TokenFile file(path_);
  ASSERT_EQ(file.size(), 16 << 20);
  std::vector<int32_t> read(tokens.size());
  for (int i = 0; i < 16; ++i) {
    file.Read(int64_t{i} << 20, read);
    ASSERT_EQ(read, tokens) << i;
  }
}

TEST_F(TokenFileTest, WriterRefusesWhatTheFormatCannotHold) {
  const auto message = [&](TokenFormat format, std::vector<int32_t> tokens) {
    return MessageOf<ArgumentError>([&] { WriteTokenFile(path_, format, tokens); });
  };
  EXPECT_THAT(message(TokenFormat::kNanoGpt, {1, 65536}),
              AllOf(HasSubstr("token 65536 at position 1"), HasSubstr("nanoGPT")));
  EXPECT_THAT(message(TokenFormat::kLlmcLlama3, {-1}), HasSubstr("token -1 at position 0"));
  EXPECT_THAT(message(TokenFormat::kNanoGpt, {}), HasSubstr("at least one token"));
  EXPECT_FALSE(PathExists(path_));
}

TEST_F(TokenFileTest, ReadsOutsideTheStreamAreErrors) {
  WriteTokenFile(path_, TokenFormat::kNanoGpt, std::vector<int32_t>{1, 2, 3});
  const TokenFile file(path_);
  std::vector<int32_t> out(2);
  EXPECT_THAT(MessageOf<ArgumentError>([&] { file.Read(2, out); }),
              HasSubstr("cannot read 2 tokens from position 2 of 3 tokens"));
  EXPECT_THROW(file.Read(-1, out), ArgumentError);
  EXPECT_THROW(file.Read(INT64_MAX, out), ArgumentError);
  EXPECT_NO_THROW(file.Read(3, std::span(out).first(0)));
}

TEST_F(TokenFileTest, FilesThatAreNotThereOrNotFiles) {
  EXPECT_THAT(OpenError(path_), HasSubstr(path_));
  EXPECT_THAT(OpenError(folder_), HasSubstr(folder_));
  WriteText(path_, "");
  EXPECT_THAT(OpenError(path_), AllOf(HasSubstr(path_), HasSubstr("the file is empty")));
}

TEST_F(TokenFileTest, OddSizedAndTruncatedFiles) {
  WriteText(path_, "abc");
  EXPECT_THAT(
      OpenError(path_),
      AllOf(HasSubstr(path_), HasSubstr("3 bytes are not a whole number of uint16 tokens")));
  for (const std::string tail : {"", "\x01", "\x01\x02\x03"}) {
    WriteText(path_, Header(20240520, 1, 1) + tail);
    EXPECT_THAT(OpenError(path_),
                AllOf(HasSubstr("the header announces 1 tokens"),
                      HasSubstr("would make 1026 bytes"), HasSubstr(StrCat(1024 + tail.size()))));
  }
  WriteText(path_, Header(20240801, 7, 1) + "ab");
  EXPECT_THAT(OpenError(path_), HasSubstr("make 1028 bytes, but the file has 1026"));
  WriteText(path_, Header(20240520, 1, -1) + "ab");
  EXPECT_THAT(OpenError(path_), HasSubstr("the header announces -1 tokens"));
}

TEST_F(TokenFileTest, OtherKindsOfFilesOfLlmC) {
  WriteText(path_, Header(20240522, 1, 1) + "ab");
  EXPECT_THAT(OpenError(path_),
              AllOf(HasSubstr("evaluation file of llm.c"), HasSubstr("20240522")));
  WriteText(path_, Header(20240520, 2, 1) + "ab");
  EXPECT_THAT(OpenError(path_),
              AllOf(HasSubstr("version 2"), HasSubstr("only version 1 is supported")));
  WriteText(path_, Header(20240801, 1, 1) + "abcd");
  EXPECT_THAT(OpenError(path_), HasSubstr("only version 7 is supported"));
}

TEST_F(TokenFileTest, TokensAboveTheVocabularyAreFoundWhereverTheyAre) {
  std::mt19937 random(2);
  for (const TokenFormat format : {TokenFormat::kNanoGpt, TokenFormat::kLlmcLlama3}) {
    for (const int64_t count : {1, 33, 1000}) {
      std::vector<int32_t> tokens = RandomIds(&random, count, 1000);
      for (const int64_t position : {int64_t{0}, count / 2, count - 1}) {
        std::vector<int32_t> damaged = tokens;
        damaged[position] = 1000;
        WriteTokenFile(path_, format, damaged);
        EXPECT_THAT(
            OpenError(path_, 1000),
            AllOf(HasSubstr(path_), HasSubstr(StrCat("token 1000 at position ", position)),
                  HasSubstr("vocabulary of 1000 (0 to 999)"), HasSubstr("model.vocab_size")));
        EXPECT_NO_THROW(TokenFile(path_, 1001));
      }
    }
  }
}

TEST_F(TokenFileTest, LargeFilesAreCheckedToTheLastToken) {
  std::vector<int32_t> tokens((1 << 22) + 77, 5);  // several pieces, each checked by a thread
  tokens.back() = 1000;
  WriteTokenFile(path_, TokenFormat::kNanoGpt, tokens);
  EXPECT_EQ(TokenFile(path_, 1001).max_token(), 1000);
  EXPECT_THAT(OpenError(path_, 1000),
              HasSubstr(StrCat("token 1000 at position ", tokens.size() - 1)));
}

TEST_F(TokenFileTest, Uint32TokensMustFitInt32EvenWithoutAVocabulary) {
  WriteText(path_, Header(20240801, 7, 1) + std::string("\x00\x00\x00\x80", 4));
  EXPECT_THAT(OpenError(path_), HasSubstr("token 2147483648 at position 0"));
  WriteText(path_, Header(20240801, 7, 1) + std::string("\xff\xff\xff\x7f", 4));
  EXPECT_EQ(TokenFile(path_).max_token(), INT32_MAX);
}

TEST(TokenSourceTest, ConcatenationsAndSlicesReadAsOneStream) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<int32_t> all;
    std::vector<std::shared_ptr<const TokenSource>> parts;
    for (int part = random() % 6; part >= 0; --part) {
      const std::vector<int32_t> tokens = RandomIds(&random, random() % 9, trial % 2 ? 300 : 70000);
      all.insert(all.end(), tokens.begin(), tokens.end());
      parts.push_back(std::make_shared<MemoryTokens>(tokens));
    }
    const auto whole = std::make_shared<TokenConcatenation>(parts);
    const auto size = static_cast<int64_t>(all.size());
    ASSERT_EQ(whole->size(), size);
    for (int64_t begin = 0; begin <= size; ++begin) {
      for (int64_t end = begin; end <= size; ++end) {
        std::vector<int32_t> got(end - begin);
        whole->Read(begin, got);
        ASSERT_EQ(got, std::vector(all.begin() + begin, all.begin() + end));
      }
    }
    const int64_t begin = random() % (size + 1);
    const TokenSlice slice(whole, begin, size);
    EXPECT_EQ(All(slice), std::vector(all.begin() + begin, all.end()));
    EXPECT_THROW(slice.TokenAt(size - begin), ArgumentError);
  }
  EXPECT_THROW(TokenSlice(std::make_shared<MemoryTokens>(std::vector<int32_t>{1}), 0, 2),
               ArgumentError);
  EXPECT_THROW(MemoryTokens(std::vector<int32_t>{1, -1}), ArgumentError);
}

// As np.uint32 arrays that are written to a file.
TEST_F(TokenFileTest, TokensWithoutAHeaderMayHave32Bits) {
  std::vector<int32_t> tokens(1000);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 128);
  WriteTokenFile(path_, TokenFormat::kNanoGptWide, tokens);
  for (const auto& vocab_size : {std::optional<int64_t>(128256), std::optional<int64_t>()}) {
    const TokenFile file(path_, vocab_size);
    EXPECT_EQ(file.format(), TokenFormat::kNanoGptWide);
    EXPECT_EQ(All(file), tokens);
    EXPECT_EQ(file.max_token(), 999 * 128);
  }
  EXPECT_THAT(OpenError(path_, 50257), HasSubstr("token 50304 at position 393"));
  // Too few to show it, unless the vocabulary does.
  tokens.resize(10);
  WriteTokenFile(path_, TokenFormat::kNanoGptWide, tokens);
  EXPECT_EQ(All(TokenFile(path_, 65537)), tokens);
  EXPECT_EQ(TokenFile(path_, 65536).size(), 20);
  // Those of characters.
  tokens.clear();
  for (int32_t i = 0; i < 100; ++i) tokens.push_back(i % 65);
  WriteTokenFile(path_, TokenFormat::kNanoGptWide, tokens);
  EXPECT_EQ(All(TokenFile(path_, 65)), tokens);
  // Tokens of 16 bits may be some of a larger vocabulary's, and small ones are not halves.
  WriteTokenFile(path_, TokenFormat::kNanoGpt, std::vector<int32_t>(500, 300));
  EXPECT_EQ(TokenFile(path_, 128256).size(), 500);
  EXPECT_EQ(TokenFile(path_).size(), 500);
  WriteTokenFile(path_, TokenFormat::kNanoGpt, std::vector<int32_t>(500, 3));
  EXPECT_EQ(TokenFile(path_).size(), 500);
}

class TokenShardsTest : public testing::Test {
 protected:
  void Write(const std::string& name, const std::vector<int32_t>& tokens,
             TokenFormat format = TokenFormat::kLlmcGpt2) {
    WriteTokenFile(folder_ + "/" + name, format, tokens);
  }
  static std::vector<std::string> Names(
      const std::vector<std::shared_ptr<const TokenFile>>& files) {
    std::vector<std::string> names;
    for (const auto& file : files) {
      names.push_back(std::filesystem::path(file->path()).filename().string());
    }
    return names;
  }
  std::string Message(const std::string& pattern) {
    return MessageOf<InputError>(
        [&] { OpenTokenShards(ExpandPattern(folder_ + "/" + pattern), std::nullopt); });
  }
  const std::string folder_ = TestFolder();
};

TEST_F(TokenShardsTest, NamesTellTheSplit) {
  EXPECT_EQ(SplitOfFileName("/a_val_b/fineweb_train_000012.bin"), Split::kTrain);
  EXPECT_EQ(SplitOfFileName("fineweb_val_000000.bin"), Split::kVal);
  EXPECT_EQ(SplitOfFileName("dir/train.bin"), Split::kTrain);
  EXPECT_EQ(SplitOfFileName("val.bin"), Split::kVal);
  EXPECT_EQ(SplitOfFileName("a_val.bin"), Split::kVal);
  EXPECT_EQ(SplitOfFileName("interval.bin"), Split::kNone);
  EXPECT_EQ(SplitOfFileName("train_1"), Split::kTrain);
  EXPECT_EQ(SplitOfFileName("trainer_000001.bin"), Split::kNone);
  EXPECT_EQ(SplitOfFileName("x_000001.bin"), Split::kNone);
  EXPECT_EQ(SplitOfFileName("12.bin"), Split::kNone);
  EXPECT_EQ(SplitOfFileName("x-train-00000-of-00002.bin"), Split::kTrain);
  for (const char* name : {"validation.bin", "x_valid_000000.bin", "x.dev.bin", "eval_2.bin"}) {
    EXPECT_EQ(SplitOfFileName(name), Split::kVal) << name;
  }
  Write("train.bin", {1, 2});
  Write("validation.bin", {3});
  const TokenShards shards = OpenTokenShards(ExpandPattern(folder_ + "/*.bin"), std::nullopt);
  EXPECT_THAT(Names(shards.train), ElementsAre("train.bin"));
  EXPECT_THAT(Names(shards.val), ElementsAre("validation.bin"));
}

TEST_F(TokenShardsTest, FoldersTellTheSplitWhereNoNameDoes) {
  using enum Split;
  EXPECT_THAT(SplitsOf({"d/train/0.bin", "d/train/sub/0.bin", "d/wiki_val/0.bin"}),
              ElementsAre(kTrain, kTrain, kVal));
  // Of all or of none: a folder's name may mean something else.
  EXPECT_THAT(SplitsOf({"train/0.bin", "validation/0.bin", "other/0.bin"}),
              ElementsAre(kNone, kNone, kNone));
  // Not those that hold all of them, nor beside names that tell.
  EXPECT_THAT(SplitsOf({"/dev/a/0.bin", "/dev/b/0.bin"}), ElementsAre(kNone, kNone));
  EXPECT_THAT(SplitsOf({"/dev/0.bin"}), ElementsAre(kNone));
  EXPECT_THAT(SplitsOf({"val/train.bin", "train/0.bin"}), ElementsAre(kTrain, kNone));
  EXPECT_THAT(SplitsOf({}), ElementsAre());
  for (const char* split : {"train", "val"}) {
    std::filesystem::create_directory(folder_ + "/" + split);
    Write(std::string(split) + "/0.bin", {1, 2});
  }
  const TokenShards shards = OpenTokenShards(ExpandPattern(folder_ + "/*/*.bin"), std::nullopt);
  EXPECT_EQ(shards.train.size(), 1);
  EXPECT_EQ(shards.val.size(), 1);
}

TEST_F(TokenShardsTest, AFileCountsOnce) {
  Write("a.bin", {1, 2});
  std::filesystem::create_symlink("a.bin", folder_ + "/b.bin");
  EXPECT_THAT(Message("*.bin"),
              AllOf(HasSubstr("/b.bin is the same file as "), HasSubstr("/a.bin")));
}

TEST_F(TokenShardsTest, PatternsAreSortedAndSplit) {
  for (const char* name : {"x_train_000010.bin", "x_train_000002.bin", "x_val_000000.bin",
                           "x_train_000001.bin", "y_train_000001.txt"}) {
    Write(name, {1});
  }
  const TokenShards both = OpenTokenShards(ExpandPattern(folder_ + "/*.bin"), std::nullopt);
  EXPECT_THAT(Names(both.train),
              ElementsAre("x_train_000001.bin", "x_train_000002.bin", "x_train_000010.bin"));
  EXPECT_THAT(Names(both.val), ElementsAre("x_val_000000.bin"));
  const TokenShards one =
      OpenTokenShards(ExpandPattern(folder_ + "/x_train_00000?.bin"), std::nullopt);
  EXPECT_THAT(Names(one.train), ElementsAre("x_train_000001.bin", "x_train_000002.bin"));
  EXPECT_TRUE(one.val.empty());
  const TokenShards val = OpenTokenShards(ExpandPattern(folder_ + "/x_val_*.bin"), std::nullopt);
  EXPECT_THAT(Names(val.train), ElementsAre("x_val_000000.bin"));
}

TEST_F(TokenShardsTest, AFileMayBeNamedLikeAPattern) {
  Write("odd[1].bin", {5});
  EXPECT_THAT(Names(OpenTokenShards(ExpandPattern(folder_ + "/odd[1].bin"), 10).train),
              ElementsAre("odd[1].bin"));
}

TEST_F(TokenShardsTest, Errors) {
  const std::string here = std::filesystem::current_path().string();
  EXPECT_THAT(Message("*.bin"),
              AllOf(HasSubstr("no file matches " + folder_ + "/*.bin"), HasSubstr(here)));
  EXPECT_THAT(Message("none.bin"),
              AllOf(HasSubstr(folder_ + "/none.bin: no such file"), HasSubstr(here)));
  Write("a_val.bin", {1});
  Write("b_train.bin", {1}, TokenFormat::kNanoGpt);
  EXPECT_THAT(Message("*.bin"), AllOf(HasSubstr("b_train.bin is a nanoGPT token file"),
                                      HasSubstr("a_val.bin is a llm.c (GPT-2) one")));
  Write("b_train.bin", {1});
  Write("c.bin", {1});
  for (const char* pattern : {"*.bin", "[ac]*.bin", "[bc]*.bin"}) {
    EXPECT_THAT(Message(pattern), HasSubstr("c.bin, whose name tells neither"));
  }
  EXPECT_THAT(
      MessageOf<InputError>([&] { OpenTokenShards(ExpandPattern(folder_ + "/[ab]_*.bin"), 1); }),
      AllOf(HasSubstr("a_val.bin: token 1 at position 0"), HasSubstr("vocabulary of 1")));
}

}  // namespace
}  // namespace lockstep::data
