// Tokenizers of SentencePiece's kind.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>

#include "core/io/json.h"

namespace lockstep::test {

// With all merges that make a token, as in files that come from SentencePiece; the goldens' were
// trained, and have one for each.
inline Json WithAllMerges(Json tokenizer) {
  Json& model = tokenizer["model"];
  const Json& vocabulary = model["vocab"];
  Json merges = Json::array();
  std::set<std::string> made;
  for (const Json& merge : model["merges"]) {
    std::string token = merge.is_string()
                            ? merge.get<std::string>()
                            : merge[0].get<std::string>() + merge[1].get<std::string>();
    if (merge.is_string()) token.erase(token.find(' '), 1);
    if (!made.insert(token).second) continue;
    std::map<std::pair<int, int>, Json> splits;
    for (size_t at = 1; at < token.size(); ++at) {
      const std::string left = token.substr(0, at), right = token.substr(at);
      if (!vocabulary.contains(left) || !vocabulary.contains(right)) continue;
      splits[{vocabulary[left].get<int>(), vocabulary[right].get<int>()}] = {left, right};
    }
    for (const auto& [ids, split] : splits) merges.push_back(split);
  }
  model["merges"] = std::move(merges);
  return tokenizer;
}

}  // namespace lockstep::test
