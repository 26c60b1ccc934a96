#include "data/chat/chat_template.h"

#include <ctime>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "data/chat/syntax.h"
#include "data/utf8.h"

namespace lockstep::data {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxTemplateBytes = size_t{1} << 20;
constexpr const char* kConfig = "tokenizer_config.json";
constexpr const char* kJinja = "chat_template.jinja";

[[noreturn]] void ThrowAt(const std::string& origin, const chat::LocatedFailure& failure) {
  throw InputError(StrCat(origin, ", line ", failure.position.line, ", column ",
                          failure.position.column, ": ", failure.message));
}

Json ParseConfig(const std::string& text, const std::string& origin) {
  Json config = ParseJson(text, origin);
  if (!config.is_object()) throw InputError(StrCat(origin, ": expected a JSON object"));
  return config;
}

// The tokens whose keys end in _token: texts, or objects with "content".
std::map<std::string, std::string> SpecialTokens(const Json& config) {
  std::map<std::string, std::string> tokens;
  for (const auto& [key, value] : config.items()) {
    if (!key.ends_with("_token")) continue;
    const Json& content = value.is_object() && value.contains("content") ? value["content"] : value;
    if (content.is_string()) tokens[key] = content.get<std::string>();
  }
  return tokens;
}

std::string SourceOf(const Json& config, const std::string& path, const std::string& name) {
  const Json& given = config.value("chat_template", Json());
  if (given.is_string() && name == "default") return given.get<std::string>();
  std::string known = given.is_string() ? "default" : "";
  if (given.is_array()) {
    for (const Json& entry : given) {
      const bool valid = entry.is_object() && entry.value("name", Json()).is_string() &&
                         entry.value("template", Json()).is_string();
      if (!valid) {
        throw InputError(StrCat(path, ": each entry of chat_template must have a \"name\" and a ",
                                "\"template\""));
      }
      if (entry["name"] == name) return entry["template"].get<std::string>();
      known += (known.empty() ? "" : ", ") + entry["name"].get<std::string>();
    }
  }
  if (known.empty()) {
    throw InputError(StrCat(path, ": there is no chat_template; put the model's template into ",
                            kJinja, " next to it"));
  }
  throw InputError(
      StrCat(path, ": no chat template is named ", Quoted(name), "; there is ", known));
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source, std::string origin)
    : origin_(std::move(origin)) {
  if (source.size() > kMaxTemplateBytes) {
    throw InputError(StrCat(origin_, ": a chat template of ", source.size(),
                            " bytes is too long; at most ", kMaxTemplateBytes));
  }
  const size_t valid = ValidUtf8Prefix(source);
  if (valid != source.size()) {
    throw InputError(StrCat(origin_, ": the chat template is not UTF-8 at byte ", valid));
  }
  try {
    syntax_ = std::make_unique<const chat::Syntax>(chat::Parse(source));
  } catch (const chat::LocatedFailure& failure) {
    ThrowAt(origin_, failure);
  }
}

ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

ChatTemplate ChatTemplate::Load(const std::string& path, const std::string& name) {
  const bool is_folder = IsDirectory(path);
  const std::string folder = is_folder ? path : ParentPath(path);
  const std::string config_path =
      !is_folder && path.ends_with(".json") ? path : JoinPath(folder, kConfig);
  const std::string jinja_path = is_folder ? JoinPath(folder, kJinja) : path;
  const bool from_jinja =
      is_folder ? name == "default" && PathExists(jinja_path) : path != config_path;
  if (!from_jinja && !PathExists(config_path)) {
    throw InputError(StrCat(path, ": no chat template; expected ", kJinja, " or ", kConfig));
  }
  const Json config =
      PathExists(config_path) ? ParseConfig(ReadFile(config_path), config_path) : Json::object();
  ChatTemplate chat_template(
      from_jinja ? ReadFile(jinja_path) : SourceOf(config, config_path, name),
      from_jinja ? jinja_path : StrCat(config_path, ": chat_template"));
  chat_template.set_special_tokens(SpecialTokens(config));
  return chat_template;
}

ChatTemplate ChatTemplate::FromConfig(const std::string& json, const std::string& origin) {
  const Json config = ParseConfig(json, origin);
  ChatTemplate chat_template(SourceOf(config, origin, "default"),
                             StrCat(origin, ": chat_template"));
  chat_template.set_special_tokens(SpecialTokens(config));
  return chat_template;
}

RenderedChat ChatTemplate::Render(const nlohmann::ordered_json& messages,
                                  const nlohmann::ordered_json& variables,
                                  bool add_generation_prompt) const {
  if (!messages.is_array()) {
    throw InputError(StrCat("the messages of a chat must be a list, not ", messages.type_name()));
  }
  if (!variables.is_object() && !variables.is_null()) {
    throw InputError(
        StrCat("the variables of a chat template must be an object, not ", variables.type_name()));
  }
  chat::Budget budget(limits_);
  chat::Variables values;
  try {
    for (const auto& [name, token] : special_tokens_) {
      values.emplace_back(name, chat::Value::String(token));
    }
    values.emplace_back("tools", chat::Value());
    values.emplace_back("documents", chat::Value());
    for (const auto& [name, value] : variables.items()) {
      values.emplace_back(name, chat::Value::FromJson(value));
    }
    values.emplace_back("messages", chat::Value::FromJson(messages));
    values.emplace_back("add_generation_prompt", chat::Value::Bool(add_generation_prompt));
  } catch (const chat::TemplateFailure& failure) {
    throw InputError(StrCat("the messages or variables of a chat: ", failure.what()));
  }
  try {
    auto [text, generation] =
        chat::Evaluate(*syntax_, std::move(values), now_.value_or(std::time(nullptr)));
    return {std::move(text), std::move(generation)};
  } catch (const chat::LocatedFailure& failure) {
    ThrowAt(origin_, failure);
  }
}

}  // namespace lockstep::data
