// How text is cut into words, which no token crosses.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/json_object.h"
#include "data/tokenizer/split_pattern.h"

namespace lockstep::data {

// The "pre_tokenizer" of a tokenizer.json: ByteLevel, Split, Digits, Metaspace, or a Sequence of
// them. Immutable and thread-safe.
class PreTokenizer {
 public:
  // Leaves text in one piece.
  PreTokenizer() = default;
  // Throws InputError for other types, and for a ByteLevel that is not the last.
  explicit PreTokenizer(const JsonObject& json);

  using Sink = std::function<void(std::string_view word)>;

  // Where a text stands: at the start of all text, after an added token, or right after text that
  // has been cut already.
  enum class Place { kStart, kBehindToken, kBehindText };

  // Gives the words of `text`, which must be well-formed UTF-8. They need not be parts of it: some
  // steps add or replace spaces.
  void Cut(std::string_view text, Place place, const Sink& sink) const;

  // Whether words are bytes, for a byte-level vocabulary: there is a ByteLevel step.
  bool byte_level() const { return byte_level_; }

 private:
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  enum class Prefix { kNever, kFirst, kAlways };
  struct Step {
    std::unique_ptr<SplitPattern> pattern;  // null: does not cut
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
    // Before the cut: replace spaces by this text, and put it (or a space, if empty) in front.
    std::string space;
    Prefix prefix = Prefix::kNever;
  };
  void Add(const JsonObject& json);
  void AddSplit(const JsonObject& json);
  void AddMetaspace(const JsonObject& json);
  void Run(size_t step, std::string_view text, Place place, const Sink& sink) const;

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace lockstep::data
