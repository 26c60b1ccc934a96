#include "data/conversations/rendered_conversation.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/io/json.h"
#include "data/chat/text.h"
#include "data/conversations/content_marks.h"

namespace lockstep::data {
namespace {
using chat::ByteSpan;

// Where answer `message` of the conversation begins, or none. The text of the generation prompt
// depends on who spoke before, and on the white space that ends what was said.
std::optional<int64_t> BeginOf(const ChatTemplate& chat_template, const Conversation& conversation,
                               const std::vector<ContentPlace>& contents, size_t message,
                               const std::string& text,
                               std::map<std::string, std::optional<std::string>>* after) {
  if (message == 0) return contents[0].begin;
  const auto earlier = [&] {
    const auto begin = conversation.messages.begin();
    return OrderedJson::Array(begin, begin + static_cast<std::ptrdiff_t>(message));
  };
  if (contents[message - 1].end) {
    const auto end = static_cast<size_t>(*contents[message - 1].end);
    const OrderedJson& before = conversation.messages[message - 1];
    const std::string key = before["role"].get<std::string>() + SpaceAtEnd(before);
    // A call's arguments stand between its name and the end of the message.
    const auto known = CallsTools(before) ? after->end() : after->find(key);
    const std::optional<std::string> prompt =
        known != after->end()
            ? known->second
            : (*after)[key] = TextAfter(chat_template, earlier(), conversation.variables);
    if (prompt && text.compare(end, prompt->size(), *prompt) == 0) {
      return static_cast<int64_t>(end + prompt->size());
    }
  }
  const auto prompt = PromptOf(chat_template, earlier(), conversation.variables);
  if (prompt && text.starts_with(*prompt)) return std::ssize(*prompt);
  return contents[message].begin;
}

// The end of the special token that ends an answer: the first one after its content that the answer
// does not spell itself, or -1.
int64_t EndOf(std::string_view text, int64_t content_end, bool only_space_between,
              const ControlTokens& control, const std::vector<ByteSpan>& spelt = {}) {
  ByteSpan token = control.Find(text, content_end);
  const auto is_token = [&](const ByteSpan& s) { return s.begin == token.begin; };
  while (token.end > token.begin && std::ranges::any_of(spelt, is_token)) {
    token = control.Find(text, token.end);
  }
  const auto between =
      text.substr(static_cast<size_t>(content_end), static_cast<size_t>(token.begin - content_end));
  if (token.end == token.begin) return -1;
  if (only_space_between && !chat::Strip(between, {}).empty()) return -1;
  return token.end;
}

// The span of a generation block, up to the end token in it, or else behind it.
ByteSpan UpToEndToken(std::string_view text, ByteSpan span, const ControlTokens& control) {
  const auto length = static_cast<size_t>(span.end - span.begin);
  const std::string_view written = text.substr(static_cast<size_t>(span.begin), length);
  const int64_t last = std::ssize(chat::Strip(written, {}, /*left=*/false));
  for (ByteSpan at = control.Find(written); at.end > at.begin; at = control.Find(written, at.end)) {
    if (at.end == last) return {span.begin, span.begin + last};
  }
  return {span.begin, EndOf(text, span.end, true, control)};
}

[[noreturn]] void Fail(const Conversation& conversation, size_t message, const std::string& what) {
  throw InputError(StrCat(conversation.place, ": message ", message + 1, ": ", what));
}

[[noreturn]] void FailWithoutEnd(const ChatTemplate& chat_template,
                                 const Conversation& conversation, size_t message) {
  Fail(conversation, message,
       StrCat("no special token of the tokenizer ends this answer in the text of ",
              chat_template.origin(conversation.variables),
              ", so the model would not learn to stop; use the template ",
              "and the tokenizer of one model, or add the template's end token to the tokenizer"));
}

void AddGenerated(const ChatTemplate& chat_template, const ControlTokens& control,
                  const Conversation& conversation, const std::vector<ByteSpan>& generated,
                  RenderedConversation* rendered) {
  std::vector<size_t> assistants;
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    if (conversation.messages[i]["role"] == "assistant") assistants.push_back(i);
  }
  if (generated.size() != assistants.size()) {
    throw InputError(StrCat(conversation.place, ": the generation blocks of ",
                            chat_template.origin(conversation.variables), " wrote ",
                            generated.size(), " answers of this conversation, which has ",
                            assistants.size(),
                            "; correct the template, or take its generation blocks out"));
  }
  for (size_t i = 0; i < assistants.size(); ++i) {
    if (!conversation.learnt[assistants[i]]) continue;
    const ByteSpan span = UpToEndToken(rendered->text, generated[i], control);
    if (span.end < 0) FailWithoutEnd(chat_template, conversation, assistants[i]);
    rendered->answers.push_back(span);
  }
}

// Whether a text in it spells a special token.
bool SpellsTokens(const OrderedJson& value, const ControlTokens& control) {
  if (value.is_string()) {
    const ByteSpan token = control.Find(value.string());
    return token.end > token.begin;
  }
  if (value.is_object()) {
    return std::ranges::any_of(
        value.items(), [&](const auto& field) { return SpellsTokens(field.second, control); });
  }
  return value.is_array() &&
         std::ranges::any_of(value, [&](const OrderedJson& v) { return SpellsTokens(v, control); });
}

void AddFound(const ChatTemplate& chat_template, const ControlTokens& control,
              const Conversation& conversation, RenderedConversation* rendered) {
  const std::vector<ContentPlace> contents =
      FindContents(chat_template, conversation, rendered->text, /*generation_prompt=*/false);
  std::map<std::string, std::optional<std::string>> after;
  for (size_t i = 0; i < contents.size(); ++i) {
    if (!conversation.learnt[i]) continue;
    const auto begin = BeginOf(chat_template, conversation, contents, i, rendered->text, &after);
    const auto end = contents[i].end;
    const int64_t after_last = rendered->answers.empty() ? 0 : rendered->answers.back().end;
    if (!begin || !end || *begin > *end || *begin < after_last) {
      Fail(conversation, i,
           StrCat("where ", chat_template.origin(conversation.variables),
                  " writes this answer cannot be told; put ",
                  "{% generation %} and {% endgeneration %} around what the assistant writes in ",
                  "the template (--data.chat_template=FILE)"));
    }
    const bool calls = CallsTools(conversation.messages[i]);
    std::vector<ByteSpan> spelt;  // by the arguments of calls
    if (calls && SpellsTokens(conversation.messages[i], control)) {
      auto found = FindTokens(chat_template, control, conversation, {i}, rendered->text,
                              /*generation_prompt=*/false);
      if (!found) {
        Fail(conversation, i,
             "special tokens in this call cannot be told from the one that ends it: "
             "leave them out of the row");
      }
      spelt = std::move(*found);
    }
    const int64_t token_end = EndOf(rendered->text, *end, !calls, control, spelt);
    if (token_end < 0) FailWithoutEnd(chat_template, conversation, i);
    rendered->answers.push_back({*begin, token_end});
  }
}

[[noreturn]] void FailOnGiven(const ChatTemplate& chat_template, const Conversation& conversation) {
  throw InputError(StrCat(conversation.place,
                          ": special tokens in a message, or in the tools, cannot be told from ",
                          "those that ", chat_template.origin(conversation.variables),
                          " writes: leave them out of the ",
                          "row, or let them be tokens (--data.user_special_tokens=true)"));
}

}  // namespace

std::vector<ByteSpan> FindGiven(const ChatTemplate& chat_template, const ControlTokens& control,
                                const Conversation& conversation, const std::string& text,
                                bool generation_prompt) {
  std::vector<ByteSpan> given;
  std::vector<size_t> spelling;
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    const OrderedJson& message = conversation.messages[i];
    if (message["role"] != "assistant" && SpellsTokens(message, control)) spelling.push_back(i);
  }
  const bool in_tools = SpellsTokens(conversation.variables.value("tools", OrderedJson()), control);
  if (spelling.empty() && !in_tools) return given;
  const std::vector<ContentPlace> contents =
      FindContents(chat_template, conversation, text, generation_prompt);
  for (size_t i = 0; i < contents.size(); ++i) {
    const bool answer = conversation.messages[i]["role"] == "assistant";
    if (answer || !contents[i].begin || !contents[i].end) continue;
    given.push_back({*contents[i].begin, *contents[i].end});
    OrderedJson rest = conversation.messages[i];
    rest.erase("content");
    if (!SpellsTokens(rest, control)) std::erase(spelling, i);
  }
  if (!spelling.empty() || in_tools) {
    const auto tokens =
        FindTokens(chat_template, control, conversation, spelling, text, generation_prompt);
    if (!tokens) FailOnGiven(chat_template, conversation);
    given.insert(given.end(), tokens->begin(), tokens->end());
  }
  std::ranges::sort(given, {}, &ByteSpan::begin);
  return given;
}

RenderedConversation RenderConversation(const ChatTemplate& chat_template,
                                        const ControlTokens& control,
                                        const Conversation& conversation,
                                        bool special_tokens_of_users) {
  RenderedConversation rendered;
  std::vector<ByteSpan> generated;
  try {
    RenderedChat chat = chat_template.Render(conversation.messages, conversation.variables, false);
    rendered.text = std::move(chat.text);
    generated = std::move(chat.generation);
  } catch (const InputError& error) {
    throw InputError(StrCat(conversation.place, ": ", error.what()));
  }
  if (!special_tokens_of_users) {
    rendered.given =
        FindGiven(chat_template, control, conversation, rendered.text, /*generation_prompt=*/false);
  }
  if (chat_template.has_generation(conversation.variables)) {
    AddGenerated(chat_template, control, conversation, generated, &rendered);
  } else {
    AddFound(chat_template, control, conversation, &rendered);
  }
  return rendered;
}

}  // namespace lockstep::data
