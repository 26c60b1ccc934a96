#include "data/conversations/rendered_conversation.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/io/json.h"
#include "data/conversations/content_marks.h"

namespace lockstep::data {
namespace {

using chat::ByteSpan;

constexpr std::string_view kSpace = " \t\r\n";

// Where answer `message` of the conversation begins, or none. The text of the generation prompt
// depends on who spoke before, and on the white space that ends what was said.
std::optional<int64_t> BeginOf(const ChatTemplate& chat_template, const Conversation& conversation,
                               const std::vector<ContentPlace>& contents, size_t message,
                               const std::string& text,
                               std::map<std::string, std::optional<std::string>>* after) {
  if (message > 0 && contents[message - 1].end) {
    const auto end = static_cast<size_t>(*contents[message - 1].end);
    const auto& before = conversation.messages[message - 1];
    std::string key = before["role"].get<std::string>();
    if (before.contains("content") && before["content"].is_string()) {
      const auto& content = before["content"].get_ref<const std::string&>();
      key += content.substr(std::min(content.find_last_not_of(kSpace) + 1, content.size()));
    }
    // A call's arguments stand between its name and the end of the message.
    const auto known = before.contains("tool_calls") ? after->end() : after->find(key);
    const std::optional<std::string> prompt =
        known != after->end() ? known->second
                              : (*after)[key] = TextAfter(chat_template, conversation, message);
    if (prompt && text.compare(end, prompt->size(), *prompt) == 0) {
      return static_cast<int64_t>(end + prompt->size());
    }
  }
  return contents[message].begin;
}

// The end of the special token that ends an answer: the first one after its content, or -1.
int64_t EndOf(std::string_view text, int64_t content_end, bool only_space_between,
              const ControlTokens& control) {
  const ByteSpan token = control.Find(text, content_end);
  const auto between =
      text.substr(static_cast<size_t>(content_end), static_cast<size_t>(token.begin - content_end));
  if (token.end == token.begin) return -1;
  if (only_space_between && between.find_first_not_of(kSpace) != std::string_view::npos) return -1;
  return token.end;
}

// The span of a generation block, up to the end token in it, or else behind it.
ByteSpan UpToEndToken(std::string_view text, ByteSpan span, const ControlTokens& control) {
  const auto length = static_cast<size_t>(span.end - span.begin);
  const std::string_view written = text.substr(static_cast<size_t>(span.begin), length);
  const auto last =
      static_cast<int64_t>(std::min(written.find_last_not_of(kSpace) + 1, written.size()));
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
              chat_template.origin(), ", so the model would not learn to stop; use the template ",
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
                            chat_template.origin(), " wrote ", generated.size(),
                            " answers of this conversation, which has ", assistants.size(),
                            "; correct the template, or take its generation blocks out"));
  }
  for (size_t i = 0; i < assistants.size(); ++i) {
    if (!conversation.learnt[assistants[i]]) continue;
    const ByteSpan span = UpToEndToken(rendered->text, generated[i], control);
    if (span.end < 0) FailWithoutEnd(chat_template, conversation, assistants[i]);
    rendered->answers.push_back(span);
  }
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
           StrCat("where ", chat_template.origin(), " writes this answer cannot be told; put ",
                  "{% generation %} and {% endgeneration %} around what the assistant writes in ",
                  "the template (--data.chat_template=FILE)"));
    }
    const bool calls = conversation.messages[i].contains("tool_calls");
    const int64_t token_end = EndOf(rendered->text, *end, !calls, control);
    if (token_end < 0) FailWithoutEnd(chat_template, conversation, i);
    rendered->answers.push_back({*begin, token_end});
  }
}

// Whether someone else than the assistant writes one.
bool SpellsControlTokens(const Conversation& conversation, const ControlTokens& control) {
  return std::ranges::any_of(conversation.messages, [&](const nlohmann::ordered_json& message) {
    if (message["role"] == "assistant" || !message.contains("content")) return false;
    const std::string content = message["content"].is_string()
                                    ? message["content"].get<std::string>()
                                    : DumpJson(message["content"]);
    const ByteSpan token = control.Find(content);
    return token.end > token.begin;
  });
}

}  // namespace

ControlTokens::ControlTokens(const Tokenizer& tokenizer) : may_begin_(256) {
  const nlohmann::json json = ParseJson(tokenizer.ToJson(), "the tokenizer");
  for (const auto& token : json.value("added_tokens", nlohmann::json::array())) {
    if (!token.value("special", false)) continue;
    texts_.push_back(token.at("content").get<std::string>());
    if (texts_.back().empty()) texts_.pop_back();
  }
  std::ranges::stable_sort(texts_, std::greater(), &std::string::size);
  for (const std::string& text : texts_) may_begin_[static_cast<uint8_t>(text[0])] = true;
}

ByteSpan ControlTokens::Find(std::string_view text, int64_t from) const {
  for (auto i = static_cast<size_t>(from); i < text.size(); ++i) {
    if (!may_begin_[static_cast<uint8_t>(text[i])]) continue;
    for (const std::string& token : texts_) {
      if (!text.substr(i).starts_with(token)) continue;
      return {static_cast<int64_t>(i), static_cast<int64_t>(i + token.size())};
    }
  }
  return {std::ssize(text), std::ssize(text)};
}

std::vector<ByteSpan> FindGiven(const ChatTemplate& chat_template, const ControlTokens& control,
                                const Conversation& conversation, const std::string& text,
                                bool generation_prompt) {
  std::vector<ByteSpan> given;
  if (!SpellsControlTokens(conversation, control)) return given;
  const std::vector<ContentPlace> contents =
      FindContents(chat_template, conversation, text, generation_prompt);
  for (size_t i = 0; i < contents.size(); ++i) {
    const bool answer = conversation.messages[i]["role"] == "assistant";
    if (answer || !contents[i].begin || !contents[i].end) continue;
    given.push_back({*contents[i].begin, *contents[i].end});
  }
  std::ranges::sort(given, {}, &ByteSpan::begin);
  return given;
}

RenderedConversation RenderConversation(const ChatTemplate& chat_template,
                                        const ControlTokens& control,
                                        const Conversation& conversation) {
  RenderedConversation rendered;
  std::vector<ByteSpan> generated;
  try {
    RenderedChat chat = chat_template.Render(conversation.messages, conversation.variables, false);
    rendered.text = std::move(chat.text);
    generated = std::move(chat.generation);
  } catch (const InputError& error) {
    throw InputError(StrCat(conversation.place, ": ", error.what()));
  }
  rendered.given =
      FindGiven(chat_template, control, conversation, rendered.text, /*generation_prompt=*/false);
  if (chat_template.has_generation()) {
    AddGenerated(chat_template, control, conversation, generated, &rendered);
  } else {
    AddFound(chat_template, control, conversation, &rendered);
  }
  return rendered;
}

}  // namespace lockstep::data
