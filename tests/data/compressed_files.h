// Compressed data for tests of readers.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::data {

// One gzip member.
std::string GzipOf(std::string_view text);
// One Zstandard frame. window_log 0: the library's choice.
std::string ZstdOf(std::string_view text, int window_log = 0);
// A frame that decoders must skip.
std::string SkippableFrame(std::string_view content);

}  // namespace lockstep::data
