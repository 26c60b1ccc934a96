// A stream of token ids with random access.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <variant>
#include <vector>

namespace lockstep::data {

// Immutable and thread-safe. Ids are >= 0.
class TokenSource {
 public:
  virtual ~TokenSource() = default;

  // The number of tokens.
  virtual int64_t size() const = 0;

  // Copies the tokens at offset, offset + 1, ... to `out`. Throws ArgumentError unless
  // 0 <= offset and offset + out.size() <= size().
  void Read(int64_t offset, std::span<int32_t> out) const;

  int32_t TokenAt(int64_t offset) const;

  // Whether it is known where documents begin.
  virtual bool has_documents() const { return !document_starts().empty(); }

  // For the same tokens as Read: out[i] = 1 where a document begins, else 0. Throws as Read does,
  // and unless has_documents().
  void ReadDocumentStarts(int64_t offset, std::span<int32_t> out) const;

  // Whether there may be tokens that are not learnt, as targets of the tokens before them.
  virtual bool has_loss_mask() const { return false; }

  // For the same tokens as Read: out[i] = 1 if the token is learnt, else 0. Throws as Read does.
  void ReadLossMask(int64_t offset, std::span<int32_t> out) const;

  // How many of the `count` tokens from `offset` on are learnt. Throws as Read does.
  int64_t CountLearnt(int64_t offset, int64_t count) const;

 protected:
  // All positions at which documents begin, in ascending order, if they are known, for example from
  // an index next to the tokens. Empty: they are not.
  virtual std::span<const uint64_t> document_starts() const { return {}; }

 private:
  void CheckRange(int64_t offset, int64_t count) const;
  // `offset` and `out` have been checked.
  virtual void DoRead(int64_t offset, std::span<int32_t> out) const = 0;
  // Finds them in document_starts(), unless a source has another way.
  virtual void DoReadDocumentStarts(int64_t offset, std::span<int32_t> out) const;
  // If has_loss_mask().
  virtual void DoReadLossMask(int64_t offset, std::span<int32_t> out) const;
};

// Tokens in memory, in two bytes each if they fit.
class MemoryTokens : public TokenSource {
 public:
  explicit MemoryTokens(std::span<const int32_t> tokens);
  int64_t size() const override;

 private:
  void DoRead(int64_t offset, std::span<int32_t> out) const override;
  std::variant<std::vector<uint16_t>, std::vector<int32_t>> tokens_;
};

// Tokens in memory, where their documents begin, and which of them are learnt.
class PackedTokens : public MemoryTokens {
 public:
  PackedTokens(std::span<const int32_t> tokens, std::vector<uint64_t> starts,
               std::vector<uint8_t> learnt)
      : MemoryTokens(tokens), starts_(std::move(starts)), learnt_(std::move(learnt)) {}
  bool has_loss_mask() const override { return true; }

 private:
  std::span<const uint64_t> document_starts() const override { return starts_; }
  void DoReadLossMask(int64_t offset, std::span<int32_t> out) const override {
    std::copy_n(learnt_.begin() + offset, out.size(), out.begin());
  }
  const std::vector<uint64_t> starts_;
  const std::vector<uint8_t> learnt_;
};

// Tokens begin to end - 1 of another source.
class TokenSlice : public TokenSource {
 public:
  TokenSlice(std::shared_ptr<const TokenSource> source, int64_t begin, int64_t end);
  int64_t size() const override { return end_ - begin_; }
  bool has_documents() const override { return source_->has_documents(); }
  bool has_loss_mask() const override { return source_->has_loss_mask(); }

 private:
  void DoRead(int64_t offset, std::span<int32_t> out) const override;
  void DoReadDocumentStarts(int64_t offset, std::span<int32_t> out) const override;
  void DoReadLossMask(int64_t offset, std::span<int32_t> out) const override;
  std::shared_ptr<const TokenSource> source_;
  int64_t begin_;
  int64_t end_;
};

// Several sources, one after the other. Documents are known if all sources know theirs, and may
// begin in one and end in another.
class TokenConcatenation : public TokenSource {
 public:
  explicit TokenConcatenation(std::vector<std::shared_ptr<const TokenSource>> parts);
  int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }
  bool has_documents() const override;
  bool has_loss_mask() const override;

 private:
  void DoRead(int64_t offset, std::span<int32_t> out) const override;
  void DoReadDocumentStarts(int64_t offset, std::span<int32_t> out) const override;
  void DoReadLossMask(int64_t offset, std::span<int32_t> out) const override;
  // Calls f(part, offset in it, out) for each part of the range.
  template <class F>
  void ForParts(int64_t offset, std::span<int32_t> out, const F& f) const;
  std::vector<std::shared_ptr<const TokenSource>> parts_;
  std::vector<int64_t> ends_;  // running sums of the sizes
};

// A source whose documents a token tells apart: it is the first of each, as llm.c writes them, or
// the last, as nanoGPT does.
enum class Separator { kFirst, kLast };
class SeparatedTokens : public TokenSource {
 public:
  SeparatedTokens(std::shared_ptr<const TokenSource> source, int32_t token, Separator place);
  int64_t size() const override { return source_->size(); }
  bool has_documents() const override { return true; }
  bool has_loss_mask() const override { return source_->has_loss_mask(); }

 private:
  void DoRead(int64_t offset, std::span<int32_t> out) const override;
  void DoReadDocumentStarts(int64_t offset, std::span<int32_t> out) const override;
  void DoReadLossMask(int64_t offset, std::span<int32_t> out) const override;
  std::shared_ptr<const TokenSource> source_;
  int32_t token_;
  Separator place_;
};

}  // namespace lockstep::data
