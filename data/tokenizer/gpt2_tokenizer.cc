#include "data/tokenizer/gpt2_tokenizer.h"

#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "core/io/json.h"
#include "data/tokenizer/tokenizer_json.h"

namespace lockstep::data {
namespace {

constexpr size_t kMaxCachedPieceBytes = 64;
constexpr size_t kMaxCachedPieces = size_t{1} << 18;

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

}  // namespace

// Piece -> ids. Emptied when full: frequent pieces soon return.
class Gpt2Tokenizer::Cache {
 public:
  // The ids of the piece, or nullopt.
  std::optional<std::span<const int32_t>> Find(std::string_view piece) const {
    const auto it = spans_.find(piece);
    if (it == spans_.end()) return std::nullopt;
    return std::span<const int32_t>(ids_).subspan(it->second.begin, it->second.count);
  }

  void Insert(std::string_view piece, std::span<const int32_t> ids) {
    if (spans_.size() >= kMaxCachedPieces) {
      spans_.clear();
      ids_.clear();
    }
    spans_.emplace(piece, Span{ids_.size(), ids.size()});
    ids_.insert(ids_.end(), ids.begin(), ids.end());
  }

  std::mutex mutex;

 private:
  struct Span {
    size_t begin;
    size_t count;
  };
  std::unordered_map<std::string, Span, StringHash, std::equal_to<>> spans_;
  std::vector<int32_t> ids_;
};

Gpt2Tokenizer::Gpt2Tokenizer(Gpt2Vocabulary vocabulary)
    : vocabulary_(std::move(vocabulary)),
      merger_(vocabulary_.merges),
      cache_(std::make_unique<Cache>()) {}

Gpt2Tokenizer::~Gpt2Tokenizer() = default;

void Gpt2Tokenizer::EncodePiece(std::string_view piece, Cache* cache,
                                std::vector<int32_t>* ids) const {
  if (const auto known = cache->Find(piece)) {
    ids->insert(ids->end(), known->begin(), known->end());
    return;
  }
  std::vector<int32_t> merged;
  merged.reserve(piece.size());
  for (const char c : piece) merged.push_back(vocabulary_.byte_ids[static_cast<uint8_t>(c)]);
  merger_.Apply(&merged);
  ids->insert(ids->end(), merged.begin(), merged.end());
  if (piece.size() <= kMaxCachedPieceBytes) cache->Insert(piece, merged);
}

std::vector<int32_t> Gpt2Tokenizer::Encode(std::string_view text) const {
  // Another thread that encodes at the same time uses its own cache.
  Cache own;
  std::unique_lock lock(cache_->mutex, std::try_to_lock);
  Cache* cache = lock.owns_lock() ? cache_.get() : &own;
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3);
  splitter_.Split(text, [&](std::string_view piece) { EncodePiece(piece, cache, &ids); });
  return ids;
}

std::string Gpt2Tokenizer::Decode(std::span<const int32_t> ids) const {
  std::string text;
  text.reserve(4 * ids.size());
  for (const int32_t id : ids) {
    RequireTokenId(id, *this);
    text += vocabulary_.tokens[id];
  }
  return text;
}

std::string Gpt2Tokenizer::ToJson() const {
  nlohmann::ordered_json json = TokenizerJson(*this);
  std::vector<std::string> tokens;
  for (const std::string& token : vocabulary_.tokens) tokens.push_back(BytesToPrintable(token));
  std::vector<std::string> merges;
  for (const BpeMerge& merge : vocabulary_.merges) {
    merges.push_back(tokens[merge.left] + " " + tokens[merge.right]);
  }
  json["tokens"] = std::move(tokens);
  json["merges"] = std::move(merges);
  return DumpJson(json) + "\n";
}

}  // namespace lockstep::data
