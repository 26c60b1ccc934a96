// `prepare` that was killed, and folders that it finds.
#include <fcntl.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/io/file_lock.h"
#include "core/io/sha256.h"
#include "data/document_index.h"
#include "tests/data/prepare/prepare_fixture.h"

namespace lockstep::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using PrepareResumeTest = PrepareTest;

TEST_F(PrepareResumeTest, KilledAnywhereItGivesTheSameBytes) {
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

TEST_F(PrepareResumeTest, OtherConfigurationsInTheSameFolderAreRefused) {
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

TEST_F(PrepareResumeTest, AnEditedSourceOfTheSameSizeIsRefused) {
  const PrepareOptions whole = To("whole"), begun = To("begun");
  Prepare(whole);
  KillAfterShards(2, begun);
  const std::string source = Source("1.jsonl"), text = ReadFile(source);
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

// Returns when the file had been changed before.
std::filesystem::file_time_type Touch(const std::string& path) {
  const auto time = std::filesystem::last_write_time(path);
  std::filesystem::last_write_time(path, time + std::chrono::seconds(100));
  return time;
}

TEST_F(PrepareResumeTest, ASourceThatWasOnlyTouchedIsTheSame) {
  const PrepareOptions whole = To("whole"), begun = To("begun");
  Prepare(whole);
  KillAfterShards(4, begun);
  ASSERT_FALSE(ReadManifest(begun.out_dir)->sources.front().sha256.empty());
  Touch(Source("1.jsonl"));
  EXPECT_TRUE(Prepare(whole).was_complete);
  Prepare(begun);
  const PrepareOptions again = To("again");
  Prepare(again);
  EXPECT_EQ(Contents(begun.out_dir), Contents(again.out_dir));
}

TEST_F(PrepareResumeTest, APartlyReadSourceIsToldByTheHashOfThePart) {
  RemoveTree(folder_ + "/sources");
  const std::string first = Source("1.txt"), second = Source("2.txt"), third = Source("3.txt");
  WriteLargeTexts(first, second, third);
  PrepareOptions options = To("begun");
  options.shard_tokens = 300'000;
  options.val_fraction = 0;
  KillAfterShards(2, options);
  const auto begun = Contents(options.out_dir);
  const SourceFile source = ReadManifest(options.out_dir)->sources.front();
  const std::string text = ReadFile(first);
  EXPECT_EQ(source.sha256, "");
  EXPECT_GE(source.read_bytes, 2 * options.shard_tokens - 1);
  ASSERT_LT(source.read_bytes, std::ssize(text));
  EXPECT_EQ(source.read_sha256, Sha256Of(text.substr(0, source.read_bytes)));
  // Edited in that part.
  std::string edited = text;
  edited[100'000] = 'E';
  WriteText(first, edited);
  const auto edited_at = Touch(first);
  EXPECT_THAT(MessageOf<InputError>([&] { Prepare(options); }),
              AllOf(HasSubstr(StrCat("SHA-256 of the first ", source.read_bytes, " bytes of ",
                                     first, ": ", source.read_sha256.substr(0, 12))),
                    Not(HasSubstr("touch")), HasSubstr("another --out_dir")));
  EXPECT_EQ(Contents(options.out_dir), begun);
  // An earlier version did not know the part.
  Manifest earlier = *ReadManifest(options.out_dir);
  earlier.sources.front().read_bytes = 0;
  WriteText(JoinPath(options.out_dir, kManifestName), earlier.ToJson());
  EXPECT_THAT(MessageOf<InputError>([&] { Prepare(options); }),
              AllOf(HasSubstr("modification time of " + first), HasSubstr("touch -d @"),
                    Not(HasSubstr(second))));
  WriteText(JoinPath(options.out_dir, kManifestName), begun.at(kManifestName));
  // What was not read may be new.
  edited = text;
  edited.back() = 'E';
  WriteText(first, edited);
  std::filesystem::last_write_time(first, edited_at);
  Touch(second);
  EXPECT_FALSE(Prepare(options).was_complete);
  PrepareOptions again = options;
  again.out_dir = Out("again");
  Prepare(again);
  EXPECT_EQ(Contents(options.out_dir), Contents(again.out_dir));
}

TEST_F(PrepareResumeTest, AFolderAmongItsSourcesIsNoSource) {
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

TEST_F(PrepareResumeTest, StandardInputIsCompared) {
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

TEST_F(PrepareResumeTest, WithoutShardsItStartsAgainWithOtherOptions) {
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
  EXPECT_FALSE(PathExists(options.out_dir));
  EXPECT_FALSE(Survives("kill@13", options));
  ASSERT_TRUE(PathExists(JoinPath(options.out_dir, kManifestName)));
  options.text.unit = DocumentUnit::kParagraph;
  options.text.max_document_bytes = 300'000;
  options.tokenizer = std::make_shared<ByteTokenizer>();
  EXPECT_EQ(Prepare(options).manifest.counts().documents, 2);
  EXPECT_EQ(LoadTokenizer(options.out_dir)->vocab_size(), 256);
  // A token file that the manifest does not list may be anybody's.
  options.out_dir = Out("strange");
  MakeDirectories(options.out_dir);
  WriteText(JoinPath(options.out_dir, "other.bin"), "");
  EXPECT_THAT(MessageOf<InputError>([&] { Prepare(options); }), HasSubstr("other.bin"));
}

TEST_F(PrepareResumeTest, ARefusedCallLeavesWhatWasThere) {
  PrepareOptions refused = To("a/b/c");
  refused.text.field = "no_such_field";
  EXPECT_THROW(Prepare(refused), InputError);
  EXPECT_FALSE(PathExists(Out("a")));
  // In a folder with files of its user, even of these names.
  MakeDirectories(Out("a/b"));
  WriteText(Out("a/b/notes"), "mine");
  EXPECT_THROW(Prepare(refused), InputError);
  EXPECT_EQ(ListDirectory(Out("a/b")), std::vector<std::string>{"notes"});
  MakeDirectories(refused.out_dir);
  WriteText(refused.out_dir + "/tokenizer.json", "{}");
  EXPECT_THROW(Prepare(refused), InputError);
  EXPECT_THAT(ListDirectory(refused.out_dir),
              ::testing::UnorderedElementsAre(".lock", "tokenizer.json"));
  // What a killed call had begun without a shard.
  refused.out_dir = Out("begun");
  EXPECT_FALSE(Survives("kill@13", To("begun")));
  ASSERT_TRUE(PathExists(JoinPath(refused.out_dir, kManifestName)));
  EXPECT_THROW(Prepare(refused), InputError);
  EXPECT_EQ(ListDirectory(refused.out_dir), std::vector<std::string>{".lock"});
  // Shards that are finished stay, whoever is refused then.
  const PrepareOptions options = To("shards");
  KillAfterShards(2, options);
  const auto before = Contents(options.out_dir);
  refused.out_dir = options.out_dir;
  EXPECT_THROW(Prepare(refused), InputError);
  EXPECT_EQ(Contents(options.out_dir), before);
  const std::string source = Source("3.jsonl.zst"), bytes = ReadFile(source);
  const auto modified = std::filesystem::last_write_time(source);
  WriteText(source, std::string(bytes.size(), '?'));
  std::filesystem::last_write_time(source, modified);
  EXPECT_THROW(Prepare(options), InputError);
  EXPECT_EQ(ReadManifest(options.out_dir)->shards.size(), 2u);
  WriteText(source, bytes);
  std::filesystem::last_write_time(source, modified);
  EXPECT_FALSE(Prepare(options).was_complete);
}

TEST_F(PrepareResumeTest, AFinishedFolderIsVerified) {
  const PrepareOptions options = To("verified");
  const Manifest manifest = Prepare(options).manifest;
  const std::string shard = JoinPath(options.out_dir, manifest.shards[1].file);
  for (const std::string& file : {shard, IndexPathOf(shard)}) {
    const std::string bytes = ReadFile(file);
    std::string damaged = bytes;
    damaged.back() ^= 1;
    WriteText(file, damaged);
    EXPECT_THAT(MessageOf<InputError>([&] { Prepare(options); }),
                AllOf(HasSubstr(file + " has changed"), HasSubstr("prepare again")));
    WriteText(file, bytes);
  }
  EXPECT_TRUE(Prepare(options).was_complete);
}

}  // namespace
}  // namespace lockstep::data
