// The object of a config.json, with errors that name the file and the field.
#pragma once

#include <cstdint>
#include <string>

#include "core/io/json.h"

namespace lockstep::models {

// Values are read by key; a null counts as absent unless it says otherwise. InputErrors name source
// and key.
struct Fields {
  const Json& j;
  std::string source;

  bool Has(const char* key) const { return j.contains(key) && !j[key].is_null(); }
  [[noreturn]] void Fail(const char* key, const std::string& what) const;
  int64_t Integer(const char* key) const;
  int64_t Integer(const char* key, int64_t otherwise) const;
  double Number(const char* key, double otherwise) const;
  // `otherwise` if absent, 0 for a null, for what a null switches off.
  double NumberOrNull(const char* key, double otherwise) const;
  int64_t IntegerOrNull(const char* key, int64_t otherwise) const;
  bool Bool(const char* key, bool otherwise) const;
  std::string Text(const char* key, const std::string& otherwise) const;
  // For what these models do not implement, which must not be ignored silently.
  void Expect(const char* key, const Json& want) const;
  // An empty object if absent.
  Fields Object(const char* key) const;
  // An empty array if absent.
  const Json& Array(const char* key) const;
};

}  // namespace lockstep::models
