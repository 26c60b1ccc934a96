#include "data/tokenizer/json_object.h"

#include <algorithm>

#include "core/error.h"
#include "core/io/json.h"

namespace lockstep::data {
namespace {

// The value for a message; values may be huge.
std::string Shown(const Json& value) {
  if (value.is_object() || value.is_array()) return StrCat("an ", value.type_name());
  std::string text = value.dump();
  if (text.size() > 80) text = text.substr(0, 80) + "...";
  return text;
}

}  // namespace

JsonObject::JsonObject(const Json& json, std::string where)
    : json_(&json), where_(std::move(where)) {
  if (!json.is_object())
    throw InputError(StrCat(where_, ": expected an object, not ", Shown(json)));
}

std::string JsonObject::At(const char* key) const {
  return StrCat(where_, where_.ends_with(':') ? " " : ".", key);
}

const Json* JsonObject::Find(const char* key) const {
  const Json* value = json_->Find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

const Json& JsonObject::Required(const char* key, bool fits, std::string_view kind) const {
  const Json* value = Find(key);
  if (value != nullptr && fits) return *value;
  throw InputError(
      StrCat(At(key), ": expected ", kind, ", not ", value == nullptr ? "nothing" : Shown(*value)));
}

bool JsonObject::Bool(const char* key, bool otherwise) const {
  const Json* value = Find(key);
  if (value == nullptr) return otherwise;
  return Required(key, value->is_boolean(), "true or false").get<bool>();
}

const std::string& JsonObject::String(const char* key) const {
  const Json* value = Find(key);
  return Required(key, value != nullptr && value->is_string(), "a string").string();
}

JsonObject JsonObject::Object(const char* key) const {
  return JsonObject(Required(key, true, "an object"), At(key));
}

std::vector<JsonObject> JsonObject::Objects(const char* key) const {
  const Json* value = Find(key);
  std::vector<JsonObject> objects;
  for (const Json& item : Required(key, value != nullptr && value->is_array(), "a list")) {
    objects.emplace_back(item, StrCat(At(key), "[", objects.size(), "]"));
  }
  return objects;
}

int64_t JsonObject::Integer(const char* key, int64_t most) const {
  try {
    return IntegerOf(Required(key, true, "an integer"), 0, most);
  } catch (const InputError& e) {
    throw InputError(StrCat(At(key), ": ", e.what()));
  }
}

void JsonObject::AllowOnly(std::initializer_list<std::string_view> keys) const {
  for (const auto& [key, value] : json_->items()) {
    if (std::ranges::find(keys, key) == keys.end())
      Refuse(key.c_str(), "and it may change the ids");
  }
}

void JsonObject::Refuse(const char* key, std::string_view hint) const {
  const Json* value = json_->Find(key);
  throw InputError(StrCat(At(key), ": ", value == nullptr ? "nothing" : Shown(*value),
                          " is not supported: ", hint));
}

}  // namespace lockstep::data
