#include "data/tokenizer/gpt2_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/io/json.h"
#include "data/tokenizer/bpe_json.h"
#include "data/tokenizer/bpe_tokenizer.h"

namespace lockstep::data {
namespace {

using Json = nlohmann::json;

constexpr const char* kEndOfText = "<|endoftext|>";

std::unique_ptr<Tokenizer> FromParts(Json vocabulary, Json merges, const std::string& origin) {
  const Json byte_level = ByteLevelJson<Json>(/*add_prefix_space=*/false);
  Json added = Json::array();
  if (const auto it = vocabulary.find(kEndOfText); it != vocabulary.end()) {
    added.push_back(SpecialTokenJson<Json>(*it, kEndOfText));
  }
  const Json json = ByteLevelBpeJson<Json>(std::move(vocabulary), std::move(merges),
                                           std::move(added), nullptr, byte_level, byte_level);
  return std::make_unique<BpeTokenizer>(json, DumpJson(json) + "\n", "", origin);
}

}  // namespace

std::unique_ptr<Tokenizer> FromGpt2Files(const Json& encoder, std::string_view vocab_bpe,
                                         const std::string& encoder_origin,
                                         const std::string& bpe_origin) {
  Json merges = Json::array();
  for (int64_t number = 1; !vocab_bpe.empty(); ++number) {
    const std::string_view line = vocab_bpe.substr(0, vocab_bpe.find('\n'));
    vocab_bpe.remove_prefix(std::min(line.size() + 1, vocab_bpe.size()));
    const bool header = number == 1 && line.starts_with("#version");
    if (line.empty() || header) continue;
    if (std::ranges::count(line, ' ') != 1) {
      throw InputError(StrCat(bpe_origin, ", line ", number, ": ", Quoted(line),
                              " is not a merge: expected two tokens with a space between"));
    }
    merges.push_back(line);
  }
  return FromParts(encoder, std::move(merges), StrCat(encoder_origin, " and ", bpe_origin));
}

std::unique_ptr<Tokenizer> FromGpt2Json(const Json& json, const std::string& origin) {
  const Json tokens = json.value("tokens", Json()), merges = json.value("merges", Json());
  if (!tokens.is_array()) throw InputError(StrCat(origin, ": \"tokens\" must be a list"));
  Json vocabulary = Json::object();
  for (const Json& token : tokens) {
    const size_t id = vocabulary.size();
    if (!token.is_string()) {
      throw InputError(StrCat(origin, ": token ", id, " is ", DumpJson(token), ", not a string"));
    }
    if (!vocabulary.emplace(token.get_ref<const std::string&>(), id).second) {
      throw InputError(StrCat(origin, ": the token ", DumpJson(token), " appears twice"));
    }
  }
  return FromParts(std::move(vocabulary), merges, origin);
}

}  // namespace lockstep::data
