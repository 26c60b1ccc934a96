#include "data/prepare/prepare.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <random>

#include "core/error.h"
#include "core/io/fault.h"
#include "core/io/file.h"
#include "core/io/file_lock.h"
#include "core/io/sha256.h"
#include "data/dataset.h"
#include "data/document_index.h"
#include "data/prepare/train_tokenizer.h"
#include "data/text/text_files.h"
#include "data/text/text_parts.h"
#include "data/token_file.h"
#include "data/tokenizer/byte_tokenizer.h"
#include "tests/data/compressed_files.h"
#include "tests/data/data_test_util.h"
#include "tests/sanitized.h"

namespace lockstep::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Bytes from `first` on, and an end-of-text token. Not by name a byte tokenizer: its text is UTF-8.
class TestTokenizer : public ByteTokenizer {
 public:
  explicit TestTokenizer(int32_t first = 0) : first_(first) {}
  std::string_view name() const override { return "test"; }
  std::string ToJson() const override { return ByteTokenizer().ToJson(); }
  std::vector<int32_t> Encode(std::string_view text) const override {
    std::vector<int32_t> ids = ByteTokenizer::Encode(text);
    for (int32_t& id : ids) id += first_;
    return ids;
  }
  int64_t vocab_size() const override { return first_ + 257; }
  std::optional<int32_t> end_of_text() const override { return first_ + 256; }

 private:
  int32_t first_;
};

// One that puts a bos before each text, as Llama's do.
class BosTokenizer : public TestTokenizer {
 public:
  int64_t vocab_size() const override { return 258; }
  SpecialIds special_ids() const override {
    return {.bos = 257, .eos = 256, .pad = {}, .unk = {}, .before = {257}, .after = {}};
  }
};

std::string Bytes(const std::string& path) { return ReadFile(path); }

// Everything in the folder: name -> bytes.
std::map<std::string, std::string> Contents(const std::string& folder) {
  std::map<std::string, std::string> contents;
  for (const std::string& name : ListDirectory(folder)) {
    contents[name] = Bytes(JoinPath(folder, name));
  }
  return contents;
}

class PrepareTest : public ::testing::Test {
 protected:
  // 90 documents in five files of all kinds, some of them empty or not well-formed.
  void SetUp() override {
    std::mt19937 random(11);
    std::string lines[3];
    for (int i = 0; i < 90; ++i) {
      std::string text;
      const size_t size = i % 13 == 4 ? 0 : i == 50 ? 20000 : random() % 700;
      while (text.size() < size) text += std::array{"é", " ", "x", "the "}[random() % 4];
      if (i == 20) text += "\xff";
      if (i == 32 || i == 33) {
        WriteText(Source(i == 32 ? "1a.txt" : "1b.txt.gz"), i == 32 ? text : GzipOf(text));
      } else {
        lines[i / 30] += StrCat("{\"id\": ", i, ", \"body\": \"", text, "\"}\n");
      }
      texts_.push_back(text);
    }
    WriteText(Source("1.jsonl"), lines[0]);
    WriteText(Source("2.jsonl.gz"), GzipOf(lines[1]));
    WriteText(Source("3.jsonl.zst"), ZstdOf(lines[2]));
    options_.paths = {folder_ + "/sources"};
    options_.text.field = "body";
    options_.tokenizer = std::make_shared<TestTokenizer>();
    options_.shard_tokens = 7000;
    options_.val_fraction = 0.15;
    options_.threads = 2;
  }

  void TearDown() override { RemoveTree(folder_); }

  std::string Source(const std::string& name) {
    std::filesystem::create_directories(folder_ + "/sources");
    return folder_ + "/sources/" + name;
  }
  std::string Out(const std::string& name) const { return folder_ + "/" + name; }
  PrepareOptions To(const std::string& name) const {
    PrepareOptions options = options_;
    options.out_dir = Out(name);
    return options;
  }

  // In memory where possible: these tests wait for the disk hundreds of times.
  const std::string folder_ = [] {
    const std::string folder = TestFolder();
    if (access("/dev/shm", W_OK) != 0) return folder;
    RemoveTree(folder);
    std::string in_memory = StrCat("/dev/shm/lockstep_prepare_test.", getpid());
    RemoveTree(in_memory);
    MakeDirectories(in_memory);
    return in_memory;
  }();
  std::vector<std::string> texts_;
  PrepareOptions options_;
};

// What a plain loop makes of the documents, one after the other.
struct Stream {
  std::vector<int32_t> tokens;
  std::vector<uint64_t> starts;
};

std::vector<Stream> PlainLoop(const PrepareOptions& options) {
  std::vector<Stream> streams(2);
  const std::vector<std::string> files = ListTextFiles(options.paths);
  DocumentReader reader(files, options.text);
  int64_t number = 0;
  double owed = 0;
  for (RawDocument raw; reader.Next(&raw); ++number) {
    const std::string text = TextOf(raw, files, options.text).text;
    const bool val = !options.val_shard && std::floor((number + 1) * options.val_fraction) > owed;
    if (val) owed += 1;
    if (text.empty()) continue;
    Stream& stream = streams[val];
    stream.starts.push_back(stream.tokens.size());
    const std::vector<int32_t> ids = options.tokenizer->Encode(text);
    if (!options.nanogpt) stream.tokens.push_back(*options.tokenizer->end_of_text());
    stream.tokens.insert(stream.tokens.end(), ids.begin(), ids.end());
    if (options.nanogpt) stream.tokens.push_back(*options.tokenizer->end_of_text());
  }
  return streams;
}

// The files of one split, put together again. Checks each against the manifest and its index.
Stream Together(const std::string& folder, const Manifest& manifest, Split split,
                int64_t shard_tokens) {
  Stream stream;
  std::vector<int64_t> sizes;
  for (const ShardInfo& shard : manifest.shards) {
    if (shard.split != split) continue;
    const std::string path = JoinPath(folder, shard.file);
    const TokenFile file(path, manifest.vocab_size);
    const DocumentIndex index(IndexPathOf(path), file.size());
    EXPECT_EQ(shard.tokens, file.size());
    EXPECT_EQ(shard.counts.documents, static_cast<int64_t>(index.starts().size()));
    EXPECT_EQ(shard.sha256, Sha256OfFile(path));
    EXPECT_EQ(shard.index_sha256, Sha256OfFile(IndexPathOf(path)));
    EXPECT_EQ(SplitOfFileName(shard.file), split);
    for (const uint64_t start : index.starts()) {
      stream.starts.push_back(start + stream.tokens.size());
    }
    const std::vector<int32_t> tokens = All(file);
    stream.tokens.insert(stream.tokens.end(), tokens.begin(), tokens.end());
    sizes.push_back(file.size());
  }
  for (size_t i = 0; shard_tokens > 0 && i + 1 < sizes.size(); ++i) {
    EXPECT_EQ(sizes[i], shard_tokens);
  }
  return stream;
}

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

// Runs Prepare in a child process that dies at an operation; returns whether it finished.
bool Survives(const std::string& plan, const PrepareOptions& options) {
  const pid_t child = fork();
  if (child == 0) {
    FaultInjector injector(FaultPlan::Parse(plan));
    const ScopedFaultInjector scope(&injector);
    Prepare(options);
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE((WIFEXITED(status) && WEXITSTATUS(status) == 0) ||
              (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL))
      << plan;
  return WIFEXITED(status);
}

TEST_F(PrepareTest, KilledAnywhereItGivesTheSameBytes) {
  const PrepareOptions whole = To("whole");
  ASSERT_GE(Prepare(whole).manifest.shards.size(), 5u);
  const auto want = Contents(whole.out_dir);
  const PrepareOptions options = To("killed");
  int operations = 0;
  for (const char* action : {"kill@", "tear@"}) {
    bool done = false;
    for (int at = 1; !done; ++at, ++operations) {
      RemoveTree(options.out_dir);
      done = Survives(StrCat(action, at), options);
      Prepare(options);
      ASSERT_EQ(Contents(options.out_dir), want) << action << at;
    }
  }
  EXPECT_GT(operations, 100);
  // Again and again: each attempt must get a little further.
  RemoveTree(options.out_dir);
  int attempts = 0;
  while (!Survives("kill@25", options)) ASSERT_LT(++attempts, 50);
  EXPECT_GT(attempts, 2);
  EXPECT_EQ(Contents(options.out_dir), want);
}

// Two large files with a short one between them, each one document.
void WriteLargeTexts(const std::string& first, const std::string& second,
                     const std::string& third) {
  std::mt19937 random(5);
  std::string text;
  while (text.size() < 1'500'000) text += std::array{"é", " ", "word ", ".\n", "the"}[random() % 5];
  WriteText(first, text);
  WriteText(second, "short");
  for (size_t i = 1 << 18; i < text.size(); i += 1000) text[i] = '\xff';
  WriteText(third, text);
}

TEST_F(PrepareTest, LargeFilesAreEncodedInPieces) {
  RemoveTree(folder_ + "/sources");
  WriteLargeTexts(Source("1.txt"), Source("2.txt"), Source("3.txt"));
  for (const bool nanogpt : {false, true}) {
    for (const double val_fraction : {0.0, 0.4}) {  // 0.4: the third is for validation
      SCOPED_TRACE(StrCat(nanogpt, " ", val_fraction));
      PrepareOptions options = To(StrCat("whole", nanogpt, val_fraction > 0));
      options.nanogpt = nanogpt;
      options.val_fraction = val_fraction;
      options.shard_tokens = 200'000;
      const Manifest manifest = Prepare(options).manifest;
      const auto want = Contents(options.out_dir);
      const std::vector<Stream> streams = PlainLoop(options);
      for (const Split split : {Split::kTrain, Split::kVal}) {
        const Stream& plain = streams[split == Split::kVal];
        const Stream found = Together(options.out_dir, manifest, split, options.shard_tokens);
        EXPECT_EQ(found.tokens, plain.tokens);
        EXPECT_EQ(found.starts, plain.starts);
      }
      EXPECT_EQ(manifest.counts().documents, 3);
      EXPECT_EQ(manifest.counts().empty, 0);
      EXPECT_GT(manifest.counts().bad_utf8, 1000);
      const PrepareOptions killed = [&] {
        PrepareOptions o = options;
        o.out_dir = Out("killed");
        return o;
      }();
      bool done = false;
      for (int at = 20; !done; at += 29) {
        RemoveTree(killed.out_dir);
        done = Survives(StrCat("kill@", at), killed);
        Prepare(killed);
        ASSERT_EQ(Contents(killed.out_dir), want) << at;
      }
    }
  }
}

TEST_F(PrepareTest, FoldersBegunWithWholeFilesAreGoneOnWith) {
  RemoveTree(folder_ + "/sources");
  WriteLargeTexts(Source("1.txt"), Source("2.txt"), Source("3.txt"));
  PrepareOptions options = To("begun");
  options.val_fraction = 0;
  options.shard_tokens = 1'200'000;
  const Manifest whole = Prepare(options).manifest;
  const auto want = Contents(options.out_dir);
  ASSERT_GE(whole.shards.size(), 3u);
  // What a version without pieces has written after its first shard, in the first document.
  Manifest begun = whole;
  begun.shards.resize(1);
  begun.shards[0].counts.bytes = FileSize(Source("1.txt"));  // all of the document
  begun.next = {{.at = {0, 0}, .document = 0, .token = 1'200'000}};
  for (size_t i = 1; i < whole.shards.size(); ++i) {
    RemoveTree(JoinPath(options.out_dir, whole.shards[i].file));
    RemoveTree(JoinPath(options.out_dir, IndexPathOf(whole.shards[i].file)));
  }
  EXPECT_THAT(begun.ToJson(), Not(HasSubstr("piece")));
  WriteText(JoinPath(options.out_dir, kManifestName), begun.ToJson());
  const PrepareResult result = Prepare(options);
  EXPECT_FALSE(result.was_complete);
  auto contents = Contents(options.out_dir);
  contents[kManifestName] = want.at(kManifestName);  // its shards have other counts
  EXPECT_EQ(contents, want);
  EXPECT_EQ(result.manifest.counts().bytes, whole.counts().bytes);
  EXPECT_EQ(result.manifest.counts().bad_utf8, whole.counts().bad_utf8);
  EXPECT_EQ(result.manifest.counts().documents, 3);
}

TEST_F(PrepareTest, ALargeFileTakesBoundedMemory) {
  RemoveTree(folder_ + "/sources");
  const std::string folder = TestFolder();  // on disk: this one is large
  const std::string file = folder + "/large.txt";
  {
    FileWriter writer(file, {});
    std::string block;
    while (block.size() < (1 << 20)) block += "A line of some words.\n";
    for (int i = 0; i < 192; ++i) writer.Write(std::as_bytes(std::span(block)));
    writer.Close();
  }
  PrepareOptions options = To("large");
  options.paths = {file};
  options.out_dir = folder + "/out";
  options.shard_tokens = 100'000'000;
  options.val_fraction = 0;
  ASSERT_GT(FileSize(file), options.text.max_document_bytes);
  const int64_t growth = GrowthKib([&] { Prepare(options); });
  EXPECT_GT(growth, 0);
  if (!test::kSanitized) {
    EXPECT_LT(growth, 128 << 10);
  }
  const Manifest manifest = *ReadManifest(options.out_dir);
  EXPECT_EQ(manifest.tokens(), FileSize(file) + 1);
  EXPECT_EQ(manifest.counts().documents, 1);
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

TEST_F(PrepareTest, OtherConfigurationsInTheSameFolderAreRefused) {
  const PrepareOptions options = To("out");
  Prepare(options);
  const auto before = Contents(options.out_dir);
  const auto message = [&](const std::function<void(PrepareOptions&)>& change) {
    PrepareOptions changed = options;
    change(changed);
    return MessageOf<InputError>([&] { Prepare(changed); });
  };
  EXPECT_THAT(message([](auto& o) { o.shard_tokens = 8000; }),
              HasSubstr("shard_tokens: 7000 -> 8000"));
  EXPECT_THAT(message([](auto& o) { o.val_fraction = 0.2; }),
              HasSubstr("val_fraction: 0.15 -> 0.2"));
  EXPECT_THAT(message([](auto& o) { o.nanogpt = true; }),
              HasSubstr("format: llm.c (GPT-2) -> nanoGPT"));
  EXPECT_THAT(message([](auto& o) { o.tokenizer = std::make_shared<ByteTokenizer>(); }),
              AllOf(HasSubstr("vocabulary: 257 -> 256"), HasSubstr("another --out_dir")));
  EXPECT_THAT(message([&](auto& o) { o.paths = {Source("1.jsonl")}; }),
              HasSubstr("number of source files: 5 -> 1"));
  WriteText(Source("1a.txt"), "changed");
  EXPECT_THAT(message([](auto&) {}), HasSubstr("bytes of "));
  EXPECT_EQ(Contents(options.out_dir), before);
  RemoveTree(JoinPath(options.out_dir, kManifestName));
  EXPECT_THAT(message([](auto&) {}), HasSubstr("but no manifest.json"));
  const PrepareOptions locked = To("locked");
  MakeDirectories(locked.out_dir);
  const FileLock lock(JoinPath(locked.out_dir, ".lock"), "", std::chrono::milliseconds(0));
  EXPECT_THAT(MessageOf<InputError>([&] { Prepare(locked); }), HasSubstr("another process"));
}

// Kills Prepare as soon as the folder has `count` finished shards.
void KillAfterShards(size_t count, const PrepareOptions& options) {
  for (int at = 5;; at += 5) {
    RemoveTree(options.out_dir);
    ASSERT_FALSE(Survives(StrCat("kill@", at), options));
    const auto manifest = ReadManifest(options.out_dir);
    if (manifest && manifest->shards.size() == count) return;
  }
}

TEST_F(PrepareTest, AnEditedSourceOfTheSameSizeIsRefused) {
  const PrepareOptions whole = To("whole"), begun = To("begun");
  Prepare(whole);
  KillAfterShards(2, begun);
  const std::string source = Source("1.jsonl"), text = Bytes(source);
  const auto modified = std::filesystem::last_write_time(source);
  std::string edited = text;
  std::ranges::replace(edited, 'x', 'y');
  ASSERT_NE(edited, text);
  WriteText(source, edited);
  for (const PrepareOptions& options : {whole, begun}) {
    const auto before = Contents(options.out_dir);
    EXPECT_THAT(MessageOf<InputError>([&] { Prepare(options); }),
                AllOf(HasSubstr("SHA-256 of " + source), Not(HasSubstr("touch")),
                      HasSubstr("another --out_dir")));
    EXPECT_EQ(Contents(options.out_dir), before);
  }
  // As it was.
  WriteText(source, text);
  std::filesystem::last_write_time(source, modified);
  EXPECT_TRUE(Prepare(whole).was_complete);
  Prepare(begun);
  EXPECT_EQ(Contents(begun.out_dir), Contents(whole.out_dir));
  // Manifests of earlier versions have no times.
  Manifest earlier = *ReadManifest(whole.out_dir);
  for (SourceFile& file : earlier.sources) file.modified_ns = 0;
  EXPECT_THAT(earlier.ToJson(), Not(HasSubstr("modified")));
  WriteText(JoinPath(whole.out_dir, kManifestName), earlier.ToJson());
  WriteText(source, text);
  EXPECT_TRUE(Prepare(whole).was_complete);
}

TEST_F(PrepareTest, ASourceThatWasOnlyTouchedIsTheSame) {
  const PrepareOptions whole = To("whole"), begun = To("begun");
  Prepare(whole);
  KillAfterShards(4, begun);
  Manifest manifest = *ReadManifest(begun.out_dir);
  ASSERT_FALSE(manifest.complete());
  std::vector<SourceFile>& sources = manifest.sources;
  ASSERT_FALSE(sources.front().sha256.empty());
  // As if the last one had not been read to its end.
  sources.back().sha256.clear();
  WriteText(JoinPath(begun.out_dir, kManifestName), manifest.ToJson());
  const auto touch = [](const std::string& path) {
    const auto time = std::filesystem::last_write_time(path);
    std::filesystem::last_write_time(path, time + std::chrono::seconds(100));
    return time;
  };
  const auto last_time = touch(sources.back().path);
  EXPECT_THAT(MessageOf<InputError>([&] { Prepare(begun); }),
              AllOf(HasSubstr("modification time of " + sources.back().path),
                    HasSubstr("touch -d @"), Not(HasSubstr(sources.front().path))));
  std::filesystem::last_write_time(sources.back().path, last_time);
  touch(sources.front().path);
  EXPECT_TRUE(Prepare(whole).was_complete);
  Prepare(begun);
  const PrepareOptions again = To("again");
  Prepare(again);
  EXPECT_EQ(Contents(begun.out_dir), Contents(again.out_dir));
}

TEST_F(PrepareTest, AFolderAmongItsSourcesIsNoSource) {
  PrepareOptions options = options_;
  options.out_dir = Source("tokens");
  EXPECT_EQ(Prepare(options).manifest.sources.size(), 5u);
  EXPECT_TRUE(Prepare(options).was_complete);
}

// Prepare with the text as standard input.
PrepareResult PrepareInput(const PrepareOptions& options, const std::string& text) {
  const std::string file = options.out_dir + ".input";
  WriteText(file, text);
  const int saved = dup(STDIN_FILENO), fd = open(file.c_str(), O_RDONLY);
  dup2(fd, STDIN_FILENO);
  close(fd);
  const auto restore = [&] {
    dup2(saved, STDIN_FILENO);
    close(saved);
  };
  try {
    PrepareResult result = Prepare(options);
    restore();
    return result;
  } catch (...) {
    restore();
    throw;
  }
}

TEST_F(PrepareTest, StandardInputIsCompared) {
  PrepareOptions options = To("input");
  options.paths = {"-"};
  options.text.unit = DocumentUnit::kLine;
  options.shard_tokens = 30;
  options.val_fraction = 0;
  const std::string text = "one line\nanother line\na third line, which is longer\n";
  EXPECT_FALSE(PrepareInput(options, text).was_complete);
  EXPECT_TRUE(PrepareInput(options, text).was_complete);
  const auto before = Contents(options.out_dir);
  for (const std::string& other : {"0" + text.substr(1), text + "more\n", std::string()}) {
    EXPECT_THAT(MessageOf<InputError>([&] { PrepareInput(options, other); }),
                AllOf(HasSubstr("standard input"), HasSubstr("another --out_dir")));
  }
  EXPECT_EQ(Contents(options.out_dir), before);
  // What a killed call has read can't be compared with what comes now.
  Manifest begun = *ReadManifest(options.out_dir);
  begun.sources = {{"-", 0, ""}};
  begun.shards.resize(1);
  begun.next = {{.at = {0, 2}, .document = 2, .token = 8}};
  WriteText(JoinPath(options.out_dir, kManifestName), begun.ToJson());
  EXPECT_THAT(MessageOf<InputError>([&] { PrepareInput(options, text); }),
              AllOf(HasSubstr("standard input"), HasSubstr("file")));
}

TEST_F(PrepareTest, WithoutShardsItStartsAgainWithOtherOptions) {
  PrepareOptions options = To("again");
  options.paths = {Source("1a.txt")};
  options.val_fraction = 0;
  const std::string text = std::string(200'000, 'a') + "\n\n" + std::string(200'000, 'b');
  WriteText(Source("1a.txt"), text);
  options.text.max_document_bytes = 250'000;  // fewer than those of a piece, and these suffice
  EXPECT_EQ(Prepare(options).manifest.tokens(), std::ssize(text) + 1);
  RemoveTree(options.out_dir);
  WriteText(Source("1a.txt"), std::string(300'000, 'a') + "\n\n" + std::string(200'000, 'b'));
  options.text.max_document_bytes = 20'000;
  EXPECT_THAT(MessageOf<InputError>([&] { Prepare(options); }),
              AllOf(HasSubstr("no place to cut it"), HasSubstr("paragraph")));
  ASSERT_TRUE(PathExists(JoinPath(options.out_dir, kManifestName)));
  options.text.unit = DocumentUnit::kParagraph;
  options.text.max_document_bytes = 300'000;
  options.tokenizer = std::make_shared<ByteTokenizer>();
  EXPECT_EQ(Prepare(options).manifest.counts().documents, 2);
  EXPECT_EQ(LoadTokenizer(options.out_dir)->vocab_size(), 256);
  // A token file that the manifest does not list may be anybody's.
  options.out_dir = Out("strange");
  options.text.unit = DocumentUnit::kFile;
  options.text.max_document_bytes = 20'000;
  EXPECT_THAT(MessageOf<InputError>([&] { Prepare(options); }), HasSubstr("paragraph"));
  WriteText(JoinPath(options.out_dir, "other.bin"), "");
  options.text.unit = DocumentUnit::kParagraph;
  EXPECT_THAT(MessageOf<InputError>([&] { Prepare(options); }), HasSubstr("other.bin"));
}

TEST_F(PrepareTest, AFinishedFolderIsVerified) {
  const PrepareOptions options = To("verified");
  const Manifest manifest = Prepare(options).manifest;
  const std::string shard = JoinPath(options.out_dir, manifest.shards[1].file);
  for (const std::string& file : {shard, IndexPathOf(shard)}) {
    const std::string bytes = Bytes(file);
    std::string damaged = bytes;
    damaged.back() ^= 1;
    WriteText(file, damaged);
    EXPECT_THAT(MessageOf<InputError>([&] { Prepare(options); }),
                AllOf(HasSubstr(file + " has changed"), HasSubstr("prepare again")));
    WriteText(file, bytes);
  }
  EXPECT_TRUE(Prepare(options).was_complete);
}

TEST_F(PrepareTest, UnusableInputIsRefused) {
  const auto message = [&](const std::function<void(PrepareOptions&)>& change) {
    PrepareOptions options = To("refused");
    RemoveTree(options.out_dir);
    change(options);
    return MessageOf<InputError>([&] { Prepare(options); });
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
