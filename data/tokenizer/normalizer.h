// What happens to text before it is cut into words.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/tokenizer/json_object.h"

namespace lockstep::data {

// The "normalizer" of a tokenizer.json: NFC, Prepend, Replace (of strings), or a Sequence of them.
// Immutable and thread-safe.
class Normalizer {
 public:
  // Changes nothing.
  Normalizer() = default;
  // Throws InputError for other types.
  explicit Normalizer(const JsonObject& json) { Add(json); }

  // The normalized text: `text` itself if nothing changes, otherwise `*buffer`. `text` must be
  // well-formed UTF-8 and not inside of `buffer`. With `prepend` false the text continues another
  // one, and nothing is put before it.
  std::string_view Apply(std::string_view text, std::string* buffer, bool prepend = true) const;

 private:
  struct Step {
    enum class Kind { kNfc, kPrepend, kReplace } kind;
    std::string pattern, content;
  };
  void Add(const JsonObject& json);

  std::vector<Step> steps_;
};

// Canonical composition (NFC, Unicode 15). Returns whether it differs from `text`; only then it is
// written to `*result`. Scans text that is composed already, as nearly all is, at high speed.
bool ComposeNfc(std::string_view text, std::string* result);

}  // namespace lockstep::data
