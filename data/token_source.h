// A stream of token ids with random access.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
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

 private:
  // `offset` and `out` have been checked.
  virtual void DoRead(int64_t offset, std::span<int32_t> out) const = 0;
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

// Tokens begin to end - 1 of another source.
class TokenSlice : public TokenSource {
 public:
  TokenSlice(std::shared_ptr<const TokenSource> source, int64_t begin, int64_t end);
  int64_t size() const override { return end_ - begin_; }

 private:
  void DoRead(int64_t offset, std::span<int32_t> out) const override;
  std::shared_ptr<const TokenSource> source_;
  int64_t begin_;
  int64_t end_;
};

// Several sources, one after the other.
class TokenConcatenation : public TokenSource {
 public:
  explicit TokenConcatenation(std::vector<std::shared_ptr<const TokenSource>> parts);
  int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }

 private:
  void DoRead(int64_t offset, std::span<int32_t> out) const override;
  std::vector<std::shared_ptr<const TokenSource>> parts_;
  std::vector<int64_t> ends_;  // running sums of the sizes
};

}  // namespace lockstep::data
