#include "data/prepare/shard_stream.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "data/document_index.h"

namespace lockstep::data {
namespace {

std::string BuildPath(const std::string& path) {
  return JoinPath(ParentPath(path), StrCat(".", BaseName(path), ".tmp"));
}

}  // namespace

ShardStream::ShardStream(Options options, int64_t finished, ShardStart next)
    : options_(std::move(options)), number_(finished), next_(next) {}

void ShardStream::Begin() {
  const std::string path = JoinPath(options_.folder, options_.name(number_).first);
  tokens_.emplace(path, options_.format, options_.shard_tokens);
  index_.emplace(BuildPath(IndexPathOf(path)), FileWriterOptions{.sha256 = true});
}

void ShardStream::Add(const EncodedDocument& document, std::span<const int32_t> tokens) {
  if (document.document < next_.document) return;
  if (tokens.empty()) {
    ++counts_.empty;
    return;
  }
  std::span<const int32_t> rest = tokens;
  if (document.document == next_.document) rest = rest.subspan(next_.token);
  const bool begins = rest.size() == tokens.size();
  while (!rest.empty()) {
    if (!tokens_) Begin();
    if (begins && rest.size() == tokens.size()) {
      const uint64_t start = tokens_->size();
      index_->Write(std::as_bytes(std::span(&start, 1)));
      counts_ += {.documents = 1, .bytes = document.bytes, .bad_utf8 = document.bad_utf8};
    }
    const size_t space = options_.shard_tokens == 0
                             ? rest.size()
                             : static_cast<size_t>(options_.shard_tokens - tokens_->size());
    const size_t n = std::min(space, rest.size());
    tokens_->Write(rest.first(n));
    rest = rest.subspan(n);
    if (tokens_->size() == options_.shard_tokens) {
      ShardStart next{document.at, document.document};
      if (rest.empty()) {
        ++next.at.record;
        ++next.document;
      } else {
        next.token = static_cast<int64_t>(tokens.size() - rest.size());
      }
      FinishShard(next);
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
