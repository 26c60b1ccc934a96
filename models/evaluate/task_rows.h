// The rows of a task's file, in the task's own fields.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/io/json.h"

namespace lockstep::models {

// A JSON object and where it stands, for messages. All getters throw an InputError that names file,
// line and field if the field is missing or of another type.
class Row {
 public:
  Row(std::shared_ptr<const Json> json, std::string place)
      : json_(std::move(json)), place_(std::move(place)) {}

  std::string Text(const char* field) const;
  // A number, or a text of digits, as in HellaSwag's labels; from 0 to below `end`.
  int64_t Index(const char* field, int64_t end) const;
  // At least `least` texts.
  std::vector<std::string> Texts(const char* field, size_t least = 1) const;
  Row Object(const char* field) const;

  const std::string& place() const { return place_; }  // "hellaswag/validation.jsonl:12"
  friend bool operator==(const Row& a, const Row& b);  // of what is in them

 private:
  const Json& At(const char* field) const;
  [[noreturn]] void Fail(const char* field, const std::string& what) const;

  std::shared_ptr<const Json> json_;
  std::string place_;
};

// All rows of a file of JSONL, whose blank lines are skipped. InputError for a file without rows
// and for a line that is no JSON object; if there is no file, it says `how` to get one.
std::vector<Row> ReadRows(const std::string& path, const std::string& how);

}  // namespace lockstep::models
