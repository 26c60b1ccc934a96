#include "data/conversations/preference_pair.h"

#include <algorithm>
#include <string_view>

#include "core/error.h"

namespace lockstep::data {
namespace {

using Json = nlohmann::ordered_json;

// Whether a list of messages begins with what the assistant says.
bool BeginsWithAnswer(const Json& messages, const std::string& field, const std::string& place) {
  Conversation read{.place = place};
  AppendMessages(messages, "", field, &read);
  return !read.messages.empty() && read.messages[0]["role"] == "assistant";
}

// The number of messages with which both begin, without the last message of either.
size_t CommonMessages(const Conversation& a, const Conversation& b) {
  const size_t most = std::min(a.messages.size(), b.messages.size()) - 1;
  size_t common = 0;
  while (common < most && a.messages[common] == b.messages[common]) ++common;
  return common;
}

}  // namespace

bool LooksLikePreferencePair(const Json& row) {
  return row.contains("chosen") && row.contains("rejected");
}

PreferencePair ToPreferencePair(const Json& row, const std::string& place) {
  if (!LooksLikePreferencePair(row)) {
    throw InputError(
        StrCat(place,
               ": this row is not a pair of answers: expected {\"prompt\": \"...\", \"chosen\": "
               "\"...\", \"rejected\": \"...\"}, texts or lists of messages; found ",
               FieldsOf(row)));
  }
  const bool lists = row["chosen"].is_array() && row["rejected"].is_array();
  const bool has_prompt = row.contains("prompt") && !row["prompt"].is_null();
  if (!has_prompt && !lists) {
    throw InputError(StrCat(place,
                            ": without a \"prompt\", \"chosen\" and \"rejected\" must be "
                            "lists of messages that begin with it"));
  }
  // The list says more than the text does.
  const bool repeated = has_prompt && lists && row["prompt"].is_string() &&
                        !BeginsWithAnswer(row["chosen"], "chosen", place) &&
                        !BeginsWithAnswer(row["rejected"], "rejected", place);
  Json common = Json::object();  // of both conversations
  for (const char* key : {"system", "prompt", "tools", "chat_template_kwargs"}) {
    const bool is_prompt = key == std::string_view("prompt");
    if (row.contains(key) && !(is_prompt && (!has_prompt || repeated))) common[key] = row[key];
  }
  const auto read = [&](const char* answer) {
    common[answer] = row[answer];
    Conversation conversation = ToCompletion(common, answer, place);
    common.erase(answer);
    return conversation;
  };
  PreferencePair pair{.chosen = read("chosen"), .rejected = read("rejected")};
  if (has_prompt && !repeated) return pair;
  const size_t prompt = CommonMessages(pair.chosen, pair.rejected);
  for (Conversation* conversation : {&pair.chosen, &pair.rejected}) {
    std::fill_n(conversation->learnt.begin(), prompt, false);
    if (std::ranges::find(conversation->learnt, true) == conversation->learnt.end()) {
      throw InputError(StrCat(place, ": ", conversation == &pair.chosen ? "chosen" : "rejected",
                              " ends without an answer of the assistant after the ", prompt,
                              " messages that both begin with; leave the row out"));
    }
  }
  return pair;
}

}  // namespace lockstep::data
