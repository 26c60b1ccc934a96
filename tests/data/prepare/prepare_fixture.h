// The sources that tests of `prepare` share, and what plain loops make of them.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/io/file.h"
#include "data/prepare/prepare.h"
#include "data/tokenizer/byte_tokenizer.h"
#include "tests/data/data_test_util.h"

namespace lockstep::data {

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

// Everything in the folder: name -> bytes.
std::map<std::string, std::string> Contents(const std::string& folder);

class PrepareTest : public ::testing::Test {
 protected:
  // 90 documents in five files of all kinds, some of them empty or not well-formed.
  void SetUp() override;
  void TearDown() override { RemoveTree(folder_); }

  std::string Source(const std::string& name) {
    MakeDirectories(folder_ + "/sources");
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
    // In a sandbox other tests have the same process id.
    std::string in_memory = "/dev/shm/lockstep_prepare_test.XXXXXX";
    LS_INVARIANT(mkdtemp(in_memory.data()) != nullptr, in_memory);
    return in_memory;
  }();
  std::vector<std::string> texts_;
  PrepareOptions options_;
};

struct Stream {
  std::vector<int32_t> tokens;
  std::vector<uint64_t> starts;  // of documents
};

// What a plain loop makes of the documents, one after the other: for training and for validation.
std::vector<Stream> PlainLoop(const PrepareOptions& options);

// The files of one split, put together again. Checks each against the manifest and its index.
Stream Together(const std::string& folder, const Manifest& manifest, Split split,
                int64_t shard_tokens);

// Runs Prepare in a child process that dies at an operation; returns whether it finished.
bool Survives(const std::string& plan, const PrepareOptions& options);

// Kills Prepare as soon as the folder has `count` finished shards.
void KillAfterShards(size_t count, const PrepareOptions& options);

// Two large files with a short one between them, each one document.
void WriteLargeTexts(const std::string& first, const std::string& second, const std::string& third);

}  // namespace lockstep::data
