#include "data/text/row_errors.h"

#include <algorithm>

#include "core/error.h"
#include "core/io/json.h"

namespace lockstep::data {

std::string ListNames(std::span<const std::string> names) {
  constexpr size_t kMost = 8;
  if (names.empty()) return "no fields";
  std::string text;
  for (const std::string& name : names.first(std::min(names.size(), kMost))) {
    text += (text.empty() ? "" : ", ") + Quoted(name);
  }
  return names.size() > kMost ? text + ", ..." : text;
}

bool IsConversation(const std::function<bool(const char*)>& has) {
  return has("messages") || has("conversations") || (has("instruction") && has("output")) ||
         (has("prompt") && has("completion"));
}

std::string AdviceOnConversations(std::span<const std::string> names) {
  const auto has = [&](const char* key) { return std::ranges::find(names, key) != names.end(); };
  if (!IsConversation(has)) return "";
  return "this is a conversation; train on its answers, without prepare, by train_gpt "
         "--init_from=MODEL_FOLDER --data.path=FILE --data.format=chat, or name a field that holds "
         "plain text with --data.field=";
}

std::string AdviceOnPairs(std::span<const std::string> names) {
  for (const char* key : {"chosen", "rejected"}) {
    if (std::ranges::find(names, key) == names.end()) return "";
  }
  return "; pairs of answers are trained with --train.objective=dpo";
}

std::string ParseErrorText(std::string_view what) {
  if (const size_t prefix = what.find("] "); prefix != std::string_view::npos) {
    what.remove_prefix(prefix + 2);
  }
  // "parse error at line 1, column 92: syntax error while parsing ..."
  constexpr std::string_view kLine = "parse error at line 1, column ";
  std::string at;
  if (what.starts_with(kLine)) {
    at = "at byte ";
    what.remove_prefix(kLine.size());
  }
  return at + std::string(what.substr(0, 200));
}

}  // namespace lockstep::data
