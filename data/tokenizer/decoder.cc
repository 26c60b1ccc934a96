#include "data/tokenizer/decoder.h"

#include <charconv>

#include "core/error.h"
#include "data/tokenizer/byte_alphabet.h"
#include "data/utf8.h"

namespace lockstep::data {

Decoder Decoder::ByteLevel() {
  Decoder decoder;
  decoder.byte_level_ = true;
  return decoder;
}

Decoder::Decoder(const JsonObject& json) {
  const std::string& type = json.String("type");
  if (type == "ByteLevel") {
    json.AllowOnly({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    byte_level_ = true;
  } else if (type == "Metaspace") {
    json.AllowOnly(
        {"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
    replacements_.emplace_back(json.String("replacement"), " ");
    const bool has_scheme = json.Find("prepend_scheme") != nullptr;
    if (json.Bool("add_prefix_space", true) &&
        (!has_scheme || json.String("prepend_scheme") != "never")) {
      strip_ = " ";
      strip_left_ = INT64_MAX;
      first_token_ = true;
    }
  } else if (type == "Sequence") {
    json.AllowOnly({"type", "decoders"});
    for (const JsonObject& item : json.Objects("decoders")) Add(item);
  } else {
    Add(json);
  }
}

void Decoder::Add(const JsonObject& json) {
  const std::string& type = json.String("type");
  if (strip_left_ > 0) json.Refuse("type", "nothing can follow Strip");
  if (type == "Replace") {
    json.AllowOnly({"type", "pattern", "content"});
    const JsonObject pattern = json.Object("pattern");
    pattern.AllowOnly({"String"});
    if (pattern.String("String").empty()) pattern.Refuse("String", "give at least one character");
    if (byte_fallback_) json.Refuse("type", "Replace must stand before ByteFallback");
    // Longer ones would let a small file need much memory.
    if (json.String("content").size() > 16) json.Refuse("content", "it has more than 16 bytes");
    replacements_.emplace_back(pattern.String("String"), json.String("content"));
  } else if (type == "ByteFallback") {
    json.AllowOnly({"type"});
    byte_fallback_ = true;
  } else if (type == "Fuse") {
    json.AllowOnly({"type"});
    fused_ = true;
  } else if (type == "Strip") {
    if (!fused_) json.Refuse("type", "Strip must follow Fuse");
    json.AllowOnly({"type", "content", "start", "stop"});
    strip_ = json.String("content");
    if (CountUtf8(strip_) != 1) json.Refuse("content", "it must be one character");
    strip_left_ = json.Integer("start", 1000);
    if (json.Integer("stop", 1000) != 0) json.Refuse("stop", "it must be 0");
  } else {
    json.Refuse("type",
                "known decoders are ByteLevel, Metaspace, and a Sequence of Replace, ByteFallback, "
                "Fuse and Strip");
  }
}

std::string Decoder::Text(std::string_view token) const {
  if (byte_level_) return PrintableToBytes(token).value_or(std::string(token));
  std::string text(token);
  for (const auto& [from, to] : replacements_) {
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
      text.replace(at, from.size(), to);
    }
  }
  if (byte_fallback_ && text.size() == 6 && text.starts_with("<0x") && text.ends_with('>')) {
    uint8_t byte;
    const auto [end, error] = std::from_chars(text.data() + 3, text.data() + 5, byte, 16);
    if (error == std::errc() && end == text.data() + 5)
      return std::string(1, static_cast<char>(byte));
  }
  return text;
}

void Decoder::FinishText(size_t first, std::string* text) const {
  const size_t limit = first_token_ ? first : text->size();
  size_t size = 0;
  for (int64_t i = 0; i < strip_left_; ++i) {
    if (size + strip_.size() > limit || text->compare(size, strip_.size(), strip_) != 0) break;
    size += strip_.size();
  }
  text->erase(0, size);
}

}  // namespace lockstep::data
