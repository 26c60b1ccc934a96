#include "data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/sha256.h"
#include "data/corpus.h"
#include "data/prepare/prepare.h"
#include "data/token_file.h"
#include "data/tokenizer/byte_tokenizer.h"
#include "data/tokenizer/char_tokenizer.h"
#include "tests/data/compressed_files.h"
#include "tests/data/data_test_util.h"
#include "tests/sanitized.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string Text(const Dataset& dataset, const TokenSource& source) {
  return dataset.tokenizer->Decode(All(source));
}

std::string OpenError(const DatasetOptions& options) {
  return MessageOf<Error>([&] { OpenDataset(options); });
}

class DatasetTest : public testing::Test {
 protected:
  const std::string folder_ = TestFolder();
  const std::string path_ = folder_ + "/text.txt";
  DatasetOptions options_ = {.path = path_};
};

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

std::vector<int32_t> DocumentStarts(const TokenSource& source) {
  std::vector<int32_t> starts(source.size());
  source.ReadDocumentStarts(0, starts);
  return starts;
}

TEST_F(DatasetTest, DocumentMasksNeedAKnownSeparator) {
  options_.document_mask = true;
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

class TokenDatasetTest : public DatasetTest {
 protected:
  TokenDatasetTest() { options_.path = folder_ + "/*.bin"; }
  void Write(const std::string& name, const std::vector<int32_t>& tokens) {
    WriteTokenFile(folder_ + "/" + name, TokenFormat::kNanoGpt, tokens);
  }
};

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

std::vector<int32_t> Starts(const TokenSource& source) {
  std::vector<int32_t> starts(source.size());
  source.ReadDocumentStarts(0, starts);
  return starts;
}

std::vector<int32_t> OnesAt(int64_t size, std::initializer_list<int64_t> positions) {
  std::vector<int32_t> ones(size);
  for (const int64_t position : positions) ones[position] = 1;
  return ones;
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
  EXPECT_EQ(Starts(*OpenDataset(options_).train), OnesAt(7, {1, 5}));
  options_.loaded_tokenizer = std::make_shared<LargeTokenizer>(128000);
  EXPECT_EQ(Starts(*OpenDataset(options_).train), OnesAt(7, {1, 5}));
  for (const std::optional<int32_t> bos : {std::optional<int32_t>(), std::optional<int32_t>(2)}) {
    options_.loaded_tokenizer = std::make_shared<LargeTokenizer>(bos);
    EXPECT_EQ(Starts(*OpenDataset(options_).train), OnesAt(7, {0, 3}));
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

TEST_F(DatasetTest, PreparedFoldersBringTheirTokenizerAndDocuments) {
  const std::string folder = PreparedFolder(folder_, 20, 0.4);
  const Dataset dataset = OpenDataset({.path = folder});
  EXPECT_EQ(dataset.tokenizer->name(), "byte");
  EXPECT_EQ(Text(dataset, *dataset.train), "first documentthe second");
  EXPECT_EQ(Text(dataset, *dataset.val), "third");
  EXPECT_EQ(Starts(*dataset.train), OnesAt(24, {0, 14}));
  EXPECT_EQ(Starts(*dataset.val), OnesAt(5, {0}));
  // As token files they are the same.
  const Dataset files = OpenDataset({.path = folder + "/*.bin"});
  ASSERT_NE(files.tokenizer, nullptr);
  EXPECT_EQ(files.tokenizer->name(), "byte");
  EXPECT_EQ(files.note, "");
  EXPECT_EQ(files.vocab_size, 256);
  EXPECT_EQ(files.fingerprint, dataset.fingerprint);
  EXPECT_EQ(Starts(*files.train), Starts(*dataset.train));
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

TEST_F(DatasetTest, ShardsThatAreNotThoseOfTheManifestAreRefused) {
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

TEST_F(DatasetTest, UnfinishedFoldersAreRefused) {
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

TEST_F(DatasetTest, RawTextOfAnyKind) {
  const std::string text = "some plain text\nwith two lines";
  WriteText(path_, text);
  WriteText(folder_ + "/a.txt.gz", GzipOf(text));
  const Dataset plain = OpenDataset(options_);
  const Dataset compressed = OpenDataset({.path = folder_ + "/a.txt.gz"});
  EXPECT_EQ(All(*compressed.train), All(*plain.train));
  EXPECT_EQ(All(*compressed.val), All(*plain.val));
  EXPECT_EQ(compressed.fingerprint, plain.fingerprint);
  MakeDirectories(folder_ + "/texts");
  WriteText(folder_ + "/texts/a.jsonl.zst",
            ZstdOf("{\"body\": \"one\"}\n{\"body\": \"\"}\n{\"body\": \"three\"}\n"));
  WriteText(folder_ + "/texts/b.txt", "four");
  const Dataset dataset = OpenDataset(
      {.path = folder_ + "/texts", .field = "body", .tokenizer = "byte", .val_fraction = 0.25});
  EXPECT_EQ(Text(dataset, *dataset.train) + "|" + Text(dataset, *dataset.val), "onethreef|our");
  EXPECT_EQ(Starts(*dataset.train), OnesAt(9, {0, 3, 8}));
  EXPECT_THAT(OpenError({.path = folder_ + "/texts"}), HasSubstr("no field \"text\""));
  EXPECT_THAT(OpenError({.path = folder_ + "/texts/*.txt", .vocab_size = 2}),
              HasSubstr("model.vocab_size"));
}

// One file or several.
TEST_F(DatasetTest, MalformedUtf8IsToldOf) {
  const std::string text = "some text, and a bad byte: \xff. ";
  WriteText(folder_ + "/one.txt.gz", GzipOf(text));
  MakeDirectories(folder_ + "/two");
  for (const char* name : {"/two/a.txt", "/two/b.txt"}) WriteText(folder_ + name, text);
  EXPECT_EQ(OpenDataset({.path = folder_ + "/one.txt.gz"}).note,
            folder_ + "/one.txt.gz: 1 malformed parts of UTF-8 became U+FFFD");
  EXPECT_EQ(OpenDataset({.path = folder_ + "/two"}).note,
            folder_ + "/two: 2 malformed parts of UTF-8 became U+FFFD");
}

// However the bytes are stored.
TEST_F(DatasetTest, ByteTokenizersKeepEveryByte) {
  std::string bytes = "\xef\xbb\xbf";
  for (int i = 0; i < 1024; ++i) bytes += static_cast<char>(i * 37);
  WriteText(path_, bytes);
  MakeDirectories(folder_ + "/two");
  WriteText(folder_ + "/two/a.txt", bytes);
  WriteText(folder_ + "/two/b.txt.zst", ZstdOf(bytes));
  WriteText(folder_ + "/one.txt.gz", GzipOf(bytes));
  for (const auto& tokenizer : {std::shared_ptr<const Tokenizer>(),
                                std::shared_ptr<const Tokenizer>(new ByteTokenizer())}) {
    for (const std::string& path : {path_, folder_ + "/one.txt.gz", folder_ + "/two"}) {
      DatasetOptions options{.path = path, .tokenizer = "byte", .loaded_tokenizer = tokenizer};
      options.val_fraction = 0;
      const Dataset dataset = OpenDataset(options);
      EXPECT_EQ(Text(dataset, *dataset.train), path.ends_with("two") ? bytes + bytes : bytes);
      EXPECT_EQ(dataset.note, "");
    }
  }
  Prepare({.paths = {folder_ + "/two"},
           .text = {},
           .tokenizer = std::make_shared<ByteTokenizer>(),
           .out_dir = folder_ + "/tokens",
           .val_fraction = 0,
           .threads = 1});
  const Dataset prepared = OpenDataset({.path = folder_ + "/tokens", .val_fraction = 0});
  EXPECT_EQ(Text(prepared, *prepared.train), bytes + bytes);
  // By the folder's name, too.
  for (const std::string& path : {path_, folder_ + "/one.txt.gz"}) {
    const Dataset named =
        OpenDataset({.path = path, .tokenizer = folder_ + "/tokens", .val_fraction = 0});
    EXPECT_EQ(Text(named, *named.train), bytes);
  }
}

// The advice is for the user of train_gpt, who has no options for documents.
TEST_F(DatasetTest, TooLargeDocumentsAreToldToPrepare) {
  const std::string zeros = ZstdOf(std::string(1 << 20, ' '));
  std::string frames;
  for (int mib = 0; mib <= 128; ++mib) frames += zeros;
  WriteText(folder_ + "/large.txt.zst", frames);
  for (const auto& [tokenizer, advised] :
       {std::pair("", "--train_tokenizer=4096"), std::pair("byte", "--data.tokenizer=byte")}) {
    EXPECT_THAT(OpenError({.path = folder_ + "/large.txt.zst", .tokenizer = tokenizer}),
                AllOf(HasSubstr("large.txt.zst: no place to cut it, such as a space after a word, "
                                "within 134217728 bytes."),
                      HasSubstr("prepare it: prepare --data.path='" + folder_ +
                                "/large.txt.zst' --data.field=text --data.document=paragraph "
                                "--data.max_document_bytes=1073741824 " +
                                advised + " --out_dir=tokens, and train with --data.path=tokens")));
  }
}

TEST_F(DatasetTest, RawDocumentsTakeTheMemoryOfTheirTokens) {
  constexpr int64_t kKib = 48 << 10;  // of text
  const std::string document(1 << 16, 'x');
  std::string lines;
  for (int i = 0; i < 16; ++i) lines += "{\"text\": \"" + document + "\"}\n";
  const std::string compressed = ZstdOf(lines);
  std::string frames;
  for (int64_t kib = 0; kib < kKib; kib += 1 << 10) frames += compressed;
  WriteText(folder_ + "/a.jsonl.zst", frames);
  DatasetOptions options{.path = folder_ + "/a.jsonl.zst", .tokenizer = "byte"};
  const int64_t growth = GrowthKib([&] {
    const Dataset dataset = OpenDataset(options);
    LS_INVARIANT(dataset.train->size() + dataset.val->size() == kKib << 10);
  });
  EXPECT_GT(growth, 2 * kKib);  // two bytes a token
  // The sanitizers' heaps keep what was freed.
  if (!test::kSanitized) {
    EXPECT_LT(growth, 2 * kKib + (20 << 10));
  }
  // Across blocks, for the tokenizer that waits for all text, too.
  options.tokenizer = "char";
  const Dataset dataset = OpenDataset(options);
  const std::vector<int32_t> starts = Starts(*dataset.train);
  for (size_t i = 0; i < starts.size(); ++i) ASSERT_EQ(starts[i], i % document.size() == 0) << i;
  EXPECT_EQ(dataset.vocab_size, 1);
}

TEST_F(DatasetTest, ARawTextLargerThanADocumentIsOne) {
  std::string block;
  while (block.size() < (1 << 20)) block += "some words, ";
  const std::string compressed = ZstdOf(block);
  std::string frames;
  for (int i = 0; i < 130; ++i) frames += compressed;
  WriteText(folder_ + "/large.txt.zst", frames);
  const Dataset dataset =
      OpenDataset({.path = folder_ + "/large.txt.zst", .tokenizer = "byte", .val_fraction = 0});
  EXPECT_EQ(dataset.train->size(), 130 * std::ssize(block));
  std::vector<int32_t> starts(1 << 20);
  for (int64_t at = 0; at < dataset.train->size(); at += std::ssize(starts)) {
    starts.resize(std::min<int64_t>(std::ssize(starts), dataset.train->size() - at));
    dataset.train->ReadDocumentStarts(at, starts);
    ASSERT_EQ(std::ranges::count(starts, 1), at == 0) << at;
  }
}

TEST_F(DatasetTest, ALargeTextHasTheTokensOfTheWhole) {
  std::string text;
  while (text.size() < (20 << 20)) text += "Words, and \u00e9t\u00e9.\n";
  WriteText(path_, text);
  for (const char* tokenizer : {"byte", "char"}) {
    options_.tokenizer = tokenizer;
    const Dataset dataset = OpenDataset(options_);
    EXPECT_EQ(All(*dataset.train), dataset.tokenizer->Encode(Text(dataset, *dataset.train)));
    EXPECT_EQ(Text(dataset, *dataset.train) + Text(dataset, *dataset.val), text);
  }
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

TEST_F(DatasetTest, TextsOfAMixtureTakeTheTokenizerOfItsTokenFiles) {
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
TEST_F(DatasetTest, StrangersInPreparedFoldersHaveNoTokenizer) {
  const std::string folder = PreparedFolder(folder_, 20, 0);
  std::filesystem::copy_file(folder + "/tokens_train_000000.bin", folder + "/stranger.bin");
  EXPECT_EQ(OpenDataset({.path = folder + "/stranger.bin"}).tokenizer, nullptr);
  EXPECT_FALSE(HoldsPreparedFiles(folder + "/stranger.bin"));
  EXPECT_TRUE(HoldsPreparedFiles(folder + "/*.bin"));
  // A manifest may be anybody's.
  WriteText(folder + "/manifest.json", "{\"format\": 3}");
  EXPECT_EQ(OpenDataset({.path = folder + "/*.bin"}).tokenizer, nullptr);
  EXPECT_FALSE(HoldsPreparedFiles(folder + "/*.bin"));
}

TEST_F(DatasetTest, FilesOfSeveralPreparedFoldersShareOneTokenizer) {
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
  const auto golden = nlohmann::json::parse(ReadFile(TestData("tokenizers/llama3.json")));
  WriteText(folder_ + "/b/tokens/tokenizer.json", golden["tokenizer"].dump());
  EXPECT_THAT(OpenError({.mix = folder_ + "/a/tokens:1," + folder_ + "/b/tokens:1"}),
              AllOf(HasSubstr("data.mix: "), HasSubstr("b/tokens has another tokenizer than "),
                    HasSubstr(" tokens, the latter (byte) 256")));
}

}  // namespace
}  // namespace lockstep::data
