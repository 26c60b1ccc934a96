// A vocabulary with merges: words to ids.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "data/tokenizer/bpe.h"
#include "data/tokenizer/json_object.h"
#include "data/tokenizer/word_cache.h"

namespace lockstep::data {

// The "model" of a tokenizer.json of type BPE. Its symbols, which merges join, are the 256 bytes
// (byte-level), or characters. Immutable and thread-safe.
class BpeModel {
 public:
  // Throws InputError for a vocabulary or merges that make no sense, and for what only other BPE
  // models have (dropout, prefixes and suffixes of words). If `byte_level`, tokens are written in
  // GPT-2's byte alphabet, and all 256 bytes must be there.
  BpeModel(const JsonObject& json, bool byte_level);
  BpeModel(BpeModel&&) = delete;

  // What a thread remembers between words. A Scratch belongs to the model that has lent it.
  struct Scratch {
    WordCache cache;
    std::vector<int32_t> symbols;
  };
  class Lease;  // lends a Scratch to a scope

  // Appends the ids of a word: well-formed UTF-8, or for a byte-level model any bytes. Characters
  // that the vocabulary lacks become bytes, or the unknown token, or nothing. Takes O(n log n)
  // time, and about 32 bytes of memory for each symbol of the longest part that tokens may cross.
  void Encode(std::string_view word, Scratch* scratch, std::vector<int32_t>* ids) const;

  // Appends the ids for bytes that are not UTF-8 (not for byte-level models). Throws InputError if
  // the vocabulary has no tokens for them.
  void EncodeMalformed(std::string_view bytes, std::vector<int32_t>* ids) const;

  bool byte_level() const { return byte_level_; }
  // By id; as written in the file. An id without a token has an empty one.
  const std::vector<std::string>& tokens() const { return tokens_; }
  std::optional<int32_t> Id(std::string_view token) const;
  std::optional<int32_t> unknown() const { return unknown_; }

 private:
  void ReadVocabulary(const JsonObject& json);
  std::vector<BpeMerge> ReadMerges(const JsonObject& json) const;
  void SetSymbols(const JsonObject& json);
  void FindCuts(const std::vector<BpeMerge>& merges);

  std::optional<int32_t> WholeWord(std::string_view word) const;
  // The id of the character as a token, or -1.
  int32_t Symbol(uint32_t code_point) const;
  bool MayCut(uint32_t left, uint32_t right) const;
  void EncodePart(std::string_view part, Scratch* scratch, std::vector<int32_t>* ids) const;
  void ToSymbols(std::string_view part, std::vector<int32_t>* symbols) const;

  bool byte_level_, ignore_merges_, fuse_unknown_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string_view, int32_t> ids_;  // views of tokens_
  size_t longest_ = 0;                                 // bytes of the longest token
  std::optional<int32_t> unknown_;
  // For each byte, the id of its token, or of the one that it falls back to; -1: none.
  std::array<int32_t, 256> byte_ids_;
  std::array<int32_t, 128> ascii_symbols_;         // the id of the character, or -1
  std::unordered_map<uint32_t, int32_t> symbols_;  // of other characters
  std::optional<BpeMerger> merger_;

  // A word of characters is cut where no token can cross, so that its parts can be cached: between
  // two characters that are tokens, and that are not neighbours inside of any merged token.
  bool can_cut_ = false;
  std::unordered_set<uint64_t> joined_;
  std::vector<bool> ascii_joined_;  // [128 * 128]

  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> idle_;
};

// Holds one of the model's Scratches; threads that encode at the same time have different ones.
class BpeModel::Lease {
 public:
  explicit Lease(const BpeModel& model);
  ~Lease();
  Lease(Lease&&) = delete;

  Scratch* get() const { return scratch_.get(); }

 private:
  const BpeModel& model_;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace lockstep::data
