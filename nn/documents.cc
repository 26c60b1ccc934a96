#include "nn/documents.h"

#include <utility>
#include <vector>

#include "nn/kv_cache.h"

namespace lockstep::nn {
namespace {

thread_local const DocumentScope* current_scope = nullptr;

}  // namespace

Documents MakeDocuments(std::span<const int32_t> first_key, int64_t b, int64_t t, Device device) {
  LS_CHECK(std::ssize(first_key) == b * t, "documents of ", b, " rows of ", t, " tokens need ",
           b * t, " first keys, one for each token, got ", first_key.size());
  std::vector<int32_t> positions(first_key.size());
  for (int64_t i = 0; i < b * t; ++i) {
    const int64_t col = i % t;
    LS_CHECK(first_key[i] == col || (col > 0 && first_key[i] == first_key[i - 1]),
             "the first key of a document's tokens is the column of its first: [", i / t, ", ", col,
             "] must have ", col, col > 0 ? StrCat(", or ", first_key[i - 1]) : std::string(),
             ", got ", first_key[i]);
    positions[i] = static_cast<int32_t>(col - first_key[i]);
  }
  const std::vector<int32_t> keys(first_key.begin(), first_key.end());
  return {Tensor::FromVector(keys, {b, t}, device), Tensor::FromVector(positions, {b, t}, device)};
}

DocumentScope::DocumentScope(Documents documents)
    : documents_(std::move(documents)), previous_(std::exchange(current_scope, this)) {}

DocumentScope::~DocumentScope() { current_scope = previous_; }

const Documents& CurrentDocuments() {
  static const Documents none;
  if (current_scope == nullptr || !current_scope->documents_.defined()) return none;
  LS_CHECK(KvCacheScope::Current() == nullptr,
           "a KvCacheScope continues one text in each row: generate text outside of a "
           "DocumentScope");
  return current_scope->documents_;
}

}  // namespace lockstep::nn
