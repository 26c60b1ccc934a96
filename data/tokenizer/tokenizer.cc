#include "data/tokenizer/tokenizer.h"

#include <algorithm>
#include <cstdlib>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "core/system/environment.h"
#include "data/tokenizer/byte_tokenizer.h"
#include "data/tokenizer/char_tokenizer.h"
#include "data/tokenizer/gpt2_tokenizer.h"
#include "data/tokenizer/gpt2_vocabulary.h"
#include "data/tokenizer/tokenizer_json.h"
#include "data/utf8.h"

namespace lockstep::data {
namespace {

using Json = nlohmann::json;

std::unique_ptr<Tokenizer> CharFromJson(const Json& json, const std::string& origin) {
  const auto it = json.find("characters");
  if (it == json.end() || !it->is_string() || it->get_ref<const std::string&>().empty()) {
    throw InputError(StrCat(origin, ": \"characters\" must be a nonempty string"));
  }
  const auto& characters = it->get_ref<const std::string&>();
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
  if (type == "gpt2") return std::make_unique<Gpt2Tokenizer>(ParseGpt2Json(json, origin));
  throw InputError(StrCat(origin, ": unknown tokenizer type ", DumpJson(type),
                          "; known: \"char\", \"byte\", \"gpt2\""));
}

// The two files of a GPT-2 vocabulary: OpenAI's names, then Hugging Face's.
constexpr const char* kVocabularyFiles[][2] = {{"encoder.json", "vocab.bpe"},
                                               {"vocab.json", "merges.txt"}};

std::unique_ptr<Tokenizer> LoadGpt2Files(const std::string& tokens, const std::string& merges) {
  return std::make_unique<Gpt2Tokenizer>(
      ParseGpt2Files(ParseJsonObject(ReadFile(tokens), tokens), ReadFile(merges), tokens, merges));
}

std::unique_ptr<Tokenizer> LoadFolder(const std::string& folder) {
  const std::string json = JoinPath(folder, "tokenizer.json");
  if (PathExists(json)) return LoadTokenizer(json);
  for (const auto& [tokens, merges] : kVocabularyFiles) {
    if (PathExists(JoinPath(folder, tokens)) && PathExists(JoinPath(folder, merges))) {
      return LoadGpt2Files(JoinPath(folder, tokens), JoinPath(folder, merges));
    }
  }
  throw InputError(StrCat(folder,
                          ": no tokenizer in this folder: expected tokenizer.json, or "
                          "encoder.json and vocab.bpe, or vocab.json and merges.txt"));
}

std::unique_ptr<Tokenizer> FromAnyJson(const Json& json, const std::string& origin) {
  if (json.contains("format")) return FromParsedJson(json, origin);
  if (json.contains("model")) {
    return std::make_unique<Gpt2Tokenizer>(ParseHuggingFaceTokenizer(json, origin));
  }
  throw InputError(StrCat(origin, ": neither a tokenizer file of Lockstep (\"format\": \"",
                          kTokenizerFormat, "\") nor Hugging Face's tokenizer.json (\"model\")"));
}

std::string Gpt2Folder() {
  return JoinPath(EnvironmentVariable("HOME").value_or(""), ".cache/lockstep/gpt2");
}

}  // namespace

std::unique_ptr<Tokenizer> Tokenizer::FromJson(std::string_view json, const std::string& origin) {
  return FromAnyJson(ParseJsonObject(json, origin), origin);
}

std::unique_ptr<Tokenizer> LoadTokenizer(const std::string& path) {
  if (IsDirectory(path)) return LoadFolder(path);
  const std::string folder = ParentPath(path);
  for (const auto& [tokens, merges] : kVocabularyFiles) {
    if (path.ends_with(tokens) || path.ends_with(merges)) {
      return LoadGpt2Files(JoinPath(folder, tokens), JoinPath(folder, merges));
    }
  }
  return FromAnyJson(ParseJsonObject(ReadFile(path), path), path);
}

std::unique_ptr<Tokenizer> FindGpt2Tokenizer() {
  if (const auto named = EnvironmentVariable("LOCKSTEP_GPT2_DIR")) return LoadTokenizer(*named);
  return IsDirectory(Gpt2Folder()) ? LoadFolder(Gpt2Folder()) : nullptr;
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
               HowToGetGpt2Vocabulary(), ", or use --data.tokenizer=FOLDER"));
  }
  if (PathExists(option)) return LoadTokenizer(option);
  throw InputError(StrCat("data.tokenizer=", option,
                          " is not char, byte or gpt2, and no such file or folder exists"));
}

}  // namespace lockstep::data
