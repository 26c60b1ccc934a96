#include "data/chat/chat_template.h"

#include <ctime>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "data/chat/syntax.h"
#include "data/utf8.h"

namespace lockstep::data {
namespace {

constexpr size_t kMaxTemplateBytes = size_t{1} << 20;

[[noreturn]] void ThrowAt(const std::string& origin, const chat::LocatedFailure& failure) {
  throw InputError(StrCat(origin, ", line ", failure.position.line, ", column ",
                          failure.position.column, ": ", failure.message));
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

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source, std::string origin)
    : default_(Parse(source, std::move(origin))) {}

ChatTemplate::ChatTemplate(const NamedTemplates& templates, const std::string& origin) {
  if (templates.empty()) {
    throw InputError(StrCat(origin, ": there is no chat_template; put the model's template into ",
                            "chat_template.jinja next to it"));
  }
  const auto find = [&](const char* name) {
    const auto it = templates.find(name);
    return it == templates.end() ? Parsed() : Parse(it->second.text, it->second.origin);
  };
  default_ = find("default");
  tool_use_ = find("tool_use");
  if (default_.syntax == nullptr) {
    throw InputError(StrCat(origin, ": no chat template is named \"default\"; there is ",
                            templates.begin()->first));
  }
}

ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

ChatTemplate::Parsed ChatTemplate::Parse(std::string_view source, std::string origin) {
  if (source.size() > kMaxTemplateBytes) {
    throw InputError(StrCat(origin, ": a chat template of ", source.size(),
                            " bytes is too long; at most ", kMaxTemplateBytes));
  }
  const size_t valid = ValidUtf8Prefix(source);
  if (valid != source.size()) {
    throw InputError(StrCat(origin, ": the chat template is not UTF-8 at byte ", valid));
  }
  try {
    auto syntax = std::make_unique<const chat::Syntax>(chat::Parse(source));
    return {std::move(origin), std::move(syntax)};
  } catch (const chat::LocatedFailure& failure) {
    ThrowAt(origin, failure);
  }
}

const ChatTemplate::Parsed& ChatTemplate::For(const OrderedJson& variables) const {
  const bool tools = variables.contains("tools") && !variables["tools"].is_null();
  return tools && tool_use_.syntax != nullptr ? tool_use_ : default_;
}

ChatTemplate ChatTemplate::Load(const std::string& path) {
  ChatTemplate chat_template(FindTemplates(path), path);
  const std::string config =
      path.ends_with(".json")
          ? path
          : JoinPath(IsDirectory(path) ? path : ParentPath(path), "tokenizer_config.json");
  if (PathExists(config)) {
    chat_template.set_special_tokens(SpecialTokens(ParseJson(ReadFile(config), config)));
  }
  return chat_template;
}

ChatTemplate ChatTemplate::FromConfig(const std::string& json, const std::string& origin) {
  ChatTemplate chat_template(TemplatesIn(json, origin), origin);
  chat_template.set_special_tokens(SpecialTokens(ParseJson(json, origin)));
  return chat_template;
}

RenderedChat ChatTemplate::Render(const OrderedJson& messages, const OrderedJson& variables,
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
  const Parsed& one = For(variables);
  try {
    auto [text, generation] =
        chat::Evaluate(*one.syntax, std::move(values), now_.value_or(std::time(nullptr)));
    return {std::move(text), std::move(generation)};
  } catch (const chat::LocatedFailure& failure) {
    ThrowAt(one.origin, failure);
  }
}

}  // namespace lockstep::data
