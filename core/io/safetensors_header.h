// The JSON of a safetensors file, before its numbers are checked against the data. Internal to
// core/io/safetensors.cc.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

struct SafetensorsRawEntry {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;
};

struct SafetensorsRawHeader {
  std::vector<SafetensorsRawEntry> entries;  // in the order of the text; names may repeat
  std::map<std::string, std::string> metadata;
};

// Accepts exactly {"__metadata__": {string: string}, name: {"dtype": string, "shape": [integers],
// "data_offsets": [begin, end]}}, with every field exactly once. Its memory is proportional to the
// length of the text, whatever it contains. InputError names the tensor and the field.
SafetensorsRawHeader ParseSafetensorsHeader(std::string_view text, const std::string& source);

}  // namespace lockstep
