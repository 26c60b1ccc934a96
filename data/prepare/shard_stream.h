// One stream of tokens, cut into token files of equal size with an index beside each.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "core/io/file.h"
#include "data/prepare/manifest.h"
#include "data/token_file.h"

namespace lockstep::data {

// A document, or a piece of one.
struct EncodedDocument {
  TextPosition at;
  int64_t document = 0;  // its number among all documents
  bool last = true;      // no other piece of the document follows
  int64_t tokens = 0;    // with the end-of-text token where the format has it
  int64_t bytes = 0, bad_utf8 = 0;
};

class ShardStream {
 public:
  struct Options {
    std::string folder;
    TokenFormat format = TokenFormat::kLlmcGpt2;
    int64_t shard_tokens = 0;  // 0: all tokens in one file
    // The file's name and split of the stream's shard `number`, from 0 on.
    std::function<std::pair<std::string, Split>(int64_t number)> name;
    // Called with each finished shard, when next() is where the stream goes on after it.
    std::function<void(ShardInfo)> on_finished;
  };

  // Goes on after `finished` shards, at `next`.
  ShardStream(Options options, int64_t finished, ShardStart next);

  // Appends a document of the stream, or a piece of one, in their order. What lies before next() is
  // skipped.
  void Add(const EncodedDocument& document, std::span<const int32_t> tokens);
  // Finishes the last shard, if one has been begun.
  void Finish(const ShardStart& end);

  const ShardStart& next() const { return next_; }
  // The counts of the unfinished shard so far; of empty documents, those since the last shard.
  const DocumentCounts& open_counts() const { return counts_; }
  int64_t open_tokens() const { return tokens_ ? tokens_->size() : 0; }

 private:
  void Begin();
  void FinishShard(const ShardStart& next);

  const Options options_;
  int64_t number_;  // of the open shard, or of the next one
  ShardStart next_;
  std::optional<TokenFileWriter> tokens_;  // none between shards
  std::optional<FileWriter> index_;
  DocumentCounts counts_;
  int64_t counted_ = -1;  // the document whose bytes an earlier shard has counted as a whole
};

}  // namespace lockstep::data
