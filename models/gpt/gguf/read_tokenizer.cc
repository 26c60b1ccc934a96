// tokenizer.json and tokenizer_config.json of a GGUF file.
#include <algorithm>
#include <cctype>
#include <optional>
#include <unordered_map>

#include "core/io/json.h"
#include "data/tokenizer/bpe_json.h"
#include "data/utf8.h"
#include "models/gpt/gguf/gguf_reader.h"
#include "models/gpt/gguf/gguf_words.h"

namespace lockstep::models {
namespace {

constexpr char kHint[] =
    ": name a folder that has the model's tokenizer with --data.tokenizer=FOLDER (sample_gpt, "
    "evaluate, export_gpt: --tokenizer=FOLDER)";

// "\x0a" is a line feed, as llama.cpp reads the tokens of "rwkv".
std::string Unescaped(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool hex = text[i] == '\\' && i + 3 < text.size() && text[i + 1] == 'x' &&
                     std::isxdigit(static_cast<unsigned char>(text[i + 2])) != 0 &&
                     std::isxdigit(static_cast<unsigned char>(text[i + 3])) != 0;
    out += hex ? static_cast<char>(std::stoi(text.substr(i + 2, 2), nullptr, 16)) : text[i];
    if (hex) i += 3;
  }
  return out;
}

class TokenizerReader {
 public:
  explicit TokenizerReader(const GgufFile& file)
      : f_(file.metadata()), origin_(file.source() + ": tokenizer.ggml") {}

  std::unique_ptr<data::Tokenizer> Read() && {
    const std::string model = f_.Text("tokenizer.ggml.model", "");
    if (model.empty()) return nullptr;
    ReadTokens();
    if (model == "rwkv") return FromUnits();
    if (model != "gpt2" && model != "llama") {
      f_.Fail("tokenizer.ggml.model",
              StrCat("is \"", model, "\"; Lockstep reads gpt2, llama, and rwkv as it writes it",
                     kHint));
    }
    const GgufWords* words = model == "gpt2" ? &Words() : nullptr;
    const Json json = words != nullptr ? ByteLevel(*words) : SentencePiece();
    return data::Tokenizer::FromJson(json.dump(), origin_, Config().dump());
  }

 private:
  const Json& List(const char* key, bool (Json::*has)() const) const {
    const Json& list = f_.Array(key);
    if (!std::all_of(list.begin(), list.end(), [&](const Json& one) { return (one.*has)(); })) {
      f_.Fail(key, "has an element of another type than its tokens need");
    }
    return list;
  }

  // With an element for each token, or none.
  const Json& PerToken(const char* key, bool (Json::*has)() const) const {
    const Json& list = List(key, has);
    if (list.empty() || list.size() == tokens_.size()) return list;
    f_.Fail(key, StrCat("has ", list.size(), " elements for ", tokens_.size(), " tokens"));
  }

  void ReadTokens() {
    tokens_ = List("tokenizer.ggml.tokens", &Json::is_string).get<std::vector<std::string>>();
    if (tokens_.empty()) f_.Fail("tokenizer.ggml.tokens", "is missing");
    const Json& types = PerToken("tokenizer.ggml.token_type", &Json::is_number_integer);
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const int64_t type = types.empty() ? int64_t{kNormal} : IntegerOf(types[i]);
      const bool padding = type == kUnused && tokens_[i].ends_with(StrCat("[PAD", i, "]"));
      types_.push_back(type == kUnused && !padding ? int64_t{kNormal} : type);
    }
  }

  // What a text can hold: all but the padding.
  bool IsToken(size_t i) const { return types_[i] != kUnused; }
  bool IsAdded(size_t i) const { return types_[i] == kControl || types_[i] == kUserDefined; }

  std::unique_ptr<data::Tokenizer> FromUnits() const {
    std::string all;
    for (size_t i = 0; i < tokens_.size(); ++i) {
      if (IsToken(i)) all += Unescaped(tokens_[i]);
    }
    const auto count =
        std::count_if(types_.begin(), types_.end(), [](int64_t type) { return type != kUnused; });
    for (const char* kind : {"byte", "char"}) {
      std::unique_ptr<data::Tokenizer> made;
      try {
        made = data::MakeTokenizer(kind, all);
      } catch (const InputError&) {
        continue;  // no UTF-8
      }
      bool same = made->vocab_size() == count;
      for (int32_t id = 0; same && id < count; ++id) {
        const auto i = static_cast<size_t>(id);
        same = IsToken(i) && made->TokenText(id) == Unescaped(tokens_[i]);
      }
      if (same) return made;
    }
    f_.Fail("tokenizer.ggml.tokens",
            StrCat("of \"rwkv\" are neither all bytes nor characters in ascending order, as ",
                   "Lockstep writes them", kHint));
  }

  const GgufWords& Words() const {
    const std::string given = f_.Text("tokenizer.ggml.pre", "default");
    const std::string name = given == "llama3" || given == "llama-v3" ? "llama-bpe" : given;
    std::string all;
    for (const GgufWords& words : KnownGgufWords()) {
      if (words.name == name) return words;
      all += StrCat(all.empty() ? "" : ", ", words.name);
    }
    f_.Fail("tokenizer.ggml.pre",
            StrCat("is \"", given, "\", a cut into words that Lockstep does not know; it knows ",
                   all, kHint));
  }

  // With or without the added ones.
  Json Vocabulary(bool with_added) const {
    Json vocabulary = Json::object();
    for (size_t i = 0; i < tokens_.size(); ++i) {
      if (!IsToken(i) || (IsAdded(i) && !with_added)) continue;
      if (data::ValidUtf8Prefix(tokens_[i]) < tokens_[i].size()) {
        f_.Fail("tokenizer.ggml.tokens",
                StrCat("has ", Quoted(tokens_[i]), ", which is not UTF-8"));
      }
      if (!vocabulary.emplace(tokens_[i], i)) {
        f_.Fail("tokenizer.ggml.tokens", StrCat("has ", Quoted(tokens_[i]), " twice, as ",
                                                vocabulary[tokens_[i]], " and ", i));
      }
    }
    return vocabulary;
  }

  Json Added() const {
    Json added = Json::array();
    for (size_t i = 0; i < tokens_.size(); ++i) {
      if (!IsAdded(i) && types_[i] != kUnknown) continue;
      Json token = data::SpecialTokenJson<Json>(i, tokens_[i]);
      token["special"] = types_[i] != kUserDefined;
      added.push_back(std::move(token));
    }
    return added;
  }

  Json ByteLevel(const GgufWords& words) const {
    const Json gpt2 = data::ByteLevelJson<Json>(/*add_prefix_space=*/false);
    Json bytes = gpt2, cuts = Json::array();
    bytes["use_regex"] = words.pattern.empty();
    if (words.digits) cuts.push_back({{"type", "Digits"}, {"individual_digits", true}});
    if (!words.pattern.empty()) {
      cuts.push_back({{"type", "Split"},
                      {"pattern", {{"Regex", words.pattern}}},
                      {"behavior", "Isolated"},
                      {"invert", false}});
    }
    cuts.push_back(bytes);
    // All models with Qwen2's cut compose accents, which GGUF does not say.
    const Json normalizer = words.name == "qwen2" ? Json{{"type", "NFC"}} : Json(nullptr);
    Json json = data::ByteLevelBpeJson<Json>(
        Vocabulary(/*with_added=*/false), List("tokenizer.ggml.merges", &Json::is_string), Added(),
        normalizer, {{"type", "Sequence"}, {"pretokenizers", cuts}}, gpt2);
    json["model"]["ignore_merges"] = words.ignore_merges;
    json["post_processor"] = Around(words.ignore_merges);
    return json;
  }

  Json SentencePiece() const {
    Json model = data::BpeModelJson<Json>(Vocabulary(/*with_added=*/true), Merges());
    model["fuse_unk"] = model["byte_fallback"] = true;
    const auto unknown = std::ranges::find(types_, int64_t{kUnknown});
    if (unknown != types_.end()) model["unk_token"] = tokens_[unknown - types_.begin()];
    const bool prefix = f_.Bool("tokenizer.ggml.add_space_prefix", true);
    const auto replace = [](std::string_view from, std::string_view to) {
      return Json{{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
    };
    Json steps = Json::array();
    if (prefix) steps.push_back({{"type", "Prepend"}, {"prepend", kGgufSpace}});
    steps.push_back(replace(" ", kGgufSpace));
    Json back = Json::array(
        {replace(kGgufSpace, " "), Json{{"type", "ByteFallback"}}, Json{{"type", "Fuse"}}});
    if (prefix) {
      back.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    }
    Json json = data::TokenizerFileJson<Json>(model, Added(),
                                              {{"type", "Sequence"}, {"normalizers", steps}},
                                              nullptr, {{"type", "Sequence"}, {"decoders", back}});
    json["post_processor"] = Around(/*bos=*/true);
    return json;
  }

  // All that make a token, the one with the highest score first, as transformers makes them of
  // SentencePiece's files.
  Json Merges() const {
    const Json& scores = PerToken("tokenizer.ggml.scores", &Json::is_number);
    if (scores.empty()) f_.Fail("tokenizer.ggml.scores", "is missing");
    std::unordered_map<std::string_view, size_t> ids;
    std::vector<size_t> order;
    for (size_t i = 0; i < tokens_.size(); ++i) {
      if (!IsToken(i)) continue;
      ids.emplace(tokens_[i], i);
      if (types_[i] == kNormal) order.push_back(i);
    }
    std::ranges::stable_sort(order, [&](size_t a, size_t b) {
      return scores[a].get<double>() > scores[b].get<double>();
    });
    Json merges = Json::array();
    for (const size_t i : order) {
      const std::string_view token = tokens_[i];
      if (token.size() > kMaxTokenBytes) {
        f_.Fail("tokenizer.ggml.tokens", StrCat("has one of ", token.size(), " bytes"));
      }
      std::vector<std::pair<size_t, size_t>> splits;
      for (size_t at = 1; at < token.size(); ++at) {
        if ((static_cast<uint8_t>(token[at]) & 0xC0) == 0x80) continue;  // inside of a character
        const auto left = ids.find(token.substr(0, at)), right = ids.find(token.substr(at));
        if (left != ids.end() && right != ids.end())
          splits.emplace_back(left->second, right->second);
      }
      std::ranges::sort(splits);
      for (const auto& [left, right] : splits) merges.push_back({tokens_[left], tokens_[right]});
    }
    return merges;
  }

  std::optional<size_t> Special(const char* key) const {
    if (!f_.Has(key)) return std::nullopt;
    const int64_t id = f_.Integer(key);
    if (id < 0 || id >= std::ssize(tokens_) || !IsToken(static_cast<size_t>(id))) {
      f_.Fail(key, StrCat("is ", id, ", and there is no such token"));
    }
    return static_cast<size_t>(id);
  }

  // The post_processor. `bos`: whether bos comes first if the file does not say.
  Json Around(bool bos) const {
    Json single = Json::array(), tokens = Json::object();
    const auto add = [&](const char* key, const char* of, bool usual) {
      const std::optional<size_t> id = Special(of);
      if (!f_.Bool(key, usual) || !id) return;
      const std::string& text = tokens_[*id];
      single.push_back({{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
      tokens[text] = {{"id", text}, {"ids", Json::array({*id})}, {"tokens", Json::array({text})}};
    };
    add("tokenizer.ggml.add_bos_token", "tokenizer.ggml.bos_token_id", bos);
    single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
    add("tokenizer.ggml.add_eos_token", "tokenizer.ggml.eos_token_id", false);
    if (tokens.empty()) return nullptr;
    Json pair = single;
    pair.push_back({{"Sequence", {{"id", "B"}, {"type_id", 1}}}});
    return {{"type", "TemplateProcessing"},
            {"single", single},
            {"pair", pair},
            {"special_tokens", tokens}};
  }

  Json Config() const {
    Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                   {"clean_up_tokenization_spaces", false}};
    for (const auto& [key, of] : {std::pair("bos_token", "tokenizer.ggml.bos_token_id"),
                                  {"eos_token", "tokenizer.ggml.eos_token_id"},
                                  {"unk_token", "tokenizer.ggml.unknown_token_id"},
                                  {"pad_token", "tokenizer.ggml.padding_token_id"}}) {
      if (const std::optional<size_t> id = Special(of)) config[key] = tokens_[*id];
    }
    constexpr char kTemplate[] = "tokenizer.chat_template";
    Json named = Json::array();
    const auto add = [&](const std::string& name, const std::string& key) {
      const std::string text = f_.Text(key.c_str(), "");
      if (!text.empty()) named.push_back({{"name", name}, {"template", text}});
    };
    add("default", kTemplate);
    const Json& names = List("tokenizer.chat_templates", &Json::is_string);
    for (const Json& name : names) add(name, StrCat(kTemplate, ".", name.get<std::string>()));
    if (named.size() == 1 && named[0]["name"] == "default") {
      config["chat_template"] = named[0]["template"];
    } else if (!named.empty()) {
      config["chat_template"] = named;
    }
    return config;
  }

  // Longer ones would take long to split.
  static constexpr size_t kMaxTokenBytes = 4096;

  const Fields f_;
  const std::string origin_;
  std::vector<std::string> tokens_;
  std::vector<int64_t> types_;  // GgufTokenType
};

}  // namespace

std::unique_ptr<data::Tokenizer> TokenizerOf(const GgufFile& file) {
  return TokenizerReader(file).Read();
}

}  // namespace lockstep::models
