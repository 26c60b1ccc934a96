#include "data/prepare/shard_stream.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "data/document_index.h"

namespace lockstep::data {
namespace {

// What follows a document, or a piece.
ShardStart Behind(const EncodedDocument& document, int64_t token) {
  const auto& [file, record, piece] = document.at;
  if (document.last) return {{file, record + 1}, document.document + 1, token};
  return {{file, record, piece + 1}, document.document, token};
}

}  // namespace

ShardStream::ShardStream(Options options, int64_t finished, ShardStart next)
    : options_(std::move(options)), number_(finished), next_(next) {}

void ShardStream::Begin() {
  const std::string path = JoinPath(options_.folder, options_.name(number_).first);
  tokens_.emplace(path, options_.format, options_.shard_tokens);
  index_.emplace(TemporaryName(IndexPathOf(path)), FileWriterOptions{.sha256 = true});
}

void ShardStream::Add(const EncodedDocument& document, std::span<const int32_t> tokens) {
  if (document.at < next_.at) return;
  if (tokens.empty()) {
    counts_.empty += document.at.piece == 0;
    return;
  }
  std::span<const int32_t> rest = tokens;
  if (document.at == next_.at) {
    const auto passed = std::min(next_.token, document.tokens);
    rest = rest.subspan(passed);
    // Earlier versions had no pieces: in their folders tokens are counted from the document's start
    // on, and its bytes have been counted there.
    if (rest.empty()) {
      next_ = Behind(document, next_.token - passed);
      counted_ = document.document;
    }
  }
  const bool begins = rest.size() == tokens.size();
  while (!rest.empty()) {
    if (!tokens_) Begin();
    if (begins && rest.size() == tokens.size()) {
      const bool starts = document.at.piece == 0;
      if (starts) {
        const uint64_t start = tokens_->size();
        index_->Write(std::as_bytes(std::span(&start, 1)));
      }
      counts_.documents += starts;
      if (document.document != counted_) {
        counts_ += {.bytes = document.bytes, .bad_utf8 = document.bad_utf8};
      }
    }
    const size_t space = options_.shard_tokens == 0
                             ? rest.size()
                             : static_cast<size_t>(options_.shard_tokens - tokens_->size());
    const size_t n = std::min(space, rest.size());
    tokens_->Write(rest.first(n));
    rest = rest.subspan(n);
    if (tokens_->size() == options_.shard_tokens) {
      const auto written = static_cast<int64_t>(tokens.size() - rest.size());
      FinishShard(rest.empty() ? Behind(document, 0)
                               : ShardStart{document.at, document.document, written});
    }
  }
}

void ShardStream::FinishShard(const ShardStart& next) {
  const auto [file, split] = options_.name(number_);
  ShardInfo shard;
  shard.file = file;
  shard.split = split;
  shard.tokens = tokens_->size();
  shard.counts = counts_;
  shard.sha256 = tokens_->Finish();
  index_->Sync();
  index_->Close();
  RenameDurably(index_->path(), JoinPath(options_.folder, IndexPathOf(file)));
  shard.index_sha256 = index_->Sha256Hex();
  tokens_.reset();
  index_.reset();
  counts_ = {};
  ++number_;
  next_ = next;
  options_.on_finished(std::move(shard));
}

void ShardStream::Finish(const ShardStart& end) {
  if (tokens_) FinishShard(end);
}

}  // namespace lockstep::data
