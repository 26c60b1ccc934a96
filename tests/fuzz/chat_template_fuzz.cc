// A chat template of any content is rejected with a message, or renders a conversation within its
// limits, twice to the same text, with spans that lie in it. A first line of JSON, if there is one,
// is the messages.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/error.h"
#include "core/io/json.h"
#include "data/chat/chat_template.h"
#include "data/utf8.h"

namespace {

using lockstep::OrderedJson;

const OrderedJson& DefaultMessages() {
  static const OrderedJson messages = OrderedJson::parse(R"([
      {"role": "system", "content": " S "},
      {"role": "user", "content": [{"type": "text", "text": "Ünï\n<b>"}]},
      {"role": "assistant", "content": "<think>\nx\n</think>y", "tool_calls": [
          {"function": {"name": "f", "arguments": {"a": [1, 2.5, null, true], "b": {}}}}]},
      {"role": "tool", "content": "7"}])");
  return messages;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using lockstep::InputError;
  std::string_view source(reinterpret_cast<const char*>(data), size);
  OrderedJson messages = DefaultMessages();
  const size_t line = source.find('\n');
  if (source.starts_with('[') && line != std::string_view::npos) {
    try {
      messages = lockstep::ParseOrderedJson(source.substr(0, line), "the first line", 100);
    } catch (const InputError&) {  // the default ones
    }
    source.remove_prefix(line + 1);
  }
  try {
    lockstep::data::ChatTemplate chat_template(source, "fuzz");
    chat_template.set_now(0);
    chat_template.set_limits({.output_bytes = 1 << 16,
                              .memory_bytes = 1 << 22,
                              .steps = 100'000,
                              .depth = lockstep::data::chat::Limits().depth});
    const OrderedJson variables = {{"tools", messages}, {"bos_token", "<s>"}, {"n", 3}};
    const auto chat = chat_template.Render(messages, variables, true);
    LS_INVARIANT(chat.text.size() <= 1 << 16);
    LS_INVARIANT(lockstep::data::ValidUtf8Prefix(chat.text) == chat.text.size());
    LS_INVARIANT(chat.generation.empty() || chat_template.has_generation(variables));
    int64_t end = 0;
    for (const auto& span : chat.generation) {
      LS_INVARIANT(end <= span.begin && span.begin <= span.end);
      end = span.end;
    }
    LS_INVARIANT(end <= static_cast<int64_t>(chat.text.size()));
    LS_INVARIANT(chat_template.Render(messages, variables, true).text == chat.text);
  } catch (const InputError& error) {
    LS_INVARIANT(std::string_view(error.what()).size() < 1 << 18);
  }
  return 0;
}
