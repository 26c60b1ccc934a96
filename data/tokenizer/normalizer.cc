#include "data/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>

#include "core/error.h"
#include "data/tokenizer/character_class.h"
#include "data/utf8.h"

namespace lockstep::data {
namespace {

// Longer texts to insert would let a small file need much memory.
constexpr size_t kMaxContent = 16;
constexpr std::string_view kTooLong = "it has more than 16 bytes";

struct Free {
  void operator()(void* p) const { std::free(p); }
};

std::string Utf8proc(std::string_view text, int options) {
  utf8proc_uint8_t* raw = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &raw,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | options));
  const std::unique_ptr<utf8proc_uint8_t, Free> result(raw);
  LS_INVARIANT(size >= 0, "utf8proc: ", utf8proc_errmsg(size));
  return std::string(reinterpret_cast<const char*>(raw), static_cast<size_t>(size));
}

// Whether a character is stable: NFC leaves it as it is, whatever its neighbours are, and no
// composition crosses the place before it. These are the starters whose quick check is Yes.
class StableTable {
 public:
  static const StableTable& Get() {
    static const StableTable table;
    return table;
  }
  bool IsStable(uint32_t code_point) const { return code_point < 0x300 || stable_[code_point]; }

 private:
  StableTable() : stable_(0x110000) {
    std::vector<uint32_t> composites;
    for (uint32_t c = 0; c < stable_.size(); ++c) {
      const utf8proc_property_t* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
      const bool surrogate = c >= 0xd800 && c < 0xe000;
      stable_[c] = property->combining_class == 0 && !surrogate;
      if (surrogate || property->decomp_seqindex == UINT16_MAX || property->decomp_type != 0) {
        continue;
      }
      std::string text;
      AppendUtf8(c, &text);
      if (Utf8proc(text, UTF8PROC_COMPOSE) != text) {
        stable_[c] = false;
      } else {
        composites.push_back(c);
      }
    }
    // What stands after the first character of a composite may be composed with it.
    for (const uint32_t c : composites) {
      std::string text;
      AppendUtf8(c, &text);
      const std::string parts = Utf8proc(text, UTF8PROC_DECOMPOSE);
      for (size_t i = DecodeUtf8(parts, 0).length; i < parts.size();) {
        const Utf8Character part = DecodeUtf8(parts, i);
        stable_[part.code_point] = false;
        i += part.length;
      }
    }
    for (uint32_t c = 0x1161; c <= 0x1175; ++c) stable_[c] = false;  // Hangul's vowels
    for (uint32_t c = 0x11a8; c <= 0x11c2; ++c) stable_[c] = false;  // and final consonants
  }

  std::vector<bool> stable_;
};

void ReplaceAll(std::string_view text, const std::string& from, const std::string& to,
                std::string* result) {
  result->clear();
  result->reserve(text.size() + text.size() / 2);
  for (size_t at; (at = text.find(from)) != std::string_view::npos;) {
    result->append(text.substr(0, at)).append(to);
    text.remove_prefix(at + from.size());
  }
  result->append(text);
}

}  // namespace

bool ComposeNfc(std::string_view text, std::string* result) {
  const StableTable& table = StableTable::Get();
  const char* const data = text.data();
  size_t copied = 0;       // text before this has been written
  size_t last_stable = 0;  // where the last stable character begins
  bool changed = false;
  for (size_t i = 0; i < text.size();) {
    int length = 1;
    if (static_cast<uint8_t>(data[i]) < 0x80 ||
        table.IsStable(DecodeValidUtf8(data + i, &length))) {
      last_stable = i;
      i += static_cast<size_t>(length);
      continue;
    }
    // From the stable character before up to the next one.
    while (i < text.size() && !table.IsStable(DecodeValidUtf8(data + i, &length))) {
      i += static_cast<size_t>(length);
    }
    const std::string_view region = text.substr(last_stable, i - last_stable);
    std::string composed = Utf8proc(region, UTF8PROC_COMPOSE);
    if (composed == region) continue;
    if (!changed) result->clear();
    changed = true;
    result->append(text.substr(copied, last_stable - copied)).append(composed);
    copied = i;
  }
  if (changed) result->append(text.substr(copied));
  return changed;
}

void Normalizer::Add(const JsonObject& json) {
  const std::string& type = json.String("type");
  if (type == "Sequence") {
    json.AllowOnly({"type", "normalizers"});
    for (const JsonObject& item : json.Objects("normalizers")) Add(item);
  } else if (type == "NFC") {
    json.AllowOnly({"type"});
    steps_.push_back({Step::Kind::kNfc, "", ""});
  } else if (type == "Prepend") {
    json.AllowOnly({"type", "prepend"});
    steps_.push_back({Step::Kind::kPrepend, "", json.String("prepend")});
    if (steps_.back().content.size() > kMaxContent) json.Refuse("prepend", kTooLong);
  } else if (type == "Replace") {
    json.AllowOnly({"type", "pattern", "content"});
    const JsonObject pattern = json.Object("pattern");
    pattern.AllowOnly({"String"});
    steps_.push_back({Step::Kind::kReplace, pattern.String("String"), json.String("content")});
    if (steps_.back().content.size() > kMaxContent) json.Refuse("content", kTooLong);
    if (steps_.back().pattern.empty()) pattern.Refuse("String", "give at least one character");
  } else {
    json.Refuse("type", "known normalizers are NFC, Prepend, Replace and Sequence");
  }
}

std::string_view Normalizer::Apply(std::string_view text, std::string* buffer, bool prepend) const {
  std::string next;
  for (const Step& step : steps_) {
    if (text.empty()) break;
    switch (step.kind) {
      case Step::Kind::kNfc:
        if (!ComposeNfc(text, &next)) continue;
        break;
      case Step::Kind::kPrepend:
        if (!prepend) continue;
        next.assign(step.content).append(text);
        break;
      case Step::Kind::kReplace:
        if (text.find(step.pattern) == std::string_view::npos) continue;
        ReplaceAll(text, step.pattern, step.content, &next);
        break;
    }
    buffer->swap(next);
    text = *buffer;
  }
  return text;
}

}  // namespace lockstep::data
