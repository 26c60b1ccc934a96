#include "data/conversations/conversation.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/error.h"
#include "core/io/json.h"
#include "data/chat/text.h"
#include "data/conversations/content_parts.h"
#include "data/text/repair_utf8.h"
#include "data/text/row_errors.h"

namespace lockstep::data {
namespace {

constexpr int kMaxDepth = 100;

constexpr std::string_view kFormats =
    "expected {\"messages\": [{\"role\": \"user\", \"content\": \"...\"}, {\"role\": "
    "\"assistant\", \"content\": \"...\"}]}, or the keys conversations (ShareGPT), instruction and "
    "output (Alpaca), or prompt and completion";

// What files call the roles, and what templates do.
constexpr std::array<std::pair<std::string_view, std::string_view>, 13> kRoles = {{
    {"system", "system"},
    {"developer", "developer"},
    {"user", "user"},
    {"human", "user"},
    {"assistant", "assistant"},
    {"gpt", "assistant"},
    {"chatgpt", "assistant"},
    {"bing", "assistant"},
    {"bard", "assistant"},
    {"model", "assistant"},
    {"tool", "tool"},
    {"observation", "tool"},
    {"function_response", "tool"},
}};

[[noreturn]] void Fail(const std::string& place, const std::string& what) {
  throw InputError(StrCat(place, ": ", what));
}

std::string RoleOf(const OrderedJson& message, std::string_view key, const std::string& where) {
  if (!message.contains(key)) {
    throw InputError(StrCat(where, " has no \"", key, "\"; say who writes it: system, user, ",
                            "assistant or tool"));
  }
  const OrderedJson& role = message[key];
  if (role.is_string()) {
    for (const auto& [name, known] : kRoles) {
      if (role.string() == name) return std::string(known);
    }
  }
  throw InputError(StrCat(where, ": unknown role ",
                          role.is_string() ? Quoted(role.string()) : std::string(role.type_name()),
                          "; there are system, developer, user (human), assistant (gpt, model) and "
                          "tool"));
}

bool HasText(const OrderedJson& row, const char* key, bool or_empty = false) {
  return row.contains(key) && row[key].is_string() && (or_empty || row[key] != "");
}

// "train": true or false; "weight": 1 or 0.
bool IsLearnt(const OrderedJson& message, const std::string& role, const std::string& where) {
  bool learnt = role == "assistant";
  for (const char* key : {"train", "weight"}) {
    if (!message.contains(key) || message[key].is_null()) continue;
    const OrderedJson& mark = message[key];
    if (!mark.is_boolean() && mark != 0 && mark != 1) {
      throw InputError(StrCat(where, ": \"", key, "\" must be true or false, 1 or 0"));
    }
    const bool wanted = mark.is_boolean() ? mark.get<bool>() : mark == 1;
    if (wanted && role != "assistant") {
      throw InputError(StrCat(where, ": \"", key, "\" asks to learn a message of role ", role,
                              ", but only what the assistant writes is learnt"));
    }
    learnt = learnt && wanted;
  }
  return learnt;
}

// Checks a list of parts, and makes each an object.
void SettleParts(OrderedJson* parts, const std::string& where) {
  int64_t number = 0;
  for (OrderedJson& part : *parts) {
    ++number;
    if (part.is_string()) part = {{"type", "text"}, {"text", part}};
    if (!part.is_object() || !HasText(part, "text", /*or_empty=*/true) ||
        part.value("type", OrderedJson("text")) != "text") {
      throw InputError(StrCat(where, ": part ", number, " of its content is not text, as ",
                              R"({"type": "text", "text": "..."} is, and only text is trained; )",
                              "leave the row out"));
    }
  }
}

// Whether what a message says is nothing to train on.
bool IsEmpty(const OrderedJson& content, std::string_view role) {
  const std::string text = JoinParts(content);
  return role == "assistant" ? chat::Strip(text, {}).empty() : text.empty();
}

// As transformers does: the first of these is what templates read, but for those that read the
// second one.
void AliasReasoning(OrderedJson* message) {
  constexpr std::array<const char*, 3> kKeys = {"reasoning_content", "thinking", "reasoning"};
  const auto* key =
      std::ranges::find_if(kKeys, [&](const char* k) { return message->contains(k); });
  if (key == kKeys.end()) return;
  const OrderedJson reasoning = (*message)[*key];
  if (!message->contains(kKeys[1])) (*message)[kKeys[1]] = reasoning;
  (*message)[kKeys[0]] = reasoning;
}

// Makes the content, whose key was `key`, a text or a list of parts. False if it is empty where
// there must be one.
bool SettleContent(OrderedJson* message, const std::string& role, const char* key,
                   const std::string& where) {
  const bool calls = CallsTools(*message);
  if (role == "assistant" && message->contains("tool_calls") &&
      !(*message)["tool_calls"].is_array()) {
    throw InputError(StrCat(where, ": \"tool_calls\" must be a list of calls"));
  }
  if (message->contains("content")) {
    OrderedJson& content = (*message)["content"];
    if (content.is_array()) SettleParts(&content, where);
    if (content.is_null() && calls) {
      message->erase("content");
      return true;
    }
    if (content.is_null()) content = "";
    if (!content.is_string() && !content.is_array()) {
      throw InputError(StrCat(where, ": its content must be a text or a list of parts, not ",
                              content.type_name()));
    }
    return calls || role == "tool" || !IsEmpty(content, role);  // a tool may return nothing
  }
  if (calls) return true;
  for (const char* other : {"text", "value"}) {
    if (!message->contains(other)) continue;
    throw InputError(
        StrCat(where, " has \"", other, "\" where \"", key, "\" is expected; rename it"));
  }
  throw InputError(StrCat(where, ", of role ", role, ", has no \"", key,
                          "\"; leave the message out, or the row"));
}

void AppendMessage(const OrderedJson& message, const std::string& where,
                   Conversation* conversation) {
  if (!message.is_object()) {
    throw InputError(StrCat(where, " must be an object with \"role\" and \"content\", not ",
                            message.type_name()));
  }
  const bool share_gpt = message.contains("from") && !message.contains("role");
  const std::string role = RoleOf(message, share_gpt ? "from" : "role", where);
  const char* content_key = share_gpt && !message.contains("content") ? "value" : "content";
  OrderedJson clean = {{"role", role}};
  for (const auto& [key, value] : message.items()) {
    const bool is_content = key == content_key;
    if (value.is_null() && !is_content) continue;
    if (key == "train" || key == "weight" || key == "role" || (share_gpt && key == "from"))
      continue;
    clean[is_content ? "content" : key] = value;
  }
  AliasReasoning(&clean);
  const bool learnt = IsLearnt(message, role, where);
  if (!SettleContent(&clean, role, content_key, where)) {
    if (role == "system" || role == "developer") return;  // says nothing
    conversation->empty = true;
  }
  conversation->learnt.push_back(learnt);
  conversation->messages.push_back(std::move(clean));
}

// Earlier turns: [["question", "answer"], ...].
void AppendHistory(const OrderedJson& history, Conversation* conversation) {
  const auto is_text = [](const OrderedJson& text) { return text.is_string(); };
  const auto check = [&](bool fits) {
    if (!fits) {
      Fail(conversation->place,
           R"("history" must be a list of earlier turns, [["question", "answer"], ...])");
    }
  };
  check(history.is_array() || history.is_null());
  for (const OrderedJson& turn : history) {
    check(turn.is_array() && turn.size() == 2 && std::ranges::all_of(turn, is_text));
    AppendMessages(turn[0], "user", "history", conversation);
    AppendMessages(turn[1], "assistant", "history", conversation);
  }
}

void AppendAlpaca(const OrderedJson& row, Conversation* conversation) {
  const std::string& place = conversation->place;
  if (!row.contains("output")) Fail(place, "this row has \"instruction\", but no \"output\"");
  std::string question;
  for (const char* key : {"instruction", "input", "output"}) {
    if (row.contains(key) && !row[key].is_string() && !row[key].is_null()) {
      Fail(place, StrCat("\"", key, "\" must be a text, not ", row[key].type_name()));
    }
    if (key == std::string_view("output") || !HasText(row, key)) continue;
    question += (question.empty() ? "" : "\n\n") + row[key].get<std::string>();
  }
  if (row.contains("history")) AppendHistory(row["history"], conversation);
  AppendMessages(question, "user", "instruction", conversation);
  AppendMessages(row["output"], "assistant", "output", conversation);
}

bool HasAnswer(const OrderedJson& messages) {
  return std::ranges::any_of(messages,
                             [](const OrderedJson& m) { return m["role"] == "assistant"; });
}

Conversation Begin(const OrderedJson& row, const std::string& place) {
  Conversation conversation{.place = place};
  if (HasText(row, "system")) AppendMessages(row["system"], "system", "system", &conversation);
  return conversation;
}

// Checks the messages, and adds the variables.
void Finish(const OrderedJson& row, Conversation* conversation) {
  const std::string& place = conversation->place;
  if (!HasAnswer(conversation->messages)) {
    Fail(place,
         "there is no message of the assistant, so there is nothing to learn; leave the "
         "row out");
  }
  if (row.contains("tools") && !row["tools"].is_null()) {
    if (!row["tools"].is_array()) Fail(place, "\"tools\" must be a list of functions");
    conversation->variables["tools"] = row["tools"];
  }
  const OrderedJson kwargs = row.value("chat_template_kwargs", OrderedJson());
  if (!kwargs.is_object() && !kwargs.is_null())
    Fail(place, "\"chat_template_kwargs\" must be an object");
  for (const auto& [key, value] : kwargs.items()) conversation->variables[key] = value;
}

}  // namespace

bool CallsTools(const OrderedJson& message) {
  return message["role"] == "assistant" && message.contains("tool_calls") &&
         !message["tool_calls"].empty();
}

OrderedJson ParseRow(std::string_view line, const std::string& place) {
  const OrderedJson row = ParseOrderedJson(line, place, kMaxDepth);
  if (!row.is_object()) Fail(place, StrCat("found ", row.type_name(), ", but ", kFormats));
  return row;
}

std::string FieldsOf(const OrderedJson& row) {
  std::vector<std::string> names;
  for (const auto& [name, value] : row.items()) names.push_back(name);
  return ListNames(names) + AdviceOnPairs(names);
}

bool LooksLikeConversation(const OrderedJson& row) {
  return IsConversation([&](const char* key) { return row.contains(key); });
}

void AppendMessages(const OrderedJson& text_or_list, const std::string& role,
                    const std::string& field, Conversation* conversation) {
  const std::string& place = conversation->place;
  if (text_or_list.is_string() || text_or_list.is_null()) {
    conversation->empty =
        conversation->empty || text_or_list.is_null() || IsEmpty(text_or_list, role);
    conversation->messages.push_back({{"role", role}, {"content", text_or_list}});
    conversation->learnt.push_back(role == "assistant");
    return;
  }
  if (!text_or_list.is_array() || text_or_list.empty()) {
    Fail(place, StrCat("\"", field, "\" must be ", role.empty() ? "" : "a text, or ",
                       "a list of messages that is not empty"));
  }
  int64_t number = 0;
  for (const OrderedJson& message : text_or_list) {
    AppendMessage(message, StrCat(place, ": message ", ++number, " of \"", field, "\""),
                  conversation);
  }
}

Conversation ToConversation(const OrderedJson& row, const std::string& place) {
  const char* list = row.contains("messages") ? "messages" : "conversations";
  const bool has_list = row.contains(list);
  if (!has_list && !row.contains("instruction")) {
    if (!row.contains("prompt") || !row.contains("completion")) {
      Fail(place, StrCat("this row is not a conversation: ", kFormats, "; found ", FieldsOf(row)));
    }
    return ToCompletion(row, "completion", place);
  }
  Conversation conversation = Begin(row, place);
  if (has_list) {
    if (!row[list].is_array()) {
      Fail(place, StrCat("\"", list, "\" must be a list of messages, not ", row[list].type_name()));
    }
    AppendMessages(row[list], "", list, &conversation);
  } else {
    AppendAlpaca(row, &conversation);
  }
  Finish(row, &conversation);
  return conversation;
}

Conversation ToCompletion(const OrderedJson& row, const std::string& field,
                          const std::string& place) {
  Conversation conversation = Begin(row, place);
  if (row.contains("prompt")) AppendMessages(row["prompt"], "user", "prompt", &conversation);
  // What the assistant says in a prompt is given.
  std::fill(conversation.learnt.begin(), conversation.learnt.end(), false);
  AppendMessages(row[field], "assistant", field, &conversation);
  Finish(row, &conversation);
  return conversation;
}

ConversationReader::ConversationReader(std::vector<std::string> files, int64_t max_line_bytes)
    : files_(files),
      reader_(std::move(files), {.type = "jsonl",
                                 .max_document_bytes = max_line_bytes,
                                 .large_document_advice = "shorten that row, or leave it out"}) {}

bool ConversationReader::NextLine(std::string* line, std::string* place) {
  RawDocument document;
  if (!reader_.Next(&document)) return false;
  const std::string& file = files_[static_cast<size_t>(document.position.file)];
  *place = StrCat(file == "-" ? "standard input" : file, ":", document.position.record + 1);
  *line = std::move(document.bytes);
  bad_utf8_ += RepairJson(line);
  return true;
}

}  // namespace lockstep::data
