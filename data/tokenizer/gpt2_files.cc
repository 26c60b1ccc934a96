#include "data/tokenizer/gpt2_files.h"

#include <algorithm>

#include "core/error.h"
#include "core/io/json.h"
#include "data/tokenizer/bpe_json.h"
#include "data/tokenizer/bpe_tokenizer.h"

namespace lockstep::data {
namespace {

constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

}  // namespace

Json VocabularyJson(Json vocabulary, Json merges, const VocabularyKind& kind) {
  Json normalizer, cut = ByteLevelJson<Json>(kind.add_prefix_space);
  if (kind.qwen2) {
    cut["use_regex"] = false;
    cut = {{"type", "Sequence"},
           {"pretokenizers",
            {{{"type", "Split"},
              {"pattern", {{"Regex", kQwen2Pattern}}},
              {"behavior", "Isolated"},
              {"invert", false}},
             cut}}};
    normalizer = {{"type", "NFC"}};
  }
  return ByteLevelBpeJson<Json>(std::move(vocabulary), std::move(merges), Json::array(), normalizer,
                                cut, ByteLevelJson<Json>(/*add_prefix_space=*/false));
}

Json MergesOf(std::string_view merges_txt, const std::string& origin) {
  Json merges = Json::array();
  for (int64_t number = 1; !merges_txt.empty(); ++number) {
    const std::string_view line = merges_txt.substr(0, merges_txt.find('\n'));
    merges_txt.remove_prefix(std::min(line.size() + 1, merges_txt.size()));
    const bool header = number == 1 && line.starts_with("#version");
    if (line.empty() || header) continue;
    if (std::ranges::count(line, ' ') != 1) {
      throw InputError(StrCat(origin, ", line ", number, ": ", Quoted(line),
                              " is not a merge: expected two tokens with a space between"));
    }
    merges.push_back(line);
  }
  return merges;
}

std::unique_ptr<Tokenizer> FromGpt2Json(const Json& json, const std::string& origin) {
  const Json tokens = json.value("tokens", Json()), merges = json.value("merges", Json());
  if (!tokens.is_array()) throw InputError(StrCat(origin, ": \"tokens\" must be a list"));
  Json vocabulary = Json::object();
  for (const Json& token : tokens) {
    const size_t id = vocabulary.size();
    if (!token.is_string()) {
      throw InputError(StrCat(origin, ": token ", id, " is ", token.dump(), ", not a string"));
    }
    if (!vocabulary.emplace(token.string(), id)) {
      throw InputError(StrCat(origin, ": the token ", token.dump(), " appears twice"));
    }
  }
  Json file = VocabularyJson(std::move(vocabulary), merges, {});
  const Json& known = file["model"]["vocab"];
  if (known.contains(kEndOfText)) {
    file["added_tokens"].push_back(SpecialTokenJson<Json>(known[kEndOfText], kEndOfText));
  }
  return std::make_unique<BpeTokenizer>(file, file.dump() + "\n", "", origin);
}

}  // namespace lockstep::data
