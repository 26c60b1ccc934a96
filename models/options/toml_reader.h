// The values of a TOML text as a flat list. Hides toml++, which nvcc can't compile.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace lockstep::models {

// A TOML value that no option can hold (a date, a list of anything but strings), or a section.
struct TomlOther {
  std::string type;  // "a list", "a date", ...
};
struct TomlSection {};

struct TomlEntry {
  std::string key;  // "train.steps"; parts that are not bare keys stay quoted
  std::variant<bool, int64_t, double, std::string, std::vector<std::string>, TomlOther, TomlSection>
      value;
  std::string position;  // of the value (of a section: of its name): "config.toml:3:9"
};

// In the order of the text. Throws InputError with `name`, line and column.
std::vector<TomlEntry> ReadToml(std::string_view text, const std::string& name);

}  // namespace lockstep::models
