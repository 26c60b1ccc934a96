#include "data/tokenizer/pre_tokenizer.h"

#include "core/error.h"
#include "core/io/json.h"
#include "data/utf8.h"

namespace lockstep::data {
namespace {

constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace

PreTokenizer::PreTokenizer(const JsonObject& json) { Add(json); }

void PreTokenizer::Add(const JsonObject& json) {
  const std::string& type = json.String("type");
  if (byte_level_) json.Refuse("type", "nothing can follow ByteLevel in a Sequence");
  if (type == "Sequence") {
    json.AllowOnly({"type", "pretokenizers"});
    for (const JsonObject& item : json.Objects("pretokenizers")) Add(item);
  } else if (type == "ByteLevel") {
    json.AllowOnly({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    Step step;
    if (json.Bool("add_prefix_space", true)) step.prefix = Prefix::kAlways;
    if (json.Bool("use_regex", true)) step.pattern = KnownSplitPattern(kGpt2Pattern);
    if (step.pattern != nullptr || step.prefix != Prefix::kNever) steps_.push_back(std::move(step));
    byte_level_ = true;
  } else if (type == "Digits") {
    json.AllowOnly({"type", "individual_digits"});
    Step step;
    step.pattern = SplitPattern::Compile(
        json.Bool("individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)", json.where());
    steps_.push_back(std::move(step));
  } else if (type == "Split") {
    AddSplit(json);
  } else if (type == "Metaspace") {
    AddMetaspace(json);
  } else {
    json.Refuse("type",
                "known pre-tokenizers are ByteLevel, Split, Digits, Metaspace and Sequence");
  }
}

void PreTokenizer::AddSplit(const JsonObject& json) {
  json.AllowOnly({"type", "pattern", "behavior", "invert"});
  const JsonObject pattern = json.Object("pattern");
  pattern.AllowOnly({"String", "Regex"});
  Step step;
  if (pattern.Find("Regex") != nullptr) {
    step.pattern = SplitPattern::Compile(pattern.String("Regex"), pattern.where());
  } else {
    if (pattern.String("String").empty()) pattern.Refuse("String", "give at least one character");
    step.pattern = SplitPattern::Literal(pattern.String("String"));
  }
  const std::string& behavior = json.String("behavior");
  if (behavior == "Removed") {
    step.behavior = Behavior::kRemoved;
  } else if (behavior == "Isolated") {
    step.behavior = Behavior::kIsolated;
  } else if (behavior == "MergedWithPrevious") {
    step.behavior = Behavior::kMergedWithPrevious;
  } else if (behavior == "MergedWithNext") {
    step.behavior = Behavior::kMergedWithNext;
  } else if (behavior == "Contiguous") {
    step.behavior = Behavior::kContiguous;
  } else {
    json.Refuse("behavior",
                "known are Removed, Isolated, MergedWithPrevious, MergedWithNext and Contiguous");
  }
  step.invert = json.Bool("invert", false);
  steps_.push_back(std::move(step));
}

void PreTokenizer::AddMetaspace(const JsonObject& json) {
  json.AllowOnly({"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  Step step;
  step.space = json.String("replacement");
  if (CountUtf8(step.space) != 1) json.Refuse("replacement", "it must be one character");
  const bool has_scheme = json.Find("prepend_scheme") != nullptr;
  const std::string scheme = has_scheme ? json.String("prepend_scheme") : "always";
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    json.Refuse("prepend_scheme", "known are always, first and never");
  }
  // Files of old versions have add_prefix_space instead of prepend_scheme.
  const bool adds = json.Bool("add_prefix_space", scheme != "never");
  if (!adds && has_scheme && scheme != "never") {
    json.Refuse("add_prefix_space", "it contradicts prepend_scheme");
  }
  if (adds && scheme != "never") {
    step.prefix = scheme == "first" ? Prefix::kFirst : Prefix::kAlways;
  }
  if (json.Bool("split", true)) {
    step.pattern = SplitPattern::Literal(step.space);
    step.behavior = Behavior::kMergedWithNext;
  }
  steps_.push_back(std::move(step));
}

void PreTokenizer::Cut(std::string_view text, Place place, const Sink& sink) const {
  if (!text.empty()) Run(0, text, place, sink);
}

void PreTokenizer::Run(size_t index, std::string_view text, Place place, const Sink& sink) const {
  if (index == steps_.size()) return sink(text);
  const Step& step = steps_[index];
  std::string changed;
  if (!step.space.empty() && text.find(' ') != std::string_view::npos) {
    changed.reserve(text.size() + text.size() / 2);
    for (const char c : text) c == ' ' ? changed.append(step.space) : changed.append(1, c);
    text = changed;
  }
  const std::string_view space = step.space.empty() ? " " : std::string_view(step.space);
  const bool wants_prefix = (step.prefix == Prefix::kAlways && place != Place::kBehindText) ||
                            (step.prefix == Prefix::kFirst && place == Place::kStart);
  if (wants_prefix && !text.starts_with(space)) {
    changed = StrCat(space, text);
    text = changed;
  }
  const char* const begin = text.data();
  const auto next = [&](std::string_view piece) {
    Run(index + 1, piece, piece.data() == begin ? place : Place::kBehindToken, sink);
  };
  if (step.pattern == nullptr) return next(text);
  if (step.behavior == Behavior::kIsolated) {
    // Matches and gaps are treated alike, so that `invert` does not matter.
    if (index + 1 == steps_.size()) {
      step.pattern->Cut(text, [&](std::string_view piece, bool) { sink(piece); });
    } else {
      step.pattern->Cut(text, [&](std::string_view piece, bool) { next(piece); });
    }
    return;
  }
  // The piece that may still grow, and whether the match or gap that it ends with is a match.
  std::string_view open;
  bool open_match = false;
  const auto flush = [&] {
    if (!open.empty()) next(open);
    open = {};
  };
  step.pattern->Cut(text, [&](std::string_view piece, bool is_match) {
    is_match ^= step.invert;
    bool joins = false;
    switch (step.behavior) {
      case Behavior::kRemoved:
        if (is_match) return;
        break;
      case Behavior::kMergedWithPrevious:
        joins = is_match && !open_match;
        break;
      case Behavior::kMergedWithNext:
        joins = !is_match && open_match;
        break;
      case Behavior::kContiguous:
        joins = is_match == open_match;
        break;
      case Behavior::kIsolated:
        break;
    }
    if (joins && !open.empty()) {
      open = std::string_view(open.data(), open.size() + piece.size());
    } else {
      flush();
      open = piece;
    }
    open_match = is_match;
  });
  flush();
}

}  // namespace lockstep::data
