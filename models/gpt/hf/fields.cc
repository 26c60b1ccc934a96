#include "models/gpt/hf/fields.h"

#include "core/error.h"
#include "core/io/json.h"

namespace lockstep::models {

void Fields::Fail(const char* key, const std::string& what) const {
  throw InputError(StrCat(source, ": \"", key, "\" ", what));
}

int64_t Fields::Integer(const char* key) const {
  if (!j.contains(key)) Fail(key, "must be an integer");
  try {
    return IntegerOf(j[key]);
  } catch (const InputError&) {
    Fail(key, StrCat("must be an integer of 64 bits, got ", j[key].dump()));
  }
}

int64_t Fields::Integer(const char* key, int64_t otherwise) const {
  return Has(key) ? Integer(key) : otherwise;
}

double Fields::Number(const char* key, double otherwise) const {
  if (!Has(key)) return otherwise;
  if (!j[key].is_number()) Fail(key, "must be a number");
  return j[key].get<double>();
}

double Fields::NumberOrNull(const char* key, double otherwise) const {
  return Number(key, j.contains(key) ? 0 : otherwise);
}

int64_t Fields::IntegerOrNull(const char* key, int64_t otherwise) const {
  return Integer(key, j.contains(key) ? 0 : otherwise);
}

bool Fields::Bool(const char* key, bool otherwise) const {
  if (!Has(key)) return otherwise;
  if (!j[key].is_boolean()) Fail(key, "must be true or false");
  return j[key].get<bool>();
}

std::string Fields::Text(const char* key, const std::string& otherwise) const {
  if (!Has(key)) return otherwise;
  if (!j[key].is_string()) Fail(key, "must be a string");
  return j[key].get<std::string>();
}

void Fields::Expect(const char* key, const Json& want) const {
  if (Has(key) && j[key] != want) {
    Fail(key, StrCat("is ", j[key].dump(), "; only ", want.dump(), " is supported"));
  }
}

Fields Fields::Object(const char* key) const {
  static const Json empty = Json::object();
  if (!Has(key)) return {empty, source};
  if (!j[key].is_object()) Fail(key, "must be an object");
  return {j[key], StrCat(source, ": \"", key, "\"")};
}

const Json& Fields::Array(const char* key) const {
  static const Json empty = Json::array();
  if (!Has(key)) return empty;
  if (!j[key].is_array()) Fail(key, "must be a list");
  return j[key];
}

}  // namespace lockstep::models
