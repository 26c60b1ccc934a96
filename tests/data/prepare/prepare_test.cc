#include "data/prepare/prepare.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "core/error.h"
#include "core/io/sha256.h"
#include "data/dataset.h"
#include "data/document_index.h"
#include "data/prepare/train_tokenizer.h"
#include "data/text/text_files.h"
#include "data/text/text_parts.h"
#include "tests/data/prepare/prepare_fixture.h"

namespace lockstep::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(PrepareTest, EqualsAPlainLoopWithAnyNumberOfThreads) {
  struct Case {
    const char* name;
    bool nanogpt;
    int32_t first_id;
    int64_t shard_tokens;
    double val_fraction;
    bool val_shard;
  };
  for (const Case& c :
       {Case{"llmc", false, 0, 7000, 0.15, false}, Case{"llmc32", false, 70000, 3000, 0, false},
        Case{"val_shard", false, 0, 5000, 0.15, true}, Case{"nanogpt", true, 65279, 0, 0.3, false},
        Case{"nanogpt_shards", true, 0, 4096, 0.5, false}}) {
    SCOPED_TRACE(c.name);
    PrepareOptions options = To(c.name);
    options.nanogpt = c.nanogpt;
    options.tokenizer = std::make_shared<TestTokenizer>(c.first_id);
    options.shard_tokens = c.shard_tokens;
    options.val_fraction = c.val_fraction;
    options.val_shard = c.val_shard;
    std::map<std::string, std::string> first;
    for (const int threads : {1, 2, 3}) {
      options.threads = threads;
      options.out_dir = Out(StrCat(c.name, threads));
      const PrepareResult result = Prepare(options);
      EXPECT_FALSE(result.was_complete);
      EXPECT_TRUE(Prepare(options).was_complete);
      if (threads == 1) {
        first = Contents(options.out_dir);
        const Stream train =
            Together(options.out_dir, result.manifest, Split::kTrain, c.shard_tokens);
        const Stream val = Together(options.out_dir, result.manifest, Split::kVal, c.shard_tokens);
        std::vector<Stream> want = PlainLoop(options);
        if (c.val_shard) {  // the first shard is cut off
          Stream all = val;
          for (const uint64_t start : train.starts) all.starts.push_back(start + val.tokens.size());
          all.tokens.insert(all.tokens.end(), train.tokens.begin(), train.tokens.end());
          EXPECT_EQ(val.tokens.size(), 5000u);
          EXPECT_EQ(all.tokens, want[0].tokens);
          EXPECT_EQ(all.starts, want[0].starts);
        } else {
          EXPECT_EQ(train.tokens, want[0].tokens);
          EXPECT_EQ(train.starts, want[0].starts);
          EXPECT_EQ(val.tokens, want[1].tokens);
          EXPECT_EQ(val.starts, want[1].starts);
        }
        const DocumentCounts counts = result.manifest.counts();
        EXPECT_EQ(counts.documents,
                  static_cast<int64_t>(want[0].starts.size() + want[1].starts.size()));
        EXPECT_EQ(counts.documents + counts.empty, 90);
        EXPECT_GT(counts.bad_utf8, 0);
        ASSERT_EQ(result.manifest.sources.size(), 5u);
        for (const SourceFile& source : result.manifest.sources) {
          EXPECT_EQ(source.sha256, Sha256OfFile(source.path));
          EXPECT_EQ(source.bytes, FileSize(source.path));
        }
      } else {
        EXPECT_EQ(Contents(options.out_dir), first) << threads;
      }
    }
  }
}

TEST_F(PrepareTest, RefusesToMakeTensOfThousandsOfFiles) {
  PrepareOptions options = To("many");
  options.paths = {Source("large.txt")};
  WriteText(Source("large.txt"), std::string(1 << 20, 'x'));
  options.shard_tokens = 7;
  EXPECT_THAT(MessageOf<InputError>([&] { Prepare(options); }), HasSubstr("shard_tokens=7 makes"));
  EXPECT_FALSE(PathExists(options.out_dir));
}

TEST_F(PrepareTest, NullTextsAreEmptyDocuments) {
  PrepareOptions options = To("null");
  options.paths = {Source("0.jsonl")};
  options.val_fraction = 0;
  WriteText(Source("0.jsonl"),
            "{\"body\": null}\n{\"body\": \"ab\"}\n{\"body\": \"\"}\n{\"body\": null}\n");
  const Manifest manifest = Prepare(options).manifest;
  EXPECT_EQ(manifest.counts(), (DocumentCounts{.documents = 1, .empty = 3, .bytes = 2}));
  EXPECT_EQ(manifest.tokens(), 3);
}

TEST_F(PrepareTest, DocumentsOfModelsWithBosBeginWithIt) {
  RemoveTree(folder_ + "/sources");
  WriteText(Source("1.jsonl"), "{\"body\": \"ab\"}\n{\"body\": \"\"}\n{\"body\": \"c\"}\n");
  WriteLargeTexts(Source("2.txt"), Source("3.txt"), Source("4.txt"));
  for (const bool nanogpt : {false, true}) {
    PrepareOptions options = To(StrCat("bos", nanogpt));
    options.tokenizer = std::make_shared<BosTokenizer>();
    options.nanogpt = nanogpt;
    options.val_fraction = 0;
    options.shard_tokens = 1'000'000;
    const Manifest manifest = Prepare(options).manifest;
    EXPECT_EQ(manifest.options.at("begin_of_text"), "257");
    const Stream found = Together(options.out_dir, manifest, Split::kTrain, options.shard_tokens);
    EXPECT_THAT(std::vector(found.tokens.begin(), found.tokens.begin() + 7),
                ::testing::ElementsAre(257, 'a', 'b', 256, 257, 'c', 256));
    ASSERT_EQ(found.starts.size(), 5u);
    for (const uint64_t start : found.starts) {
      EXPECT_EQ(found.tokens[start], 257);
      EXPECT_TRUE(start == 0 || found.tokens[start - 1] == 256);
    }
    EXPECT_EQ(std::ranges::count(found.tokens, 256), 5);
    EXPECT_EQ(std::ranges::count(found.tokens, 257), 5);
    EXPECT_EQ(found.tokens.back(), 256);
    // Without the index the documents are the same.
    for (const ShardInfo& shard : manifest.shards) {
      RemoveTree(JoinPath(options.out_dir, IndexPathOf(shard.file)));
    }
    const Dataset dataset = OpenDataset({.path = options.out_dir + "/*.bin",
                                         .tokenizer = "",
                                         .loaded_tokenizer = options.tokenizer,
                                         .val_fraction = 0,
                                         .document_mask = true});
    std::vector<int32_t> starts(dataset.train->size());
    dataset.train->ReadDocumentStarts(0, starts);
    std::vector<int32_t> want(found.tokens.size());
    for (const uint64_t start : found.starts) want[start] = 1;
    EXPECT_EQ(starts, want);
    // Of earlier versions, which put an end of text there alone.
    Manifest earlier = manifest;
    earlier.options.erase("begin_of_text");
    WriteText(JoinPath(options.out_dir, kManifestName), earlier.ToJson());
    EXPECT_THAT(MessageOf<InputError>([&] { Prepare(options); }),
                HasSubstr("begin_of_text: (absent) -> 257"));
  }
}

TEST_F(PrepareTest, UnusableInputIsRefused) {
  const auto message = [&](const std::function<void(PrepareOptions&)>& change) {
    PrepareOptions options = To("refused");
    RemoveTree(options.out_dir);
    change(options);
    const std::string message = MessageOf<InputError>([&] { Prepare(options); });
    EXPECT_FALSE(PathExists(options.out_dir)) << message;
    return message;
  };
  EXPECT_THAT(message([](auto& o) { o.text.field = "text"; }),
              AllOf(HasSubstr("1.jsonl:1"), HasSubstr("no field \"text\"")));
  EXPECT_THAT(message([](auto& o) { o.text.max_document_bytes = 10000; }),
              HasSubstr("more than 10000 bytes"));
  EXPECT_THAT(message([](auto& o) {
                o.nanogpt = true;
                o.tokenizer = std::make_shared<TestTokenizer>(70000);
              }),
              HasSubstr("too few for the 70257"));
  EXPECT_THAT(message([](auto& o) { o.shard_tokens = 0; }), HasSubstr("only for --format=nanogpt"));
  EXPECT_THAT(message([](auto& o) {
                o.val_shard = true;
                o.shard_tokens = 10'000'000;
              }),
              HasSubstr("all tokens fit into the first shard"));
  WriteText(Source("1.jsonl"), "");
  EXPECT_THAT(message([&](auto& o) { o.paths = {Source("1.jsonl")}; }), HasSubstr("no text"));
}

TEST_F(PrepareTest, TrainsATokenizer) {
  const std::vector<std::string> files = ListTextFiles(options_.paths);
  PrepareOptions options = To("trained");
  options.tokenizer = TrainTokenizer(files, options.text, {.vocab_size = 300});
  EXPECT_EQ(options.tokenizer->vocab_size(), 300);
  EXPECT_EQ(options.tokenizer->ToJson(),
            TrainTokenizer(files, options.text, {.vocab_size = 300})->ToJson());
  const PrepareResult result = Prepare(options);
  const auto loaded = LoadTokenizer(options.out_dir);
  const Stream train = Together(options.out_dir, result.manifest, Split::kTrain, 7000);
  const std::vector<Stream> want = PlainLoop(options);
  EXPECT_EQ(train.tokens, want[0].tokens);
  const auto first = std::span(train.tokens).subspan(1, train.starts[1] - 1);
  EXPECT_EQ(loaded->Decode(first), texts_[0]);
}

TEST_F(PrepareTest, TrainedTokenizersHaveSpecialTokensAndAPatternAsAsked) {
  RemoveTree(folder_ + "/sources");
  std::string text;
  for (int i = 0; i < 500; ++i) text += "It'S <|im_start|>user 12345<|im_end|>\n";
  WriteText(Source("1.txt"), text);
  const std::vector<std::string> files = ListTextFiles(options_.paths);
  const std::vector<std::string> special = {"<|im_start|>", "<|im_end|>"};
  const auto train = [&](const std::string& pattern) {
    return TrainTokenizer(files, {},
                          {.vocab_size = 275, .special_tokens = special, .split_pattern = pattern});
  };
  std::map<std::string, int32_t> digits;  // tokens of 12345
  for (const char* pattern : {"gpt2", "llama-3", "qwen2", "gpt-4o", "tekken"}) {
    SCOPED_TRACE(pattern);
    const auto tokenizer = train(pattern);
    EXPECT_EQ(tokenizer->vocab_size(), 275);
    EXPECT_EQ(tokenizer->end_of_text(), 0);
    EXPECT_EQ(tokenizer->AddedId("<|im_start|>"), 1);
    EXPECT_EQ(tokenizer->AddedId("<|im_end|>"), 2);
    const std::vector<int32_t> ids = tokenizer->Encode(text);
    EXPECT_GT(std::ranges::min(ids), 2);
    EXPECT_EQ(tokenizer->Decode(ids), text);
    const std::vector<int32_t> all = tokenizer->EncodeWithSpecials(text);
    EXPECT_EQ(std::ranges::count(all, 1), 500);
    EXPECT_EQ(std::ranges::count(all, 2), 500);
    EXPECT_EQ(tokenizer->Decode(all), text);
    digits[pattern] = static_cast<int32_t>(tokenizer->Encode("12345").size());
    EXPECT_TRUE(EncodesInParts(*tokenizer));
  }
  // Words of any number of digits, of up to three, of one.
  EXPECT_LT(digits["gpt2"], digits["llama-3"]);
  EXPECT_LT(digits["llama-3"], 5);
  EXPECT_EQ(digits["gpt-4o"], digits["llama-3"]);
  EXPECT_EQ(digits["qwen2"], 5);
  EXPECT_EQ(digits["tekken"], 5);
  EXPECT_THAT(MessageOf<InputError>([&] { train("gpt3"); }),
              AllOf(HasSubstr("split_pattern=gpt3"), HasSubstr("llama-3")));
  for (const char* again : {"<|endoftext|>", ""}) {
    EXPECT_THAT(MessageOf<InputError>([&] {
                  TrainTokenizer(files, {}, {.vocab_size = 300, .special_tokens = {again}});
                }),
                HasSubstr("special_tokens: "));
  }
}

}  // namespace
}  // namespace lockstep::data
