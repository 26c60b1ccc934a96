// Typed access to the objects of a tokenizer.json; errors name the place in the file.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "core/io/json.h"

namespace lockstep::data {

// An object inside of a JSON file that outlives it. Everything that does not fit throws InputError.
class JsonObject {
 public:
  // `where` is the file with the path of keys, such as "tokenizer.json: model".
  JsonObject(const Json& json, std::string where);

  const std::string& where() const { return where_; }

  // The field's value, or null if it is missing or null.
  const Json* Find(const char* key) const;

  bool Bool(const char* key, bool otherwise) const;
  // A required string, which need not be nonempty.
  const std::string& String(const char* key) const;
  // A required object or the objects of a required array.
  JsonObject Object(const char* key) const;
  std::vector<JsonObject> Objects(const char* key) const;
  // A required integer in [0, most].
  int64_t Integer(const char* key, int64_t most) const;

  // Throws if there is a field that is not among `keys`: it would be ignored.
  void AllowOnly(std::initializer_list<std::string_view> keys) const;
  // Throws "where.key: value is not supported, hint".
  [[noreturn]] void Refuse(const char* key, std::string_view hint) const;

 private:
  std::string At(const char* key) const;
  const Json& Required(const char* key, bool fits, std::string_view kind) const;

  const Json* json_;
  std::string where_;
};

}  // namespace lockstep::data
