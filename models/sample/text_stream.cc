#include "models/sample/text_stream.h"

#include <algorithm>

#include "core/error.h"
#include "data/utf8.h"

namespace lockstep::models {
namespace {

// Whether text from `position` on is the start of an incomplete character.
bool MayBecomeCharacter(std::string_view text, size_t position) {
  // It is if some continuation bytes complete it. Not every second byte fits every first byte.
  for (const char* second : {"\x80", "\x90", "\xa0"}) {
    std::string completed(text.substr(position));
    if (completed.size() >= 4) return false;
    if (completed.size() == 1) completed += second;
    completed.resize(4, '\x80');
    const int length = data::DecodeUtf8(completed, 0).length;
    if (length > static_cast<int>(text.size() - position)) return true;
  }
  return false;
}

}  // namespace

TextStream::TextStream(std::vector<std::string> stop_texts) : stop_texts_(std::move(stop_texts)) {
  for (const std::string& stop : stop_texts_) {
    if (stop.empty()) throw InputError("a stop text is empty; give at least one character");
  }
}

std::string TextStream::Push(std::string_view bytes) {
  if (stopped_) return "";
  size_t longest = 0;
  for (char byte : bytes) {
    held_ += byte;
    for (const std::string& stop : stop_texts_) {
      if (held_.ends_with(stop)) longest = std::max(longest, stop.size());
    }
    if (longest > 0) {
      stopped_ = true;
      held_.resize(held_.size() - longest);
      return Show(held_.size(), /*last=*/true);
    }
  }
  // Hold back what may be the beginning of a stop text.
  size_t wait = 0;
  for (const std::string& stop : stop_texts_) {
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > wait; --n) {
      if (std::string_view(held_).substr(held_.size() - n) == std::string_view(stop).substr(0, n)) {
        wait = n;
      }
    }
  }
  return Show(held_.size() - wait, /*last=*/false);
}

std::string TextStream::Finish() { return Show(held_.size(), /*last=*/true); }

// Takes from held_ the complete characters that start before `end`, or with `last` everything.
std::string TextStream::Show(size_t end, bool last) {
  std::string shown;
  size_t at = 0;
  while (at < end) {
    const std::string_view visible = std::string_view(held_).substr(0, end);
    const int length = data::DecodeUtf8(visible, at).length;
    if (length > 0) {
      shown += held_.substr(at, static_cast<size_t>(length));
      at += static_cast<size_t>(length);
      continue;
    }
    // Later bytes may complete the character.
    if (!last && MayBecomeCharacter(visible, at)) break;
    data::AppendUtf8(0xfffd, &shown);
    ++at;
  }
  held_.erase(0, at);
  return shown;
}

}  // namespace lockstep::models
