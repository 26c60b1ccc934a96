#include "tests/data/prepare/prepare_fixture.h"

#include <sys/wait.h>

#include <array>
#include <cmath>
#include <random>

#include "core/io/fault.h"
#include "core/io/sha256.h"
#include "data/document_index.h"
#include "data/text/text_files.h"
#include "data/token_file.h"
#include "tests/data/compressed_files.h"

namespace lockstep::data {

std::map<std::string, std::string> Contents(const std::string& folder) {
  std::map<std::string, std::string> contents;
  for (const std::string& name : ListDirectory(folder)) {
    contents[name] = ReadFile(JoinPath(folder, name));
  }
  return contents;
}

void PrepareTest::SetUp() {
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

void KillAfterShards(size_t count, const PrepareOptions& options) {
  for (int at = 5;; at += 5) {
    RemoveTree(options.out_dir);
    ASSERT_FALSE(Survives(StrCat("kill@", at), options));
    const auto manifest = ReadManifest(options.out_dir);
    if (manifest && manifest->shards.size() == count) return;
  }
}

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

}  // namespace lockstep::data
