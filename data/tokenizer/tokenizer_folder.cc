// The tokenizer of a folder: which files there are, and what each says beside the others.
#include <algorithm>
#include <map>
#include <vector>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "data/tokenizer/gpt2_files.h"
#include "data/tokenizer/json_object.h"
#include "data/tokenizer/tokenizer_json.h"

namespace lockstep::data {
namespace {

constexpr const char* kFile = "tokenizer.json";
constexpr const char* kConfig = "tokenizer_config.json";
constexpr const char* kDecoder = "added_tokens_decoder";
constexpr const char* kGpt2Class = "GPT2Tokenizer";
constexpr const char* kQwen2Class = "Qwen2Tokenizer";
// OpenAI's names, then Hugging Face's.
constexpr const char* kVocabularyFiles[][2] = {{"encoder.json", "vocab.bpe"},
                                               {"vocab.json", "merges.txt"}};
constexpr const char* kNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                  "pad_token", "cls_token", "mask_token"};
constexpr const char* kMoreNames[] = {"additional_special_tokens", "extra_special_tokens"};
// Of kinds that are not read.
constexpr const char* kOtherFiles[] = {"tokenizer.model", "spiece.model", "sentencepiece.bpe.model",
                                       "tiktoken.model",  "tekken.json",  "vocab.txt",
                                       "vocab.json",      "merges.txt",   "qwen.tiktoken"};

// The largest vocabularies have some 40 MB. Parsed, a file takes several times its size.
constexpr int64_t kMaxFileBytes = int64_t{1} << 28;

std::string ReadVocabulary(const std::string& path) {
  if (const int64_t size = OpenForReading(path).size(); size > kMaxFileBytes) {
    throw InputError(
        StrCat(path, ": ", size, " bytes are too many for a tokenizer: at most ", kMaxFileBytes));
  }
  return ReadFile(path);
}

Json ReadObject(const std::string& folder, const char* name) {
  const std::string path = JoinPath(folder, name);
  return PathExists(path) ? ParseJsonObject(ReadVocabulary(path), path) : Json();
}

[[noreturn]] void RefuseKind(const std::string& folder, const std::string& what) {
  throw InputError(StrCat(folder, ": ", what,
                          ", which is not supported. Let transformers write tokenizer.json: "
                          "AutoTokenizer.from_pretrained(\"",
                          folder, "\").save_pretrained(\"", folder, "\")"));
}

// A token is a string, or an object with "content".
std::string ContentOf(const Json& token) {
  const Json content = token.is_object() ? token.value("content", Json()) : token;
  return content.is_string() ? content.get<std::string>() : "";
}

// The tokens with a role, in the order in which transformers adds those that it lacks.
Json NamedTokens(const Json& config) {
  Json tokens = Json::array();
  const auto add = [&](const Json& token) {
    if (!ContentOf(token).empty()) tokens.push_back(token);
  };
  if (config.is_null()) return tokens;
  for (const char* key : kNames) add(config.value(key, Json()));
  for (const char* key : kMoreNames) {
    const Json more = config.value(key, Json());
    if (more.is_object()) {
      for (const auto& [role, token] : more.items()) add(token);
    } else if (more.is_array()) {
      for (const Json& token : more) add(token);
    } else {
      add(more);
    }
  }
  return tokens;
}

// Of an id, which is checked later.
int64_t IntegerOr0(const Json& id) { return id.is_number_integer() ? id.get<int64_t>() : 0; }

bool Has(const Json& tokens, const std::string& content) {
  return std::ranges::any_of(tokens, [&](const Json& t) { return ContentOf(t) == content; });
}

// tokenizer_config.json, and where it has no added_tokens_decoder, what older versions of
// transformers wrote into files of their own. `added`: the added tokens of tokenizer.json, if any.
Json ReadConfig(const std::string& folder, const Json& added) {
  Json config = ReadObject(folder, kConfig);
  if (config.contains(kDecoder)) return config;
  const Json map = ReadObject(folder, "special_tokens_map.json");
  for (const auto& [key, token] : map.items()) config[key] = token;
  const Json named = NamedTokens(config), tokens = ReadObject(folder, "added_tokens.json");
  for (const auto& [content, id] : tokens.items()) {
    if (Has(added, content)) continue;
    const bool special = Has(named, content);
    config[kDecoder][id.dump()] = {
        {"content", content}, {"normalized", !special}, {"special", special}};
  }
  return config;
}

// Adds to a tokenizer.json the tokens that only the config has, as transformers does.
class AddedTokens {
 public:
  AddedTokens(const Json& config, const std::string& folder, Json* json)
      : config_(config), file_(JoinPath(folder, kConfig)), vocab_(json->at("model").at("vocab")) {
    added_ = &(*json)["added_tokens"];
    if (!added_->is_array()) *added_ = Json::array();
    next_id_ = std::ssize(vocab_);
    for (size_t i = 0; i < added_->size(); ++i) {
      const JsonObject entry((*added_)[i], "added_tokens");
      places_[ContentOf((*added_)[i])] = i;
      if (entry.Find("id")) next_id_ = std::max(next_id_, IntegerOr0(*entry.Find("id")) + 1);
    }
  }

  // `all`: also names of tokens that have no id yet. Whether anything was missing.
  bool Add(bool all) {
    const Json named = NamedTokens(config_);
    for (const auto& [id, token] : InOrder()) {
      const std::string content = ContentOf(token);
      Put(content, token, Has(named, content), id);
    }
    for (const Json& token : named) {
      const std::string content = ContentOf(token);
      if (places_.contains(content)) continue;
      if (all || vocab_.contains(content)) Put(content, token, /*named=*/true, next_id_);
    }
    return changed_;
  }

 private:
  std::vector<std::pair<int64_t, Json>> InOrder() const {
    std::vector<std::pair<int64_t, Json>> tokens;
    const JsonObject config(config_, file_ + ":");
    if (config.Find(kDecoder) == nullptr) return tokens;
    const JsonObject decoder = config.Object(kDecoder);
    for (const auto& [id, token] : config_[kDecoder].items()) {
      const bool number = id.size() < 10 && id.find_first_not_of("0123456789") == id.npos;
      if (id.empty() || !number) decoder.Refuse(id.c_str(), "its key is not an id");
      decoder.Object(id.c_str()).String("content");
      tokens.emplace_back(std::stoll(id), token);
    }
    std::ranges::sort(tokens, {}, [](const auto& token) { return token.first; });
    return tokens;
  }

  int64_t IdOf(const std::string& content, int64_t given) const {
    if (vocab_.contains(content)) return IntegerOr0(vocab_[content]);
    if (given == next_id_) return given;
    throw InputError(StrCat(file_, ": ", kDecoder, ".", given, ": transformers gives ",
                            Quoted(content), " the id ", next_id_,
                            ", the next one that is free: number it so"));
  }

  void Put(const std::string& content, const Json& token, bool named, int64_t given) {
    const auto flag = [&](const char* key, bool otherwise) {
      if (!token.is_object()) return otherwise;
      return JsonObject(token, StrCat(file_, ": ", Quoted(content))).Bool(key, otherwise);
    };
    const bool special = named || flag("special", false);
    const auto known = places_.find(content);
    const bool is_new = known == places_.end();
    if (is_new) added_->push_back(Json());
    Json& entry = is_new ? added_->back() : (*added_)[known->second];
    Json made = {{"id", is_new ? Json(IdOf(content, given)) : entry["id"]},
                 {"content", content},
                 {"single_word", flag("single_word", false)},
                 {"lstrip", flag("lstrip", false)},
                 {"rstrip", flag("rstrip", false)},
                 {"normalized", flag("normalized", !special)},
                 {"special", special}};
    if (made == entry) return;
    entry = std::move(made);
    changed_ = true;
    if (!is_new) return;
    places_[content] = added_->size() - 1;
    next_id_ = std::max(next_id_, IntegerOr0(entry["id"]) + 1);
  }

  const Json& config_;
  const std::string file_;
  const Json& vocab_;
  Json* added_;
  std::map<std::string, size_t> places_;  // in added_, by content
  int64_t next_id_ = 0;
  bool changed_ = false;
};

// Where a slow tokenizer puts bos before a text, or eos after it.
Json PostProcessor(const Json& config, const Json& added, const std::string& folder) {
  Json single = Json::array(), tokens = Json::object();
  const auto add = [&](const char* adds, const char* key) {
    if (config.value(adds, Json()) != true) return;
    const std::string content = ContentOf(config.value(key, Json()));
    const auto token =
        std::ranges::find_if(added, [&](const Json& entry) { return ContentOf(entry) == content; });
    if (token == added.end()) {
      throw InputError(
          StrCat(JoinPath(folder, kConfig), ": ", adds, " is true, but there is no ", key));
    }
    single.push_back({{"SpecialToken", {{"id", content}, {"type_id", 0}}}});
    tokens[content] = {{"id", content}, {"ids", {(*token)["id"]}}, {"tokens", {content}}};
  };
  add("add_bos_token", "bos_token");
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  add("add_eos_token", "eos_token");
  if (tokens.empty()) return nullptr;
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", {single.at(0), {{"Sequence", {{"id", "B"}, {"type_id", 0}}}}}},
          {"special_tokens", tokens}};
}

std::string ConfigText(const Json& config, const std::string& folder) {
  if (config.is_null()) return "";
  const std::string path = JoinPath(folder, kConfig);
  const std::string own = PathExists(path) ? ReadFile(path) : "";
  return !own.empty() && ParseJson(own, path) == config ? own : config.dump(2) + "\n";
}

std::unique_ptr<Tokenizer> FromFile(const std::string& folder, const std::string& path) {
  std::string text = ReadVocabulary(path);
  Json json = ParseJsonObject(text, path);
  if (!path.ends_with(kFile) || json.contains("format")) return Tokenizer::FromJson(text, path);
  const Json config = ReadConfig(folder, json.value("added_tokens", Json::array()));
  const Json model = json.value("model", Json());
  if (config.is_object() && model.is_object() && model.value("vocab", Json()).is_object()) {
    if (AddedTokens(config, folder, &json).Add(/*all=*/false)) text = json.dump() + "\n";
  }
  return Tokenizer::FromJson(text, path, ConfigText(config, folder));
}

// The class that transformers takes for vocab.json and merges.txt.
std::string ClassOf(const std::string& folder, const Json& config) {
  const Json model = ReadObject(folder, "config.json");
  for (const Json* source : {&config, &model}) {
    std::string name = source->is_null() ? "" : ContentOf(source->value("tokenizer_class", Json()));
    if (name.ends_with("Fast")) name.resize(name.size() - 4);
    if (!name.empty()) return name;
  }
  const std::string type = model.is_null() ? "" : ContentOf(model.value("model_type", Json()));
  if (type.starts_with("qwen2") || type.starts_with("qwen3")) return kQwen2Class;
  if (type == "gpt2" || type.empty()) return kGpt2Class;
  RefuseKind(folder, StrCat("vocab.json and merges.txt of a model of type \"", type, "\", without ",
                            "a tokenizer_class in ", kConfig));
}

std::unique_ptr<Tokenizer> FromVocabulary(const std::string& folder, const char* tokens_name,
                                          const char* merges_name) {
  const Json config = ReadConfig(folder, Json::array());
  const std::string kind = ClassOf(folder, config);
  const bool qwen = kind == kQwen2Class;
  if (!qwen && kind != kGpt2Class) {
    RefuseKind(folder, StrCat(tokens_name, " and ", merges_name, " of the class ", kind));
  }
  const std::string tokens = JoinPath(folder, tokens_name), merges = JoinPath(folder, merges_name);
  Json named = config.is_null() ? Json::object() : config;
  Json json = VocabularyJson(
      ParseJsonObject(ReadVocabulary(tokens), tokens), MergesOf(ReadVocabulary(merges), merges),
      {.qwen2 = qwen, .add_prefix_space = named.value("add_prefix_space", Json()) == true});
  for (const char* key : {"unk_token", "eos_token", qwen ? "pad_token" : "bos_token"}) {
    const bool has = json["model"]["vocab"].contains(kEndOfText);
    if (has && !named.contains(key)) named[key] = kEndOfText;
  }
  AddedTokens(named, folder, &json).Add(/*all=*/true);
  json["post_processor"] = PostProcessor(named, json["added_tokens"], folder);
  return Tokenizer::FromJson(json.dump() + "\n", StrCat(tokens, " and ", merges),
                             ConfigText(config, folder));
}

}  // namespace

std::unique_ptr<Tokenizer> LoadTokenizer(const std::string& path) {
  const bool is_folder = IsDirectory(path);
  const std::string folder = is_folder ? path : ParentPath(path);
  const auto is = [&](const char* name) {
    return is_folder ? PathExists(JoinPath(folder, name)) : BaseName(path) == name;
  };
  if (is_folder && is(kFile)) return FromFile(folder, JoinPath(folder, kFile));
  for (const auto& [tokens, merges] : kVocabularyFiles) {
    const bool both = is(tokens) && is(merges);
    if (is_folder ? both : is(tokens) || is(merges)) return FromVocabulary(folder, tokens, merges);
  }
  for (const char* name : kOtherFiles) {
    if (is(name)) RefuseKind(folder, StrCat("the tokenizer is in ", name));
  }
  if (!is_folder) return FromFile(folder, path);
  throw InputError(StrCat(folder,
                          ": no tokenizer in this folder: expected tokenizer.json, or "
                          "encoder.json and vocab.bpe, or vocab.json and merges.txt"));
}

bool HasTokenizer(const std::string& folder) {
  const auto has = [&](const char* name) { return PathExists(JoinPath(folder, name)); };
  return has(kFile) || has(kVocabularyFiles[0][0]) || std::ranges::any_of(kOtherFiles, has);
}

}  // namespace lockstep::data
