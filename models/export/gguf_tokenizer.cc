#include "models/export/gguf_tokenizer.h"

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "core/io/json.h"
#include "data/tokenizer/json_object.h"
#include "models/gpt/gguf/gguf_words.h"

namespace lockstep::models {
namespace {
using data::JsonObject;

// The steps of a pre_tokenizer, normalizer or post_processor: itself, or those of a Sequence.
std::vector<JsonObject> Steps(const JsonObject& root, const char* key, const char* items) {
  if (root.Find(key) == nullptr) return {};
  const JsonObject object = root.Object(key);
  if (object.String("type") == "Sequence") return object.Objects(items);
  return {object};
}

[[noreturn]] void RefuseSize(const data::Tokenizer& tokenizer, int64_t vocab_size,
                             const std::string& origin) {
  throw InputError(StrCat(origin, ": has ", tokenizer.vocab_size(),
                          " tokens, but the model's vocabulary has ", vocab_size,
                          ": it belongs to another model"));
}

// Characters or bytes: llama.cpp's "rwkv" takes the longest token that fits, and has no token for
// the end of a text unless one is named. It reads escapes.
GgufTokenizer FromUnits(const data::Tokenizer& tokenizer, int64_t vocab_size,
                        const std::string& origin) {
  if (tokenizer.vocab_size() > vocab_size) RefuseSize(tokenizer, vocab_size, origin);
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  bool ascii = true;
  for (int32_t id = 0; id < vocab_size; ++id) {
    const bool used = id < tokenizer.vocab_size();
    // What no text has.
    const std::string text = used ? tokenizer.TokenText(id) : StrCat("\xff\xff[PAD", id, "]");
    ascii = ascii && (!used || text.size() == 1);
    std::string escaped;
    for (const char c : text) {
      char code[5];
      std::snprintf(code, sizeof code, "\\x%02x", static_cast<uint8_t>(c));
      const bool plain = c > ' ' && c < 127 && c != '\\';
      escaped += plain ? std::string(1, c) : code;
    }
    tokens.push_back(std::move(escaped));
    types.push_back(used ? kNormal : kUnused);
  }
  GgufTokenizer out;
  if (!ascii) {
    out.differences.push_back("never ends cutting a text with a character that the model lacks");
  }
  out.metadata.emplace_back("tokenizer.ggml.model", std::string("rwkv"));
  out.metadata.emplace_back("tokenizer.ggml.tokens", std::move(tokens));
  out.metadata.emplace_back("tokenizer.ggml.token_type", std::move(types));
  return out;
}

class Converter {
 public:
  Converter(const data::Tokenizer& tokenizer, int64_t vocab_size, const std::string& origin)
      : tokenizer_(tokenizer),
        vocab_size_(vocab_size),
        origin_(origin),
        json_(ParseJson(tokenizer.ToJson(), origin)),
        root_(json_, origin + ":"),
        model_(root_.Object("model")) {}

  GgufTokenizer Convert() && {
    ReadTokens();
    byte_level_ = IsByteLevel();
    AddString("model", byte_level_ ? "gpt2" : "llama");
    if (byte_level_) {
      AddString("pre", std::string(WordsOf().name));
    } else {
      SetBytes();
    }
    Add("tokens", tokens_);
    Add("token_type", types_);
    if (byte_level_) {
      Add("merges", Merges());
    } else {
      Add("scores", Scores());
      Add("add_space_prefix", AddsSpace());
    }
    AddSpecials();
    return std::move(out_);
  }

 private:
  void Add(std::string_view key, GgufValue value) {
    out_.metadata.emplace_back(StrCat("tokenizer.ggml.", key), std::move(value));
  }
  void AddString(std::string_view key, std::string value) { Add(key, std::move(value)); }

  void ReadTokens() {
    const auto size = static_cast<size_t>(vocab_size_);
    tokens_.resize(size);
    types_.assign(size, kUnused);
    const Json& vocabulary = *model_.Find("vocab");
    for (const auto& [token, id] : vocabulary.items()) {
      const auto i = id.get<size_t>();
      if (i >= size) RefuseSize(tokenizer_, vocab_size_, origin_);
      tokens_[i] = token;
      types_[i] = kNormal;
    }
    const auto added =
        root_.Find("added_tokens") ? root_.Objects("added_tokens") : std::vector<JsonObject>();
    for (const JsonObject& token : added) {
      const std::string& content = token.String("content");
      const auto i = static_cast<size_t>(*tokenizer_.AddedId(content));
      if (i >= size) {
        Differ(StrCat("takes ", Quoted(content), ", of which the model knows nothing, for text"));
        continue;
      }
      tokens_[i] = content;
      types_[i] = token.Bool("special", false) ? kControl : kUserDefined;
      for (const char* field : {"single_word", "lstrip", "rstrip"}) {
        if (token.Bool(field, false))
          Differ(StrCat("ignores \"", field, "\" of ", Quoted(content)));
      }
    }
    if (const auto unknown = tokenizer_.special_ids().unk; unknown && *unknown < vocab_size_) {
      types_[static_cast<size_t>(*unknown)] = kUnknown;
    }
    for (size_t i = 0; i < size; ++i) {
      if (types_[i] == kUnused) tokens_[i] = StrCat("[PAD", i, "]");
    }
  }

  void SetBytes() {
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const std::string& t = tokens_[i];
      const bool hex = t.size() == 6 && t.starts_with("<0x") && t.ends_with('>') &&
                       t.find_first_not_of("0123456789ABCDEF", 3) == 5;
      if (types_[i] == kNormal && hex) types_[i] = kByte;
    }
    if (std::ranges::count(types_, kByte) != 256) {
      model_.Refuse("vocab", "llama.cpp needs tokens for all bytes, <0x00> to <0xFF>");
    }
  }

  bool IsByteLevel() const {
    return std::ranges::any_of(
        Steps(root_, "pre_tokenizer", "pretokenizers"),
        [](const JsonObject& step) { return step.String("type") == "ByteLevel"; });
  }

  const GgufWords& WordsOf() {
    std::string pattern;
    bool digits = false, supported = true;
    for (const JsonObject& step : Steps(root_, "pre_tokenizer", "pretokenizers")) {
      const std::string& type = step.String("type");
      if (type == "ByteLevel") {
        supported = supported && step.Bool("use_regex", true) == pattern.empty();
        if (step.Bool("add_prefix_space", true)) {
          step.Refuse("add_prefix_space", "llama.cpp puts no space in front");
        }
      } else if (type == "Digits") {
        digits = step.Bool("individual_digits", false);
        supported = supported && digits;
      } else if (type == "Split" && pattern.empty()) {
        const Json* regex = step.Object("pattern").Find("Regex");
        supported = supported && regex != nullptr && step.String("behavior") == "Isolated" &&
                    !step.Bool("invert", false);
        if (regex != nullptr) pattern = regex->get<std::string>();
      } else {
        supported = false;
      }
    }
    for (const JsonObject& step : Steps(root_, "normalizer", "normalizers")) {
      if (step.String("type") != "NFC") step.Refuse("type", "llama.cpp knows none here");
      Differ("does not compose accents (NFC): give it text that is");
    }
    const bool ignore = model_.Bool("ignore_merges", false);
    std::string hint;
    for (const GgufWords& pre : KnownGgufWords()) {
      if (!supported || pre.pattern != pattern || pre.digits != digits) continue;
      if (pre.ignore_merges == ignore) return pre;
      hint = StrCat("llama.cpp's \"", pre.name, "\" has ", pre.ignore_merges);
    }
    if (!hint.empty()) model_.Refuse("ignore_merges", hint);
    std::string names;
    for (const GgufWords& pre : KnownGgufWords())
      names += StrCat(names.empty() ? "" : ", ", pre.name);
    root_.Refuse("pre_tokenizer",
                 StrCat("llama.cpp cuts words only by patterns that it knows: ", names));
  }

  std::vector<std::pair<std::string, std::string>> MergePairs() const {
    std::vector<std::pair<std::string, std::string>> pairs;
    for (const Json& merge : *model_.Find("merges")) {  // checked by the tokenizer
      if (merge.is_string()) {
        const auto text = merge.get<std::string>();
        const size_t space = text.find(' ');
        pairs.emplace_back(text.substr(0, space), text.substr(space + 1));
      } else {
        pairs.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      }
    }
    return pairs;
  }

  std::vector<std::string> Merges() const {
    std::vector<std::string> merges;
    for (const auto& [left, right] : MergePairs()) merges.push_back(StrCat(left, " ", right));
    return merges;
  }

  // llama.cpp joins two neighbours whose text together is a token, the one with the highest score
  // first: minus the place among the tokens in the order in which merges make them. Those defined
  // by the user, which SentencePiece finds before, have 0, and what no merge makes comes last.
  std::vector<float> Scores() {
    std::unordered_map<std::string, size_t> ids;
    for (size_t i = 0; i < tokens_.size(); ++i) {
      if (types_[i] != kUnused) ids.emplace(tokens_[i], i);
    }
    const auto pairs = MergePairs();
    std::vector<float> scores(tokens_.size(), -static_cast<float>(pairs.size()) - 1);
    std::vector<int64_t> ways(tokens_.size(), 0);  // merges that make the token
    const std::string* last = nullptr;
    float place = 0;
    for (const auto& [left, right] : pairs) {
      const size_t i = ids.at(left + right);
      const bool again = last == &tokens_[i];
      if (types_[i] == kNormal && !again && ways[i] > 0) {
        RefuseMerges(tokens_[i], "do not follow one another");
      }
      if (!again) scores[i] = types_[i] == kNormal ? --place : 0;
      ++ways[i];
      last = &tokens_[i];
    }
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const bool is_added = types_[i] == kControl || types_[i] == kUserDefined;
      if (types_[i] == kNormal && ways[i] != Splits(tokens_[i], ids)) {
        RefuseMerges(tokens_[i], "are not all there are");
      }
      if (is_added && ways[i] == 0 && Splits(tokens_[i], ids) > 0) {
        Differ(StrCat("also makes the added token ", Quoted(tokens_[i]), " of two others"));
      }
    }
    return scores;
  }

  [[noreturn]] void RefuseMerges(const std::string& token, std::string_view what) const {
    throw InputError(StrCat(origin_, ": model.merges: those that make ", Quoted(token), " ", what,
                            ": only vocabularies that come from SentencePiece can be written to "
                            "GGUF, which has a score for each token instead"));
  }

  // In how many ways the token is two others.
  static int64_t Splits(const std::string& token,
                        const std::unordered_map<std::string, size_t>& ids) {
    int64_t splits = 0;
    for (size_t at = 1; at < token.size(); ++at) {
      if ((static_cast<uint8_t>(token[at]) & 0xC0) == 0x80) continue;  // inside of a character
      splits += ids.contains(token.substr(0, at)) && ids.contains(token.substr(at)) ? 1 : 0;
    }
    return splits;
  }

  // Whether a space is put in front of a text. Whatever else is done before the merges is refused.
  bool AddsSpace() {
    bool adds = false, replaces = false;
    for (const JsonObject& step : Steps(root_, "normalizer", "normalizers")) {
      const std::string& type = step.String("type");
      if (type == "Prepend" && step.String("prepend") == kGgufSpace) {
        adds = true;
      } else if (type == "Replace" && step.Object("pattern").String("String") == " " &&
                 step.String("content") == kGgufSpace) {
        replaces = true;
      } else {
        step.Refuse("type", "llama.cpp knows only spaces that become U+2581 here");
      }
    }
    for (const JsonObject& step : Steps(root_, "pre_tokenizer", "pretokenizers")) {
      const std::string& type = step.String("type");
      if (type == "Split" && replaces) continue;  // of the spaces that are no more
      if (type != "Metaspace" || step.Bool("split", true)) {
        step.Refuse("type", "llama.cpp does not cut such text into words");
      }
      replaces = true;
      const std::string scheme =
          step.Find("prepend_scheme") ? step.String("prepend_scheme") : "always";
      adds = scheme != "never";
      if (scheme == "first") {
        Differ("also puts a space in front of a text that follows a special token");
      }
      if (adds) Differ("puts a space in front of a text that begins with one, too");
    }
    if (!replaces) root_.Refuse("normalizer", "llama.cpp replaces spaces by U+2581");
    return adds;
  }

  void AddSpecials() {
    const data::SpecialIds ids = tokenizer_.special_ids();
    const auto add = [&](std::string_view key, std::optional<int32_t> id) {
      if (id && *id < vocab_size_) Add(key, static_cast<uint32_t>(*id));
    };
    add("bos_token_id", ids.bos);
    add("eos_token_id", ids.eos);
    add("unknown_token_id", ids.unk);
    add("padding_token_id", ids.pad);
    const auto only = [&](const std::vector<int32_t>& around, std::optional<int32_t> id) {
      const bool is = around.size() == 1 && id == around[0];
      if (!around.empty() && !is) {
        root_.Refuse("post_processor",
                     "llama.cpp puts bos before a text, eos after it, and nothing else");
      }
      return is;
    };
    Add("add_bos_token", only(ids.before, ids.bos));
    Add("add_eos_token", only(ids.after, ids.eos));
  }

  void Differ(std::string what) { out_.differences.push_back(std::move(what)); }

  const data::Tokenizer& tokenizer_;
  const int64_t vocab_size_;
  const std::string origin_;
  const Json json_;
  const JsonObject root_, model_;
  bool byte_level_ = false;
  std::vector<std::string> tokens_;
  std::vector<int32_t> types_;
  GgufTokenizer out_;
};

}  // namespace

GgufTokenizer ToGgufTokenizer(const data::Tokenizer& tokenizer, int64_t vocab_size,
                              const std::string& origin) {
  const bool units = tokenizer.name() == "char" || tokenizer.name() == "byte";
  if (units) return FromUnits(tokenizer, vocab_size, origin);
  return Converter(tokenizer, vocab_size, origin).Convert();
}

}  // namespace lockstep::models
