#include "data/conversations/content_marks.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/error.h"
#include "data/chat/text.h"

namespace lockstep::data {
namespace {
using chat::ByteSpan;

constexpr size_t kMarkByte = 2;  // the last byte of the opening character, which can be changed

// Marks are a number between two characters of a private area that the text does not have.
class Marks {
 public:
  explicit Marks(const std::string& text) {
    while (text.find(open_) != std::string::npos) ++open_[kMarkByte];
  }
  std::string Mark(size_t number) const { return StrCat(open_, number, kClose); }

  // Takes the marks out of the text, and says where each was.
  std::vector<std::vector<int64_t>> TakeOut(std::string* text, size_t count) const {
    std::vector<std::vector<int64_t>> places(count);
    std::string out;
    size_t at = 0;
    while (true) {
      const size_t mark = text->find(open_, at);
      out.append(*text, at, mark - at);
      if (mark == std::string::npos) break;
      const size_t close = text->find(kClose, mark);
      size_t number = count;
      if (close != std::string::npos) {
        std::from_chars(text->data() + mark + open_.size(), text->data() + close, number);
      }
      if (number >= count) {  // the template has cut it
        out.append(open_);
        at = mark + open_.size();
        continue;
      }
      places[number].push_back(std::ssize(out));
      at = close + kClose.size();
    }
    *text = std::move(out);
    return places;
  }

 private:
  std::string open_ = "\ue080";
  static constexpr std::string_view kClose = "\uf8f0";
};

void MarkBegin(const std::string& mark, std::string* content) {
  const size_t left = chat::Strip(*content, {}, true, /*right=*/false).size();
  if (left > 0) content->insert(content->size() - left, mark);
}

void MarkEnd(const std::string& mark, std::string* content) {
  content->insert(chat::Strip(*content, {}, /*left=*/false).size(), mark);
}

// Before each special token in a text of `value`.
void MarkTokens(const std::string& mark, const ControlTokens& control, OrderedJson* value) {
  if (value->is_array()) {
    for (OrderedJson& one : *value) MarkTokens(mark, control, &one);
  }
  if (value->is_object()) {
    for (auto& [key, one] : value->items()) MarkTokens(mark, control, &one);
  }
  if (!value->is_string()) return;
  auto& text = value->string();
  for (ByteSpan at = control.Find(text); at.end > at.begin; at = control.Find(text, at.end)) {
    text.insert(static_cast<size_t>(at.begin), mark);
    at.end += std::ssize(mark);
  }
}

// The first or last text of a content; null if there is none.
std::string* TextOf(OrderedJson& message, bool first) {
  if (!message.contains("content")) return nullptr;
  OrderedJson& content = message["content"];
  if (content.is_string()) return &content.string();
  std::string* found = nullptr;
  for (OrderedJson& part : content) {
    if (!part.is_object() || !part.contains("text") || !part["text"].is_string()) continue;
    found = &part["text"].string();
    if (first) break;
  }
  return found;
}

// The name of the last call's function; null if there is none.
std::string* NameOfLastCall(OrderedJson& message) {
  OrderedJson* call = &message["tool_calls"].back();
  if (call->is_object() && call->contains("function")) call = &(*call)["function"];
  if (!call->is_object() || !call->contains("name")) return nullptr;
  OrderedJson& name = (*call)["name"];
  return name.is_string() ? &name.string() : nullptr;
}

// Mark 2 i before the content of message i, mark 2 i + 1 after it; those that are wanted.
OrderedJson WithMarks(OrderedJson messages, const Marks& marks, const std::vector<bool>& wanted) {
  for (size_t i = 0; i < messages.size(); ++i) {
    OrderedJson& message = messages[i];
    std::string* end = CallsTools(message) ? NameOfLastCall(message) : TextOf(message, false);
    if (wanted[2 * i + 1] && end != nullptr) MarkEnd(marks.Mark(2 * i + 1), end);
    std::string* begin = TextOf(message, true);
    if (wanted[2 * i] && begin != nullptr) MarkBegin(marks.Mark(2 * i), begin);
  }
  return messages;
}

// Where the marks are, if the text is the same without them.
std::optional<std::vector<std::optional<int64_t>>> Places(
    const ChatTemplate& chat_template, const Conversation& conversation, const std::string& text,
    const Marks& marks, bool generation_prompt, const std::vector<bool>& wanted) try {
  std::string marked = chat_template
                           .Render(WithMarks(conversation.messages, marks, wanted),
                                   conversation.variables, generation_prompt)
                           .text;
  std::vector<std::optional<int64_t>> places(wanted.size());
  const auto found = marks.TakeOut(&marked, wanted.size());
  if (marked != text) return {};
  for (size_t i = 0; i < places.size(); ++i) {
    if (found[i].size() == 1) places[i] = found[i][0];
  }
  return places;
} catch (const InputError&) {  // a template may check contents
  return {};
}

}  // namespace

std::string SpaceAtEnd(const OrderedJson& message) {
  OrderedJson copy = message;
  const std::string* text = TextOf(copy, false);
  return text == nullptr ? "" : text->substr(chat::Strip(*text, {}, /*left=*/false).size());
}

std::optional<std::vector<ByteSpan>> FindTokens(const ChatTemplate& chat_template,
                                                const ControlTokens& control,
                                                const Conversation& conversation,
                                                const std::vector<size_t>& messages,
                                                const std::string& text,
                                                bool generation_prompt) try {
  const Marks marks(text);
  OrderedJson marked = conversation.messages, variables = conversation.variables;
  for (const size_t i : messages) MarkTokens(marks.Mark(0), control, &marked[i]);
  if (variables.contains("tools")) MarkTokens(marks.Mark(0), control, &variables["tools"]);
  std::string again = chat_template.Render(marked, variables, generation_prompt).text;
  const std::vector<int64_t> places = marks.TakeOut(&again, 1)[0];
  if (again != text) return {};
  std::vector<ByteSpan> tokens;
  for (ByteSpan at = control.Find(text); at.end > at.begin; at = control.Find(text, at.end)) {
    const auto inside = [&](int64_t place) { return at.begin <= place && place < at.end; };
    if (std::ranges::any_of(places, inside)) tokens.push_back(at);
  }
  return tokens;
} catch (const InputError&) {  // a template may check contents
  return {};
}

std::vector<ContentPlace> FindContents(const ChatTemplate& chat_template,
                                       const Conversation& conversation, const std::string& text,
                                       bool generation_prompt) {
  const Marks marks(text);
  const size_t count = conversation.messages.size();
  std::vector<bool> wanted(2 * count, true);
  auto places = Places(chat_template, conversation, text, marks, generation_prompt, wanted);
  if (!places) {
    // Some mark changes the text: a template that asks what a content begins with, for example.
    for (size_t i = 0; i < wanted.size(); ++i) {
      std::vector<bool> alone(wanted.size());
      alone[i] = true;
      wanted[i] =
          Places(chat_template, conversation, text, marks, generation_prompt, alone).has_value();
    }
    places = Places(chat_template, conversation, text, marks, generation_prompt, wanted);
  }
  std::vector<ContentPlace> contents(count);
  for (size_t i = 0; places && i < count; ++i) {
    contents[i] = {(*places)[2 * i], (*places)[2 * i + 1]};
  }
  return contents;
}

std::optional<std::string> PromptOf(const ChatTemplate& chat_template, const OrderedJson& messages,
                                    const OrderedJson& variables) try {
  return chat_template.Render(messages, variables, true).text;
} catch (const InputError&) {  // a conversation may be refused that ends there
  return {};
}

std::optional<std::string> TextAfter(const ChatTemplate& chat_template, const OrderedJson& messages,
                                     const OrderedJson& variables) {
  const auto text = PromptOf(chat_template, messages, variables);
  if (!text) return {};
  const Marks marks(*text);
  std::vector<bool> wanted(2 * messages.size());
  wanted.back() = true;
  auto marked = PromptOf(chat_template, WithMarks(messages, marks, wanted), variables);
  if (!marked) return {};
  const auto ends = marks.TakeOut(&*marked, wanted.size()).back();
  if (ends.size() != 1 || *marked != *text) return {};
  return text->substr(static_cast<size_t>(ends[0]));
}

}  // namespace lockstep::data
