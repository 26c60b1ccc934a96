#include "data/conversations/model_template.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"

namespace lockstep::data {
namespace {

constexpr const char* kConfig = "tokenizer_config.json";
constexpr const char* kKey = "chat_template";
constexpr int64_t kNoon = 1721995200;  // of July 26, 2024, so that it is that day in any time zone

std::string FindTemplate(const std::string& path, const std::vector<std::string>& folders) {
  if (!path.empty()) return path;
  std::string searched;
  for (const std::string& folder : folders) {
    if (HasChatTemplate(folder)) return folder;
    searched += (searched.empty() ? " in " : ", ") + folder;
  }
  throw InputError(StrCat("conversations need the model's chat template, and there is none",
                          searched,
                          ": name one with --data.chat_template=FILE (sample_gpt: "
                          "--chat_template=FILE), or a folder with chat_template.jinja or ",
                          kConfig));
}

// The entry of tokenizer_config.json that holds them.
Json EntryOf(const NamedTemplates& templates) {
  if (templates.size() == 1 && templates.contains("default")) return templates.at("default").text;
  Json list = Json::array();
  for (const auto& [name, one] : templates)
    list.push_back({{"name", name}, {"template", one.text}});
  return list;
}

Json ConfigOf(const Tokenizer& tokenizer) {
  const std::string config = tokenizer.ConfigJson();
  return config.empty() ? Json::object() : ParseJson(config, kConfig);
}

// Special tokens that its ConfigJson has not are those given.
std::shared_ptr<const Tokenizer> WithTemplates(
    std::shared_ptr<const Tokenizer> tokenizer, const NamedTemplates& templates,
    const std::map<std::string, std::string>& special_tokens) {
  Json config = ConfigOf(*tokenizer), entry = EntryOf(templates);
  if (config.value(kKey, Json()) == entry) return tokenizer;
  config[kKey] = std::move(entry);
  for (const auto& [key, token] : special_tokens) {
    if (!config.contains(key)) config[key] = token;
  }
  return Tokenizer::FromJson(tokenizer->ToJson(), "the tokenizer", config.dump(2));
}

// The special tokens' names and texts: of the template, then of the tokenizer.
std::map<std::string, std::string> SpecialTokens(const ChatTemplate& chat_template,
                                                 const Tokenizer& tokenizer, const Json& config) {
  std::map<std::string, std::string> tokens = chat_template.special_tokens();
  for (const auto& [key, value] : config.items()) {
    if (!key.ends_with("_token")) continue;
    const Json& content = value.is_object() ? value.value("content", Json()) : value;
    if (content.is_string()) tokens.try_emplace(key, content.get<std::string>());
  }
  const SpecialIds ids = tokenizer.special_ids();
  if (ids.bos) tokens.try_emplace("bos_token", tokenizer.TokenText(*ids.bos));
  if (ids.eos) tokens.try_emplace("eos_token", tokenizer.TokenText(*ids.eos));
  return tokens;
}

void Settle(const Tokenizer& tokenizer, const Json& config, ChatTemplate* chat_template) {
  chat_template->set_special_tokens(SpecialTokens(*chat_template, tokenizer, config));
  chat_template->set_now(kNoon);
}

}  // namespace

bool HasChatTemplate(const std::string& folder) {
  return IsDirectory(folder) && !FindTemplates(folder).empty();
}

ModelTemplate LoadModelTemplate(const std::string& path, const std::vector<std::string>& folders,
                                std::shared_ptr<const Tokenizer> tokenizer) {
  const bool in_folders = !path.empty() || std::ranges::any_of(folders, HasChatTemplate);
  if (!in_folders && ConfigOf(*tokenizer).contains(kKey)) {
    std::shared_ptr<const ChatTemplate> own = TemplateOf(*tokenizer);
    return {std::move(own), std::move(tokenizer)};
  }
  const std::string found = FindTemplate(path, folders);
  auto chat_template = std::make_shared<ChatTemplate>(ChatTemplate::Load(found));
  Settle(*tokenizer, ConfigOf(*tokenizer), chat_template.get());
  tokenizer =
      WithTemplates(std::move(tokenizer), FindTemplates(found), chat_template->special_tokens());
  return {std::move(chat_template), std::move(tokenizer)};
}

std::shared_ptr<const Tokenizer> KeepTemplates(const std::vector<std::string>& folders,
                                               std::shared_ptr<const Tokenizer> tokenizer) {
  const auto found = std::ranges::find_if(folders, HasChatTemplate);
  if (found == folders.end()) return tokenizer;
  return WithTemplates(std::move(tokenizer), FindTemplates(*found), {});
}

std::shared_ptr<const ChatTemplate> TemplateOf(const Tokenizer& tokenizer) {
  const std::string config = tokenizer.ConfigJson();
  auto chat_template = std::make_shared<ChatTemplate>(
      ChatTemplate::FromConfig(config.empty() ? "{}" : config, "the tokenizer"));
  Settle(tokenizer, Json::object(), chat_template.get());
  return chat_template;
}

}  // namespace lockstep::data
