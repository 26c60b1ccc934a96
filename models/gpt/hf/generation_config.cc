#include "models/gpt/hf/generation_config.h"

#include <algorithm>

#include "core/error.h"
#include "core/io/json.h"

namespace lockstep::models {

std::string GenerationConfig(const data::Tokenizer* tokenizer, std::span<const int32_t> ends,
                             const std::string& given, const std::string& origin) {
  Json j = Json::object();
  if (!given.empty()) j = ParseJson(given, origin);
  if (!j.is_object()) throw InputError(StrCat(origin, ": not a JSON object"));
  Json eos = j.value("eos_token_id", Json());
  if (eos.is_number()) eos = Json::array({eos});
  if (!eos.is_array()) eos = Json::array();
  const size_t before = eos.size();
  const auto add = [&](std::optional<int32_t> id) {
    if (id && std::ranges::find(eos, Json(*id)) == eos.end()) eos.push_back(*id);
  };
  if (before == 0 && tokenizer != nullptr) {
    add(tokenizer->special_ids().eos);
    add(tokenizer->end_of_text());
  }
  for (const int32_t id : ends) add(id);
  if (!given.empty() && eos.size() == before) return given;
  if (!eos.empty()) j["eos_token_id"] = eos;
  if (given.empty()) {
    const data::SpecialIds special = tokenizer ? tokenizer->special_ids() : data::SpecialIds();
    if (special.bos) j["bos_token_id"] = *special.bos;
    if (special.pad) j["pad_token_id"] = *special.pad;
    j["do_sample"] = true;
  }
  return j.dump(2) + "\n";
}

}  // namespace lockstep::models
