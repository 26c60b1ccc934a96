#include "data/token_source.h"

#include <algorithm>

#include "core/error.h"

namespace lockstep::data {

void TokenSource::Read(int64_t offset, std::span<int32_t> out) const {
  const auto count = static_cast<int64_t>(out.size());
  LS_CHECK(offset >= 0 && count <= size() && offset <= size() - count, "cannot read ", count,
           " tokens from position ", offset, " of ", size(), " tokens");
  DoRead(offset, out);
}

int32_t TokenSource::TokenAt(int64_t offset) const {
  int32_t token;
  Read(offset, std::span(&token, 1));
  return token;
}

MemoryTokens::MemoryTokens(std::span<const int32_t> tokens) {
  const auto [min, max] = std::ranges::minmax_element(tokens);
  LS_CHECK(tokens.empty() || *min >= 0, "token ", *min, " is negative");
  if (tokens.empty() || *max <= UINT16_MAX) {
    tokens_ = std::vector<uint16_t>(tokens.begin(), tokens.end());
  } else {
    tokens_ = std::vector<int32_t>(tokens.begin(), tokens.end());
  }
}

int64_t MemoryTokens::size() const {
  return std::visit([](const auto& v) { return static_cast<int64_t>(v.size()); }, tokens_);
}

void MemoryTokens::DoRead(int64_t offset, std::span<int32_t> out) const {
  std::visit([&](const auto& v) { std::copy_n(v.begin() + offset, out.size(), out.begin()); },
             tokens_);
}

TokenSlice::TokenSlice(std::shared_ptr<const TokenSource> source, int64_t begin, int64_t end)
    : source_(std::move(source)), begin_(begin), end_(end) {
  LS_CHECK(0 <= begin && begin <= end && end <= source_->size(), "tokens ", begin, " to ", end - 1,
           " are not within a source of ", source_->size(), " tokens");
}

void TokenSlice::DoRead(int64_t offset, std::span<int32_t> out) const {
  source_->Read(begin_ + offset, out);
}

TokenConcatenation::TokenConcatenation(std::vector<std::shared_ptr<const TokenSource>> parts)
    : parts_(std::move(parts)) {
  int64_t end = 0;
  for (const auto& part : parts_) ends_.push_back(end += part->size());
}

void TokenConcatenation::DoRead(int64_t offset, std::span<int32_t> out) const {
  size_t part = std::ranges::upper_bound(ends_, offset) - ends_.begin();
  while (!out.empty()) {
    const int64_t begin = part == 0 ? 0 : ends_[part - 1];
    const int64_t count = std::min<int64_t>(out.size(), ends_[part] - offset);
    parts_[part]->Read(offset - begin, out.first(count));
    out = out.subspan(count);
    offset += count;
    ++part;
  }
}

}  // namespace lockstep::data
