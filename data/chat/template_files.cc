#include "data/chat/template_files.h"

#include <string_view>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"

namespace lockstep::data {
namespace {

constexpr std::string_view kEnd = ".jinja";

NamedTemplates InJinjaFiles(const std::string& folder) {
  NamedTemplates found;
  const auto add = [&](const std::string& name, const std::string& file) {
    found.insert_or_assign(name, TemplateText{ReadFile(file), file});
  };
  const std::string usual = JoinPath(folder, "chat_template.jinja");
  if (PathExists(usual)) add("default", usual);
  const std::string more = JoinPath(folder, "additional_chat_templates");
  if (!IsDirectory(more)) return found;
  for (const std::string& file : ListDirectory(more)) {
    if (file.ends_with(kEnd)) add(file.substr(0, file.size() - kEnd.size()), JoinPath(more, file));
  }
  return found;
}

}  // namespace

NamedTemplates TemplatesIn(const std::string& json, const std::string& origin) {
  const Json config = ParseJson(json, origin);
  if (!config.is_object()) throw InputError(StrCat(origin, ": expected a JSON object"));
  const Json given = config.value("chat_template", Json());
  const std::string place = StrCat(origin, ": chat_template");
  NamedTemplates found;
  if (given.is_string()) found["default"] = {given, place};
  if (!given.is_array()) return found;
  for (const Json& entry : given) {
    const bool valid = entry.is_object() && entry.value("name", Json()).is_string() &&
                       entry.value("template", Json()).is_string();
    if (!valid) {
      throw InputError(StrCat(origin, ": each entry of chat_template must have a \"name\" and a ",
                              "\"template\""));
    }
    const std::string name = entry["name"];
    found[name] = {entry["template"], name == "default" ? place : StrCat(place, " ", name)};
  }
  return found;
}

NamedTemplates FindTemplates(const std::string& path) {
  if (!IsDirectory(path)) {
    if (path.ends_with(".json")) return TemplatesIn(ReadFile(path), path);
    return {{"default", {ReadFile(path), path}}};
  }
  NamedTemplates found = InJinjaFiles(path);
  for (const char* name : {"tokenizer_config.json", "chat_template.json"}) {
    const std::string file = JoinPath(path, name);
    if (found.empty() && PathExists(file)) found = TemplatesIn(ReadFile(file), file);
  }
  return found;
}

}  // namespace lockstep::data
