#include "data/token_source.h"

#include <algorithm>
#include <array>

#include "core/error.h"

namespace lockstep::data {

void TokenSource::CheckRange(int64_t offset, int64_t count) const {
  LS_CHECK(offset >= 0 && count <= size() && offset <= size() - count, "cannot read ", count,
           " tokens from position ", offset, " of ", size(), " tokens");
}

void TokenSource::Read(int64_t offset, std::span<int32_t> out) const {
  CheckRange(offset, std::ssize(out));
  DoRead(offset, out);
}

int32_t TokenSource::TokenAt(int64_t offset) const {
  int32_t token;
  Read(offset, std::span(&token, 1));
  return token;
}

void TokenSource::ReadDocumentStarts(int64_t offset, std::span<int32_t> out) const {
  LS_CHECK(has_documents(), "it is not known where the documents of these tokens begin");
  CheckRange(offset, std::ssize(out));
  DoReadDocumentStarts(offset, out);
}

void TokenSource::ReadLossMask(int64_t offset, std::span<int32_t> out) const {
  CheckRange(offset, std::ssize(out));
  if (has_loss_mask()) {
    DoReadLossMask(offset, out);
  } else {
    std::ranges::fill(out, 1);
  }
}

int64_t TokenSource::CountLearnt(int64_t offset, int64_t count) const {
  CheckRange(offset, count);
  if (!has_loss_mask()) return count;
  std::array<int32_t, 1024> some;
  int64_t learnt = 0;
  for (int64_t at = 0; at < count; at += std::ssize(some)) {
    const std::span part =
        std::span(some).first(static_cast<size_t>(std::min(std::ssize(some), count - at)));
    DoReadLossMask(offset + at, part);
    learnt += std::ranges::count(part, 1);
  }
  return learnt;
}

void TokenSource::DoReadLossMask(int64_t, std::span<int32_t> out) const {
  std::ranges::fill(out, 1);
}

void TokenSource::DoReadDocumentStarts(int64_t offset, std::span<int32_t> out) const {
  std::ranges::fill(out, 0);
  const std::span<const uint64_t> starts = document_starts();
  const auto end = static_cast<uint64_t>(offset) + out.size();
  auto start = std::ranges::lower_bound(starts, static_cast<uint64_t>(offset));
  for (; start != starts.end() && *start < end; ++start) out[*start - offset] = 1;
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

void TokenSlice::DoReadDocumentStarts(int64_t offset, std::span<int32_t> out) const {
  source_->ReadDocumentStarts(begin_ + offset, out);
}

void TokenSlice::DoReadLossMask(int64_t offset, std::span<int32_t> out) const {
  source_->ReadLossMask(begin_ + offset, out);
}

TokenConcatenation::TokenConcatenation(std::vector<std::shared_ptr<const TokenSource>> parts)
    : parts_(std::move(parts)) {
  int64_t end = 0;
  for (const auto& part : parts_) ends_.push_back(end += part->size());
}

bool TokenConcatenation::has_loss_mask() const {
  return std::ranges::any_of(parts_, [](const auto& part) { return part->has_loss_mask(); });
}

bool TokenConcatenation::has_documents() const {
  return std::ranges::all_of(parts_, [](const auto& part) { return part->has_documents(); });
}

template <class F>
void TokenConcatenation::ForParts(int64_t offset, std::span<int32_t> out, const F& f) const {
  size_t part = std::ranges::upper_bound(ends_, offset) - ends_.begin();
  while (!out.empty()) {
    const int64_t begin = part == 0 ? 0 : ends_[part - 1];
    const int64_t count = std::min<int64_t>(out.size(), ends_[part] - offset);
    f(*parts_[part], offset - begin, out.first(count));
    out = out.subspan(count);
    offset += count;
    ++part;
  }
}

void TokenConcatenation::DoRead(int64_t offset, std::span<int32_t> out) const {
  ForParts(offset, out, [](const TokenSource& part, int64_t begin, std::span<int32_t> to) {
    part.Read(begin, to);
  });
}

void TokenConcatenation::DoReadDocumentStarts(int64_t offset, std::span<int32_t> out) const {
  ForParts(offset, out, [](const TokenSource& part, int64_t begin, std::span<int32_t> to) {
    part.ReadDocumentStarts(begin, to);
  });
}

void TokenConcatenation::DoReadLossMask(int64_t offset, std::span<int32_t> out) const {
  ForParts(offset, out, [](const TokenSource& part, int64_t begin, std::span<int32_t> to) {
    part.ReadLossMask(begin, to);
  });
}

SeparatedTokens::SeparatedTokens(std::shared_ptr<const TokenSource> source, int32_t token,
                                 Separator place)
    : source_(std::move(source)), token_(token), place_(place) {}

void SeparatedTokens::DoRead(int64_t offset, std::span<int32_t> out) const {
  source_->Read(offset, out);
}

void SeparatedTokens::DoReadLossMask(int64_t offset, std::span<int32_t> out) const {
  source_->ReadLossMask(offset, out);
}

void SeparatedTokens::DoReadDocumentStarts(int64_t offset, std::span<int32_t> out) const {
  if (out.empty()) return;
  source_->Read(offset, out);
  if (place_ == Separator::kLast) {
    std::shift_right(out.begin(), out.end(), 1);
    out[0] = offset == 0 ? token_ : source_->TokenAt(offset - 1);
  }
  for (int32_t& token : out) token = token == token_ ? 1 : 0;
}

}  // namespace lockstep::data
