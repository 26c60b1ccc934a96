// Data sets of JSONL and of compressed, large or many text files.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/io/file.h"
#include "data/prepare/prepare.h"
#include "data/tokenizer/byte_tokenizer.h"
#include "tests/data/compressed_files.h"
#include "tests/data/dataset_fixture.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using RawDatasetTest = DatasetTest;

TEST_F(RawDatasetTest, RawTextOfAnyKind) {
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
  EXPECT_EQ(DocumentStarts(*dataset.train), OnesAt(9, {0, 3, 8}));
  EXPECT_THAT(OpenError({.path = folder_ + "/texts"}), HasSubstr("no field \"text\""));
  EXPECT_THAT(OpenError({.path = folder_ + "/texts/*.txt", .vocab_size = 2}),
              HasSubstr("model.vocab_size"));
}

// One file or several.
TEST_F(RawDatasetTest, MalformedUtf8IsToldOf) {
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
TEST_F(RawDatasetTest, ByteTokenizersKeepEveryByte) {
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
TEST_F(RawDatasetTest, TooLargeDocumentsAreToldToPrepare) {
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
                                "/large.txt.zst' --data.document=paragraph "
                                "--data.max_document_bytes=1073741824 " +
                                advised + " --out_dir=tokens, and train with --data.path=tokens")));
  }
  WriteText(folder_ + "/large.jsonl.zst", frames);
  EXPECT_THAT(OpenError({.path = folder_ + "/large.jsonl.zst", .field = "body", .tokenizer = ""}),
              HasSubstr("large.jsonl.zst' --data.field=body --data.max_document_bytes=1073741824"));
}

TEST_F(RawDatasetTest, RawDocumentsTakeTheMemoryOfTheirTokens) {
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
  EXPECT_THAT(growth, GrewLessThan(2 * kKib + (20 << 10)));
  // Across blocks, for the tokenizer that waits for all text, too.
  options.tokenizer = "char";
  const Dataset dataset = OpenDataset(options);
  const std::vector<int32_t> starts = DocumentStarts(*dataset.train);
  for (size_t i = 0; i < starts.size(); ++i) ASSERT_EQ(starts[i], i % document.size() == 0) << i;
  EXPECT_EQ(dataset.vocab_size, 1);
}

TEST_F(RawDatasetTest, ARawTextLargerThanADocumentIsOne) {
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

TEST_F(RawDatasetTest, ALargeTextHasTheTokensOfTheWhole) {
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

}  // namespace
}  // namespace lockstep::data
