#include "data/tokenizer/tokenizer.h"

#include <algorithm>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "core/system/environment.h"
#include "data/tokenizer/bpe_tokenizer.h"
#include "data/tokenizer/byte_tokenizer.h"
#include "data/tokenizer/char_tokenizer.h"
#include "data/tokenizer/gpt2_files.h"
#include "data/tokenizer/tokenizer_json.h"
#include "data/utf8.h"

namespace lockstep::data {
namespace {

std::unique_ptr<Tokenizer> CharFromJson(const Json& json, const std::string& origin) {
  const Json* given = json.Find("characters");
  if (given == nullptr || !given->is_string() || given->empty()) {
    throw InputError(StrCat(origin, ": \"characters\" must be a nonempty string"));
  }
  const auto& characters = given->string();
  auto tokenizer = std::make_unique<CharTokenizer>(characters);
  if (tokenizer->vocab_size() != CountUtf8(characters) ||
      tokenizer->Decode(tokenizer->Encode(characters)) != characters ||
      !std::ranges::is_sorted(tokenizer->Encode(characters))) {
    throw InputError(StrCat(origin, ": \"characters\" must be in ascending order, each once"));
  }
  return tokenizer;
}

std::unique_ptr<Tokenizer> FromParsedJson(const Json& json, const std::string& origin) {
  const Json version = json.value("version", Json());
  if (json.value("format", Json()) != kTokenizerFormat || version != kTokenizerVersion) {
    throw InputError(StrCat(origin, ": not a tokenizer file of this version of Lockstep: expected ",
                            "\"format\": \"", kTokenizerFormat,
                            "\", \"version\": ", kTokenizerVersion));
  }
  const Json type = json.value("type", Json());
  if (type == "char") return CharFromJson(json, origin);
  if (type == "byte") return std::make_unique<ByteTokenizer>();
  if (type == "gpt2") return FromGpt2Json(json, origin);
  throw InputError(StrCat(origin, ": unknown tokenizer type ", type.dump(),
                          "; known: \"char\", \"byte\", \"gpt2\""));
}

// The characters of a tokenizer.json as CharTokenizer writes it.
std::unique_ptr<Tokenizer> FromWordLevel(const Json& json, const std::string& origin) {
  std::string characters;
  const Json vocabulary = json["model"].value("vocab", Json());
  for (const auto& [character, id] : vocabulary.items()) characters += character;
  if (!characters.empty()) {
    auto tokenizer = std::make_unique<CharTokenizer>(characters);
    if (ParseJson(tokenizer->ToJson(), origin) == json) return tokenizer;
  }
  throw InputError(StrCat(origin,
                          ": model.type: WordLevel is supported only with a token for each "
                          "character, in ascending order, as Lockstep writes it"));
}

// `text` is a file of Lockstep's or Hugging Face's; `config` is from the latter's folder.
std::unique_ptr<Tokenizer> FromText(std::string text, std::string config,
                                    const std::string& origin) {
  const Json json = ParseJsonObject(text, origin);
  if (json.contains("format")) return FromParsedJson(json, origin);
  if (json.contains("model")) {
    const Json& model = json["model"];
    if (model.is_object() && model.value("type", Json()) == "WordLevel") {
      return FromWordLevel(json, origin);
    }
    if (json == ParseJson(ByteTokenizer().ToJson(), "")) return std::make_unique<ByteTokenizer>();
    return std::make_unique<BpeTokenizer>(json, std::move(text), std::move(config), origin);
  }
  throw InputError(StrCat(origin, ": neither a tokenizer file of Lockstep (\"format\": \"",
                          kTokenizerFormat, "\") nor Hugging Face's tokenizer.json (\"model\")"));
}

std::string Gpt2Folder() {
  return JoinPath(EnvironmentVariable("HOME").value_or(""), ".cache/lockstep/gpt2");
}

}  // namespace

void Tokenizer::EncodeTo(std::string_view text, std::vector<int32_t>* ids) const {
  const std::vector<int32_t> more = Encode(text);
  ids->insert(ids->end(), more.begin(), more.end());
}

std::unique_ptr<Tokenizer> Tokenizer::FromJson(std::string_view json, const std::string& origin,
                                               const std::string& config_json) {
  return FromText(std::string(json), config_json, origin);
}

std::unique_ptr<Tokenizer> FindGpt2Tokenizer() {
  if (const auto named = EnvironmentVariable("LOCKSTEP_GPT2_DIR")) return LoadTokenizer(*named);
  return IsDirectory(Gpt2Folder()) ? LoadTokenizer(Gpt2Folder()) : nullptr;
}

std::string HowToGetGpt2Vocabulary() {
  return StrCat("put encoder.json and vocab.bpe, or GPT-2's tokenizer.json, in ", Gpt2Folder(),
                ", or set LOCKSTEP_GPT2_DIR to their folder");
}

std::unique_ptr<Tokenizer> MakeTokenizer(const std::string& option, std::string_view text) {
  if (option == "char") return std::make_unique<CharTokenizer>(text);
  if (option == "byte") return std::make_unique<ByteTokenizer>();
  if (option == "gpt2") {
    auto tokenizer = FindGpt2Tokenizer();
    if (tokenizer != nullptr) return tokenizer;
    throw InputError(
        StrCat("data.tokenizer=gpt2 needs GPT-2's vocabulary, which is not part of "
               "Lockstep: ",
               HowToGetGpt2Vocabulary(),
               ", or use --data.tokenizer=FOLDER, or a tokenizer of the text's own: "
               "prepare --data.path=TEXT --train_tokenizer=4096"));
  }
  if (PathExists(option)) return LoadTokenizer(option);
  throw InputError(StrCat("data.tokenizer=", option,
                          " is not char, byte or gpt2, and no such file or folder exists"));
}

}  // namespace lockstep::data
