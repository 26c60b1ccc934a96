// Data sets of what `prepare` made.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/io/file.h"
#include "core/io/json.h"
#include "data/prepare/prepare.h"
#include "data/token_file.h"
#include "data/tokenizer/byte_tokenizer.h"
#include "data/tokenizer/char_tokenizer.h"
#include "tests/data/dataset_fixture.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using PreparedDatasetTest = DatasetTest;

// Two documents, one of them cut between two files.
std::string PreparedFolder(const std::string& folder, int64_t shard_tokens, double val_fraction,
                           bool nanogpt = false) {
  WriteText(folder + "/source.jsonl",
            "{\"text\": \"first document\"}\n{\"text\": \"the second\"}\n{\"text\": \"third\"}\n");
  Prepare({.paths = {folder + "/source.jsonl"},
           .text = {},
           .tokenizer = std::make_shared<ByteTokenizer>(),
           .out_dir = folder + "/tokens",
           .nanogpt = nanogpt,
           .shard_tokens = shard_tokens,
           .val_fraction = val_fraction,
           .threads = 1});
  return folder + "/tokens";
}

TEST_F(PreparedDatasetTest, PreparedFoldersBringTheirTokenizerAndDocuments) {
  const std::string folder = PreparedFolder(folder_, 20, 0.4);
  const Dataset dataset = OpenDataset({.path = folder});
  EXPECT_EQ(dataset.tokenizer->name(), "byte");
  EXPECT_EQ(Text(dataset, *dataset.train), "first documentthe second");
  EXPECT_EQ(Text(dataset, *dataset.val), "third");
  EXPECT_EQ(DocumentStarts(*dataset.train), OnesAt(24, {0, 14}));
  EXPECT_EQ(DocumentStarts(*dataset.val), OnesAt(5, {0}));
  // As token files they are the same.
  const Dataset files = OpenDataset({.path = folder + "/*.bin"});
  ASSERT_NE(files.tokenizer, nullptr);
  EXPECT_EQ(files.tokenizer->name(), "byte");
  EXPECT_EQ(files.note, "");
  EXPECT_EQ(files.vocab_size, 256);
  EXPECT_EQ(files.fingerprint, dataset.fingerprint);
  EXPECT_EQ(DocumentStarts(*files.train), DocumentStarts(*dataset.train));
  EXPECT_EQ(Text(OpenDataset({.path = folder + "/tokens_val_000000.bin", .val_fraction = 0}),
                 *dataset.val),
            "third");
  WriteText(folder_ + "/abc.json", CharTokenizer("abc").ToJson());
  for (const std::string& path : {folder, folder + "/*.bin"}) {
    EXPECT_THAT(OpenError({.path = path, .tokenizer = folder_ + "/abc.json"}),
                AllOf(HasSubstr("another tokenizer than data.tokenizer"),
                      HasSubstr("the former (byte) has 256 tokens, the latter (char) 3")));
    EXPECT_THAT(OpenError({.path = path, .tokenizer = "char"}),
                HasSubstr("a char tokenizer is made from a text"));
    EXPECT_EQ(OpenDataset({.path = path, .tokenizer = "byte"}).vocab_size, 256);
  }
  EXPECT_TRUE(HoldsPreparedFiles(folder) && HoldsPreparedFiles(folder + "/*.bin"));
  EXPECT_FALSE(HoldsPreparedFiles(folder_) || HoldsTokenFiles(folder_));
  // A folder of token files that nothing describes.
  std::filesystem::remove(folder + "/manifest.json");
  EXPECT_EQ(OpenDataset({.path = folder}).fingerprint, dataset.fingerprint);
}

// It ends as JSON lines do.
TEST_F(PreparedDatasetTest, AManifestIsRefusedAsText) {
  const std::string folder = PreparedFolder(folder_, 20, 0);
  for (const std::string name : {"manifest.json", "manifest.*", "*.json"}) {
    EXPECT_THAT(OpenError({.path = JoinPath(folder, name)}),
                AllOf(HasSubstr(folder + "/manifest.json: this is the manifest of a folder that "),
                      testing::EndsWith("--data.path=" + folder)));
  }
  WriteText(folder_ + "/manifest.json", "{\"text\": \"lines of another program\"}\n");
  const Dataset other = OpenDataset({.path = folder_ + "/manifest.json", .val_fraction = 0});
  EXPECT_EQ(Text(other, *other.train), "lines of another program");
}

TEST_F(PreparedDatasetTest, ShardsThatAreNotThoseOfTheManifestAreRefused) {
  for (const bool nanogpt : {false, true}) {
    const std::string folder = PreparedFolder(folder_, 20, 0, nanogpt);
    const Manifest manifest = *ReadManifest(folder);
    ASSERT_EQ(manifest.shards.size(), 2u);
    const std::string first = JoinPath(folder, manifest.shards[0].file);
    const std::string second = JoinPath(folder, manifest.shards[1].file);
    const auto refused = [&](const std::string& path, int64_t tokens) {
      EXPECT_THAT(OpenError({.path = folder, .block_size = 4}),
                  AllOf(HasSubstr(StrCat(path, " has ", FileSize(path), " bytes")),
                        HasSubstr(StrCat("the ", tokens, " tokens that manifest.json lists")),
                        HasSubstr("prepare the text again")));
    };
    // Cut short as nanoGPT's format does not show, and written again with fewer tokens.
    const std::vector<int32_t> tokens = All(TokenFile(second));
    WriteTokenFile(second, TokenFile(second).format(), std::span(tokens).first(tokens.size() - 1));
    refused(second, std::ssize(tokens));
    // In each other's place.
    WriteTokenFile(second, TokenFile(second).format(), tokens);
    EXPECT_NO_THROW(OpenDataset({.path = folder, .block_size = 4}));
    std::filesystem::rename(first, folder + "/x");
    std::filesystem::rename(second, first);
    std::filesystem::rename(folder + "/x", second);
    refused(first, 20);
    Manifest unknown = manifest;
    unknown.options["format"] = "x";
    WriteText(JoinPath(folder, kManifestName), unknown.ToJson());
    EXPECT_THAT(OpenError({.path = folder}),
                AllOf(HasSubstr(kManifestName), HasSubstr("no format of token files")));
    std::filesystem::remove_all(folder);
  }
}

TEST_F(PreparedDatasetTest, UnfinishedFoldersAreRefused) {
  const std::string folder = PreparedFolder(folder_, 20, 0);
  Manifest manifest = *ReadManifest(folder);
  manifest.next.resize(1);
  WriteText(folder + "/manifest.json", manifest.ToJson());
  for (const std::string file : {"", "/*.bin", "/tokens_train_000000.bin"}) {
    EXPECT_THAT(OpenError({.path = folder + file}),
                AllOf(HasSubstr(folder + ": prepare has not finished this folder"),
                      HasSubstr("repeat the command")));
  }
  WriteText(folder + "/manifest.json", "{}");
  EXPECT_THAT(OpenError({.path = folder}), HasSubstr("no manifest"));
}

TEST_F(PreparedDatasetTest, TextsOfAMixtureTakeTheTokenizerOfItsTokenFiles) {
  const std::string folder = PreparedFolder(folder_, 100, 0);
  WriteText(path_, "some text that is not prepared");
  for (const std::string& mix : {path_ + ":1," + folder + ":1", folder + ":1," + path_ + ":1"}) {
    const Dataset dataset = OpenDataset({.mix = mix});
    EXPECT_EQ(dataset.tokenizer->name(), "byte");
    EXPECT_EQ(dataset.vocab_size, 256);
    const Dataset named = OpenDataset({.mix = mix, .tokenizer = "byte"});
    EXPECT_EQ(dataset.fingerprint, named.fingerprint);
    EXPECT_EQ(All(*dataset.train), All(*named.train));
    EXPECT_EQ(All(*dataset.val), All(*named.val));
  }
  // There is none to take.
  WriteTokenFile(folder_ + "/ids.bin", TokenFormat::kNanoGpt, std::vector<int32_t>(20, 7));
  EXPECT_THAT(OpenError({.mix = folder_ + "/ids.bin:1," + path_ + ":1"}),
              HasSubstr("text.txt would have a vocabulary of its own"));
}

// Token files that lie in a prepared folder, but that no manifest lists.
TEST_F(PreparedDatasetTest, StrangersInPreparedFoldersHaveNoTokenizer) {
  const std::string folder = PreparedFolder(folder_, 20, 0);
  std::filesystem::copy_file(folder + "/tokens_train_000000.bin", folder + "/stranger_train.bin");
  EXPECT_EQ(OpenDataset({.path = folder + "/stranger_train.bin"}).tokenizer, nullptr);
  EXPECT_FALSE(HoldsPreparedFiles(folder + "/stranger_train.bin"));
  EXPECT_TRUE(HoldsPreparedFiles(folder + "/*.bin"));
  // A manifest may be anybody's.
  WriteText(folder + "/manifest.json", "{\"format\": 3}");
  EXPECT_EQ(OpenDataset({.path = folder + "/*.bin"}).tokenizer, nullptr);
  EXPECT_FALSE(HoldsPreparedFiles(folder + "/*.bin"));
}

TEST_F(PreparedDatasetTest, FilesOfSeveralPreparedFoldersShareOneTokenizer) {
  for (const std::string name : {"a", "b"}) {
    std::filesystem::create_directories(folder_ + "/" + name);
    PreparedFolder(folder_ + "/" + name, 100, 0);
  }
  const std::string pattern = folder_ + "/?/tokens/*.bin";
  EXPECT_EQ(OpenDataset({.path = pattern, .val_fraction = 0}).train->size(), 58);
  ASSERT_NE(OpenDataset({.path = pattern}).tokenizer, nullptr);
  WriteText(folder_ + "/b/tokens/tokenizer.json", CharTokenizer("abc").ToJson());
  EXPECT_THAT(OpenError({.path = pattern}),
              AllOf(HasSubstr("b/tokens has another tokenizer than "), HasSubstr("a/tokens: "),
                    HasSubstr("the former (char) has 3 tokens, the latter (byte) 256")));
  EXPECT_THAT(OpenError({.mix = folder_ + "/a/tokens:1," + folder_ + "/b/tokens:1"}),
              AllOf(HasSubstr("data.mix: "), HasSubstr("b/tokens"),
                    HasSubstr("is outside the vocabulary of 3")));
  const auto golden = Json::parse(ReadFile(TestData("tokenizers/llama3.json")));
  WriteText(folder_ + "/b/tokens/tokenizer.json", golden["tokenizer"].dump());
  EXPECT_THAT(OpenError({.mix = folder_ + "/a/tokens:1," + folder_ + "/b/tokens:1"}),
              AllOf(HasSubstr("data.mix: "), HasSubstr("b/tokens has another tokenizer than "),
                    HasSubstr(" tokens, the latter (byte) 256")));
}

}  // namespace
}  // namespace lockstep::data
