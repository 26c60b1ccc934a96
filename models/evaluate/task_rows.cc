#include "models/evaluate/task_rows.h"

#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"

namespace lockstep::models {

void Row::Fail(const char* field, const std::string& what) const {
  throw InputError(StrCat(place_, ": \"", field, "\" ", what));
}

const Json& Row::At(const char* field) const {
  if (const Json* value = json_->Find(field)) return *value;
  std::string names;
  for (const auto& [name, value] : json_->items()) names += (names.empty() ? "" : ", ") + name;
  Fail(field, StrCat("is missing; the row has ", names.empty() ? "nothing" : names));
}

std::string Row::Text(const char* field) const {
  const Json& value = At(field);
  if (!value.is_string()) Fail(field, StrCat("is ", value.dump(), ", and must be a text"));
  return value.get<std::string>();
}

int64_t Row::Index(const char* field, int64_t end) const {
  const Json& value = At(field);
  int64_t index = -1;
  if (value.is_string()) {
    const auto& text = value.string();
    if (text.size() == 1 && text[0] >= '0' && text[0] <= '9') index = text[0] - '0';
  } else if (value.is_number_integer()) {
    index = value.get<int64_t>();
  }
  if (index < 0 || index >= end) {
    Fail(field, StrCat("is ", value.dump(), ", and must be a number from 0 to ", end - 1));
  }
  return index;
}

std::vector<std::string> Row::Texts(const char* field, size_t least) const {
  const Json& value = At(field);
  std::vector<std::string> texts;
  if (value.is_array()) {
    for (const Json& text : value) {
      if (text.is_string()) texts.push_back(text.get<std::string>());
    }
  }
  if (!value.is_array() || texts.size() != value.size() || texts.size() < least) {
    Fail(field, StrCat("must be a list of at least ", least, " texts"));
  }
  return texts;
}

Row Row::Object(const char* field) const {
  const Json& value = At(field);
  if (!value.is_object()) Fail(field, StrCat("is ", value.dump(), ", and must be an object"));
  return {std::make_shared<const Json>(value), place_};
}

bool operator==(const Row& a, const Row& b) { return *a.json_ == *b.json_; }

std::vector<Row> ReadRows(const std::string& path, const std::string& how) {
  if (!PathExists(path)) {
    throw InputError(StrCat("there is no ", path, "; this writes it:\n  ", how));
  }
  const std::string text = ReadFile(path);
  std::vector<Row> rows;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    std::string place = StrCat(path, ":", ++number);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    auto json = std::make_shared<const Json>(ParseJson(line, place));
    if (!json->is_object()) throw InputError(StrCat(place, ": a row must be a JSON object"));
    rows.emplace_back(std::move(json), std::move(place));
  }
  if (rows.empty()) {
    throw InputError(StrCat(path, " has no rows; this writes it anew:\n  ", how));
  }
  return rows;
}

}  // namespace lockstep::models
