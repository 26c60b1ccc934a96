// Renders chat templates, for tests/peers/compare_chat_templates.py:
//   render_chat < CASES > RESULTS
// Each line of CASES is a JSON object with "template", "messages", "variables",
// "add_generation_prompt" and "now" (seconds since 1970); each line of RESULTS an object with
// "text" and "generation" ([[begin, end], ...] in characters), or with "error".
#include <cstdio>
#include <iostream>
#include <string>

#include "core/error.h"
#include "core/io/json.h"
#include "data/chat/chat_template.h"
#include "data/utf8.h"

namespace {

using lockstep::OrderedJson;

OrderedJson Render(const OrderedJson& given) {
  using namespace lockstep;
  try {
    data::ChatTemplate chat_template(given.at("template").get<std::string>(), "template");
    chat_template.set_now(given.at("now").get<int64_t>());
    const data::RenderedChat chat = chat_template.Render(
        given.at("messages"), given.at("variables"), given.at("add_generation_prompt").get<bool>());
    OrderedJson spans = OrderedJson::array();
    for (const auto& [begin, end] : chat.generation) {
      const auto characters = [&](int64_t byte) {
        return data::CountUtf8(std::string_view(chat.text).substr(0, static_cast<size_t>(byte)));
      };
      spans.push_back({characters(begin), characters(end)});
    }
    return {{"text", chat.text}, {"generation", spans}};
  } catch (const InputError& error) {
    return {{"error", error.what()}};
  }
}

}  // namespace

int main() {
  try {
    for (std::string line; std::getline(std::cin, line);) {
      std::cout << Render(OrderedJson::parse(line)).dump() << '\n';
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "render_chat: error: %s\n", error.what());
    return 1;
  }
}
