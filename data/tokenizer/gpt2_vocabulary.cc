#include "data/tokenizer/gpt2_vocabulary.h"

#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>
#include <utility>

#include "core/error.h"
#include "core/io/json.h"
#include "data/tokenizer/tokenizer_json.h"
#include "data/utf8.h"

namespace lockstep::data {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kEndOfText = "<|endoftext|>";

bool StandsForItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

// byte -> code point.
const std::array<uint32_t, 256>& ByteAlphabet() {
  static const std::array<uint32_t, 256> alphabet = [] {
    std::array<uint32_t, 256> result{};
    uint32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      result[byte] = StandsForItself(byte) ? static_cast<uint32_t>(byte) : next++;
    }
    return result;
  }();
  return alphabet;
}

// The inverse of BytesToPrintable; nullopt if a character is not in the alphabet.
std::optional<std::string> PrintableToBytes(std::string_view text) {
  static const std::unordered_map<uint32_t, char> inverse = [] {
    std::unordered_map<uint32_t, char> result;
    for (int byte = 0; byte < 256; ++byte) result[ByteAlphabet()[byte]] = static_cast<char>(byte);
    return result;
  }();
  std::string bytes;
  for (size_t i = 0; i < text.size();) {
    const Utf8Character c = DecodeUtf8(text, i);
    const auto it = inverse.find(c.code_point);
    if (c.length == 0 || it == inverse.end()) return std::nullopt;
    bytes.push_back(it->second);
    i += c.length;
  }
  return bytes;
}

// Collects the tokens and merges of one source and checks them.
class Builder {
 public:
  Builder(const std::string& origin, size_t num_tokens) : origin_(origin), seen_(num_tokens) {
    vocabulary_.tokens.resize(num_tokens);
  }

  // `printable` is the token in the byte alphabet.
  void AddToken(const std::string& printable, int64_t id) {
    std::optional<std::string> bytes = PrintableToBytes(printable);
    if (!bytes || bytes->empty()) {
      throw InputError(StrCat(origin_, ": token \"", printable, "\" (id ", id,
                              ") is not written in GPT-2's byte alphabet: this is not a "
                              "byte-level vocabulary"));
    }
    Add(printable, std::move(*bytes), id);
  }

  // Adds a plain-text token that no merge produces, such as <|endoftext|>.
  void AddPlainToken(const std::string& text, int64_t id) { Add(BytesToPrintable(text), text, id); }

  // "left right", both in the byte alphabet. `where` is "merge 17" or "line 18".
  void AddMerge(const std::string& left, const std::string& right, const std::string& origin,
                const std::string& where) {
    const BpeMerge merge = {Id(left, origin, where), Id(right, origin, where),
                            Id(left + right, origin, where)};
    if (!pairs_.emplace(merge.left, merge.right).second) {
      throw InputError(
          StrCat(origin, ", ", where, ": the pair \"", left, " ", right, "\" already has a merge"));
    }
    vocabulary_.merges.push_back(merge);
  }

  void AddMerge(std::string_view line, const std::string& origin, const std::string& where) {
    const size_t space = line.find(' ');
    if (space == std::string_view::npos || space == 0 || space + 1 == line.size() ||
        line.find(' ', space + 1) != std::string_view::npos) {
      throw InputError(StrCat(origin, ", ", where, ": \"", line,
                              "\" is not a merge: expected two tokens with a space between"));
    }
    AddMerge(std::string(line.substr(0, space)), std::string(line.substr(space + 1)), origin,
             where);
  }

  Gpt2Vocabulary Finish() {
    vocabulary_.byte_ids.resize(256);
    for (int byte = 0; byte < 256; ++byte) {
      const auto it = ids_.find(BytesToPrintable(std::string(1, static_cast<char>(byte))));
      if (it == ids_.end()) {
        throw InputError(StrCat(origin_, ": no token is the single byte ", byte,
                                "; a byte-level vocabulary has all 256"));
      }
      vocabulary_.byte_ids[byte] = it->second;
    }
    return std::move(vocabulary_);
  }

 private:
  void Add(const std::string& printable, std::string bytes, int64_t id) {
    const auto count = static_cast<int64_t>(seen_.size());
    const auto refuse = [&](const std::string& why) {
      throw InputError(StrCat(origin_, ": token \"", printable, "\" has id ", id, ", ", why));
    };
    if (id < 0 || id >= count) {
      refuse(StrCat("but the ids of ", count, " tokens must be 0 to ", count - 1));
    }
    if (seen_[id]) refuse("but another token has it, too");
    seen_[id] = true;
    if (!ids_.emplace(printable, static_cast<int32_t>(id)).second)
      refuse("but it also has another one");
    if (bytes == kEndOfText) vocabulary_.end_of_text = static_cast<int32_t>(id);
    vocabulary_.tokens[id] = std::move(bytes);
  }

  int32_t Id(const std::string& token, const std::string& origin, const std::string& where) {
    const auto it = ids_.find(token);
    if (it == ids_.end()) {
      throw InputError(StrCat(origin, ", ", where, ": token \"", token,
                              "\" is not in the vocabulary (", origin_, ")"));
    }
    return it->second;
  }

  std::string origin_;
  std::vector<bool> seen_;
  std::unordered_map<std::string, int32_t> ids_;  // by printable form
  std::set<std::pair<int32_t, int32_t>> pairs_;
  Gpt2Vocabulary vocabulary_;
};

int64_t IntegerId(const Json& value, const std::string& token, const std::string& origin) {
  if (!value.is_number_integer()) {
    throw InputError(StrCat(origin, ": the id of token \"", token, "\" is ", DumpJson(value),
                            ", not an integer"));
  }
  return value.get<int64_t>();
}

// `merges` is an array of "left right" or [left, right].
void AddMerges(const Json& merges, const std::string& origin, Builder* builder) {
  int64_t index = 0;
  for (const Json& merge : merges) {
    const std::string where = StrCat("merge ", index++);
    if (merge.is_string()) {
      builder->AddMerge(merge.get_ref<const std::string&>(), origin, where);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      builder->AddMerge(merge[0], merge[1], origin, where);
    } else {
      throw InputError(StrCat(origin, ", ", where, ": ", DumpJson(merge),
                              " is not a merge: expected \"left right\" or [\"left\", \"right\"]"));
    }
  }
}

const Json& Field(const Json& object, const char* name, Json::value_t type,
                  const std::string& origin) {
  const auto it = object.find(name);
  if (it == object.end() || it->type() != type) {
    throw InputError(StrCat(origin, ": \"", name, "\" is ",
                            it == object.end() ? "missing" : "of the wrong type", "; expected an ",
                            Json(type).type_name()));
  }
  return *it;
}

void RequireGpt2Algorithm(const Json& json, const Json& model, const std::string& origin) {
  const auto refuse = [&](const std::string& what) {
    throw InputError(StrCat(origin, ": this tokenizer has ", what,
                            "; only GPT-2's byte-level BPE (a BPE model with a ByteLevel "
                            "pre-tokenizer) is supported"));
  };
  if (model.value("type", "BPE") != "BPE") refuse("a model of type " + DumpJson(model["type"]));
  if (json.contains("normalizer") && !json["normalizer"].is_null()) refuse("a normalizer");
  const Json splitter = json.value("pre_tokenizer", Json());
  if (!splitter.is_object() || splitter.value("type", "") != "ByteLevel") {
    refuse("the pre-tokenizer " + (splitter.is_object() ? splitter.value("type", "") : "null"));
  }
  if (splitter.value("add_prefix_space", false)) refuse("add_prefix_space");
  if (!splitter.value("use_regex", true)) refuse("a ByteLevel pre-tokenizer without its pattern");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (model.contains(key) && !model[key].is_null() && model[key] != "") refuse(key);
  }
  if (model.contains("dropout") && !model["dropout"].is_null()) refuse("BPE dropout");
  if (model.value("ignore_merges", false)) refuse("ignore_merges");
}

}  // namespace

std::string BytesToPrintable(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) AppendUtf8(ByteAlphabet()[static_cast<uint8_t>(c)], &text);
  return text;
}

Gpt2Vocabulary ParseGpt2Files(const Json& encoder, std::string_view vocab_bpe,
                              const std::string& encoder_origin, const std::string& bpe_origin) {
  Builder builder(encoder_origin, encoder.size());
  for (const auto& [token, id] : encoder.items()) {
    builder.AddToken(token, IntegerId(id, token, encoder_origin));
  }
  for (int64_t line_number = 1; !vocab_bpe.empty(); ++line_number) {
    const std::string_view line = vocab_bpe.substr(0, vocab_bpe.find('\n'));
    vocab_bpe.remove_prefix(std::min(line.size() + 1, vocab_bpe.size()));
    const bool header = line_number == 1 && line.starts_with("#version");
    if (line.empty() || header) continue;
    builder.AddMerge(line, bpe_origin, StrCat("line ", line_number));
  }
  return builder.Finish();
}

Gpt2Vocabulary ParseHuggingFaceTokenizer(const Json& json, const std::string& origin) try {
  const Json& model = Field(json, "model", Json::value_t::object, origin);
  RequireGpt2Algorithm(json, model, origin);
  const Json& vocab = Field(model, "vocab", Json::value_t::object, origin);
  // Added tokens are plain text and may also be listed in the vocabulary.
  const Json added = json.value("added_tokens", Json::array());
  size_t count = vocab.size();
  for (const Json& token : added) count += !vocab.contains(token.at("content"));
  Builder builder(origin, count);
  for (const auto& [token, id] : vocab.items())
    builder.AddToken(token, IntegerId(id, token, origin));
  for (const Json& token : added) {
    const std::string content = token.at("content");
    if (vocab.contains(content)) continue;
    builder.AddPlainToken(content, IntegerId(token.at("id"), content, origin));
  }
  AddMerges(Field(model, "merges", Json::value_t::array, origin), origin, &builder);
  return builder.Finish();
} catch (const Json::exception& error) {
  throw InputError(StrCat(origin, ": not Hugging Face's tokenizer.json: ", error.what()));
}

Gpt2Vocabulary ParseGpt2Json(const Json& json, const std::string& origin) {
  const Json& tokens = Field(json, "tokens", Json::value_t::array, origin);
  Builder builder(origin, tokens.size());
  int64_t id = 0;
  for (const Json& token : tokens) {
    if (!token.is_string()) {
      throw InputError(StrCat(origin, ": token ", id, " is ", DumpJson(token), ", not a string"));
    }
    builder.AddToken(token, id++);
  }
  AddMerges(Field(json, "merges", Json::value_t::array, origin), origin, &builder);
  return builder.Finish();
}

}  // namespace lockstep::data
