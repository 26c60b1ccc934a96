#include "data/conversations/content_marks.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/error.h"

namespace lockstep::data {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kSpace = " \t\r\n\f\v";
constexpr size_t kMarkByte = 2;  // the last byte of the opening character, which can be changed

// Marks are a number between two characters of a private area that the text does not have.
class Marks {
 public:
  explicit Marks(const std::string& text) {
    while (text.find(open_) != std::string::npos) ++open_[kMarkByte];
  }
  std::string Mark(size_t number) const { return StrCat(open_, number, kClose); }

  // Takes the marks out of the text, and says where each was; more often than once: nowhere.
  std::vector<std::optional<int64_t>> TakeOut(std::string* text, size_t count) const {
    std::vector<std::optional<int64_t>> places(count);
    std::vector<int> seen(count);
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
      places[number] = static_cast<int64_t>(out.size());
      ++seen[number];
      at = close + kClose.size();
    }
    for (size_t i = 0; i < count; ++i) {
      if (seen[i] > 1) places[i].reset();
    }
    *text = std::move(out);
    return places;
  }

 private:
  std::string open_ = "\ue080";
  static constexpr std::string_view kClose = "\uf8f0";
};

void MarkBegin(const std::string& mark, std::string* content) {
  const size_t at = content->find_first_not_of(kSpace);
  if (at != std::string::npos) content->insert(at, mark);
}

void MarkEnd(const std::string& mark, std::string* content) {
  const size_t last = content->find_last_not_of(kSpace);
  if (last != std::string::npos) content->insert(last + 1, mark);
}

// The first or last text of a content; null if there is none.
std::string* TextOf(Json& message, bool first) {
  if (!message.contains("content")) return nullptr;
  Json& content = message["content"];
  if (content.is_string()) return content.get_ptr<Json::string_t*>();
  std::string* found = nullptr;
  for (Json& part : content) {
    if (!part.is_object() || !part.contains("text") || !part["text"].is_string()) continue;
    found = part["text"].get_ptr<Json::string_t*>();
    if (first) break;
  }
  return found;
}

// The name of the last call's function; null if there is none.
std::string* NameOfLastCall(Json& message) {
  Json* call = &message["tool_calls"].back();
  if (call->is_object() && call->contains("function")) call = &(*call)["function"];
  if (!call->is_object() || !call->contains("name")) return nullptr;
  return (*call)["name"].get_ptr<Json::string_t*>();
}

// Mark 2 i before the content of message i, mark 2 i + 1 after it; those that are wanted.
Json WithMarks(Json messages, const Marks& marks, const std::vector<bool>& wanted) {
  for (size_t i = 0; i < messages.size(); ++i) {
    Json& message = messages[i];
    std::string* end =
        message.contains("tool_calls") ? NameOfLastCall(message) : TextOf(message, false);
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
  auto places = marks.TakeOut(&marked, wanted.size());
  if (marked != text) return {};
  return places;
} catch (const InputError&) {  // a template may check contents
  return {};
}

}  // namespace

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

std::optional<std::string> TextAfter(const ChatTemplate& chat_template,
                                     const Conversation& conversation, size_t count) {
  if (count == 0) return {};
  Json messages = Json::array();
  for (size_t i = 0; i < count; ++i) messages.push_back(conversation.messages[i]);
  const auto render = [&](const Json& some) {
    return chat_template.Render(some, conversation.variables, true).text;
  };
  try {
    const std::string text = render(messages);
    const Marks marks(text);
    std::vector<bool> wanted(2 * count);
    wanted.back() = true;
    std::string marked = render(WithMarks(std::move(messages), marks, wanted));
    const auto end = marks.TakeOut(&marked, 2 * count).back();
    if (!end || marked != text) return {};
    return text.substr(static_cast<size_t>(*end));
  } catch (const InputError&) {  // a conversation may be refused that ends there
    return {};
  }
}

}  // namespace lockstep::data
