// Chat templates against transformers with Jinja2, and templates that must end with an error.
#include "data/chat/chat_template.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "core/io/file.h"
#include "core/io/json.h"
#include "data/utf8.h"
#include "tests/data/data_test_util.h"

namespace lockstep::data {
namespace {
using testing::AllOf;
using testing::HasSubstr;

std::string Render(const std::string& source,
                   const OrderedJson& variables = OrderedJson::object()) {
  return ChatTemplate(source, "t.jinja").Render(OrderedJson::array(), variables, false).text;
}

// What the error says of the template, or of its rendering.
std::string ErrorOf(const std::string& source,
                    const OrderedJson& variables = OrderedJson::object()) {
  return MessageOf<InputError>([&] { Render(source, variables); });
}

// "t.jinja, line 1, column 4: what is wrong".
testing::Matcher<std::string> At(int line, int column, const std::string& what) {
  return AllOf(testing::StartsWith(StrCat("t.jinja, line ", line, ", column ", column, ": ")),
               HasSubstr(what));
}

TEST(ChatTemplate, RendersLikeTransformers) {
  setenv("TZ", "UTC", /*overwrite=*/1);
  const OrderedJson goldens = OrderedJson::parse(ReadFile(TestData("chat_template_goldens.json")));
  int texts = 0, errors = 0, spans = 0;
  for (const OrderedJson& golden : goldens["cases"]) {
    const bool is_file = golden.contains("file");
    const std::string source =
        is_file ? ReadFile(TestData("chat_templates/" + golden["file"].get<std::string>()))
                : golden["template"].get<std::string>();
    SCOPED_TRACE(is_file ? StrCat(golden["file"], " with ", golden["chat"]) : source);
    const OrderedJson& messages =
        is_file ? goldens["chats"][golden["chat"].string()] : goldens["messages"];
    const OrderedJson& variables =
        golden.contains("variables") ? golden["variables"] : goldens["variables"];
    RenderedChat chat;
    const std::string error = MessageOf<InputError>([&] {
      ChatTemplate chat_template(source, "golden");
      chat_template.set_now(goldens["now"].get<int64_t>());
      chat =
          chat_template.Render(messages, variables, golden.value("add_generation_prompt", false));
    });
    if (golden.contains("error")) {
      EXPECT_THAT(error, HasSubstr("golden, line ")) << chat.text;
      ++errors;
      continue;
    }
    EXPECT_EQ(error, "no error");
    EXPECT_EQ(chat.text, golden["text"].get<std::string>());
    OrderedJson characters = OrderedJson::array();
    for (const auto& [begin, end] : chat.generation) {
      const auto count = [&](int64_t bytes) {
        return CountUtf8(std::string_view(chat.text).substr(0, static_cast<size_t>(bytes)));
      };
      characters.push_back({count(begin), count(end)});
    }
    EXPECT_EQ(characters, golden.value("generation", OrderedJson::array()));
    ++texts;
    spans += static_cast<int>(characters.size());
  }
  EXPECT_GE(texts, 170);
  EXPECT_GE(errors, 80);
  EXPECT_GE(spans, 10);
}

TEST(ChatTemplate, SpansAreWhatTheAssistantSays) {
  const ChatTemplate chat_template(ReadFile(TestData("chat_templates/chatml_masked.jinja")),
                                   "chatml_masked.jinja");
  EXPECT_TRUE(chat_template.has_generation(nullptr));
  const OrderedJson messages = OrderedJson::parse(R"([{"role": "user", "content": "é"},
      {"role": "assistant", "content": "日本"}, {"role": "user", "content": "b"},
      {"role": "assistant", "content": "c"}])");
  const RenderedChat chat = chat_template.Render(messages, nullptr, true);
  std::vector<std::string> said;
  for (const auto& [begin, end] : chat.generation) {
    said.push_back(chat.text.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
  }
  EXPECT_THAT(said, testing::ElementsAre("日本<|im_end|>", "c<|im_end|>"));
  EXPECT_FALSE(ChatTemplate("{{ messages }}", "t").has_generation(nullptr));
}

TEST(ChatTemplate, KeepsTheOrderOfKeys) {
  EXPECT_EQ(Render("{{ tools | tojson }}",
                   OrderedJson::parse(R"({"tools": [{"z": 1, "a": {"y": 2, "b": 3}}]})")),
            R"([{"z": 1, "a": {"y": 2, "b": 3}}])");
}

TEST(ChatTemplate, ErrorsSayWhere) {
  EXPECT_THAT(ErrorOf("a\n\n  {{ 1 + 'a' }}"), At(3, 8, "unsupported operand types for +"));
  EXPECT_THAT(ErrorOf("é日 {{ nothing.x }}"), At(1, 14, "'nothing' is undefined"));
  EXPECT_THAT(ErrorOf("{% macro f(x) %}\n{{ x.a.b }}{% endmacro %}{{ f({}) }}"),
              At(2, 7, "'dict object' has no attribute 'a'"));
  EXPECT_THAT(ErrorOf("{% for x in y %}\n{% if x %}"), At(2, 4, "this tag has no {% endif %}"));
  EXPECT_THAT(ErrorOf("{{ raise_exception('Only one turn!') }}"),
              At(1, 19, "the template raises an exception: Only one turn!"));
  EXPECT_THAT(ErrorOf("{{ 'a' | upper"), At(1, 1, "this tag has no end, }}"));
  EXPECT_THAT(ErrorOf("{{ '' ~ 'a'.split() | nothing }}"), At(1, 21, "the filter 'nothing'"));
}

TEST(ChatTemplate, ErrorsNameWhatIsNotSupported) {
  const std::pair<const char*, const char*> cases[] = {
      {"{% include 'x' %}", "the tag 'include' is not supported"},
      {"{% call f() %}{% endcall %}", "the tag 'call' is not supported"},
      {"{% nothing %}", "the tag 'nothing' is unknown"},
      {"{% endif %}", "the tag 'endif' is unknown, or closes no open tag"},
      {"{% for x in y recursive %}{% endfor %}", "recursive loops are not supported"},
      {"{{ x | groupby('a') }}", "the filter 'groupby' is not supported; there are abs, "},
      {"{{ x is escaped }}", "the test 'escaped' is not supported"},
      {"{{ '%s' % 1 }}", "formatting with 'text' % values is not supported"},
      {"{{ '{}'.format(1) }}", "the method str.format is not supported"},
      {"{{ [].append(1) }}", "the method list.append would change its object"},
      {"{{ f(*[1]) }}", "arguments with * and ** are not supported"},
      {"{{ cycler('a') }}", "'cycler' is not supported"},
      {"{{ '\\N{DASH}' }}", "names of characters"},
      {"{{ 0x10 }}", "this number is not supported"},
      {"{{ 9223372036854775808 }}", "does not fit in 64 bits"},
      {"{{ 9223372036854775807 + 1 }}", "an integer of more than 64 bits"},
      {"{% macro f() %}{% generation %}{% endgeneration %}{% endmacro %}", "a generation block"},
      {"{% generation %}{% generation %}{% endgeneration %}{% endgeneration %}",
       "cannot be located"},
      {"{% for x in y %}{% generation %}{% break %}{% endgeneration %}{% endfor %}", "'break'"},
      {"{{ 'a'.upper }}", "the method 'upper' cannot be printed; call it: upper()"},
      {"{{ ['a'] | map('upper') }}", "make a list of it with |list first"},
      {"{% set g = ['a'] | map('upper') %}{{ g | join }}{{ g | join }}", "was used before"},
      {"{{ 'a' | safe + '<' }}", "escapes the other text for HTML; use ~"},
  };
  for (const auto& [source, message] : cases) {
    EXPECT_THAT(ErrorOf(source), HasSubstr(message)) << source;
  }
}

// Templates of strangers: each of these must end soon, and say why.
TEST(ChatTemplate, IsBounded) {
  // Below the defaults, for a test of seconds.
  const chat::Limits limits{.output_bytes = 4 << 20, .memory_bytes = 8 << 20, .steps = 1'000'000};
  const std::string deep_calls = "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}";
  const std::string values = "{% set ns = namespace(v=[]) %}{% for i in range(1000) %}";
  const std::pair<std::string, const char*> cases[] = {
      {deep_calls, "nests deeper than"},
      {"{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}",
       "does a macro call itself without an end?"},
      {"{{ range(10 ** 12) }}", "range has more than 100000 elements"},
      {"{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
       "does not end within"},
      {"{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(50) }}",
       "does not end within"},
      {"{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% "
       "endfor %}",
       "a text of more than"},
      {"{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% "
       "endfor %}",
       "a text of more than"},
      {"{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% "
       "endfor %}",
       "need more than"},
      {values + "{% set ns.v = ns.v + ['x' * 100000 ~ i] %}{% endfor %}", "need more than"},
      {values + "{% set ns.v = [ns.v] %}{% endfor %}", "nested deeper than 100"},
      {values + "{% set ns.v = [ns.v, ns.v] %}{% if loop.index == 60 %}{{ ns.v }}{% endif %}{% "
                "endfor %}",
       "the template"},
      {values +
           "{% set ns.v = [ns.v, ns.v] %}{% if loop.index == 60 %}{{ ns.v | tojson }}{% endif %}"
           "{% endfor %}",
       "the template"},
      {"{% set a = namespace(v=[]) %}{% set b = namespace(v=[]) %}{% for i in range(60) %}"
       "{% set a.v = [a.v, a.v] %}{% set b.v = [b.v, b.v] %}{% endfor %}{{ a.v == b.v }}",
       "does not end within"},
      {"{{ 'x' * 10 ** 12 }}", "a text of more than"},
      {"{{ [1] * 10 ** 12 }}", "a text of more than"},
      {"{{ ('a' * 100000).replace('a', 'b' * 100000) }}", "a text of more than"},
      {"{{ ('a' * 100000).replace('', 'b' * 100000) }}", "a text of more than"},
      {"{{ (['a'] * 100000) | join('b' * 100000) }}", "a text of more than"},
      {"{{ ('b' * 100000).join(['a'] * 100000) }}", "a text of more than"},
      {"{{ ('a\\n' * 1000) | indent(100000) }}", "a text of more than"},
      {"{{ [1] | tojson(indent=10 ** 12) }}", "a text of more than"},
      {"{{ ([1] * 100000) | tojson(separators=('x' * 100000, '')) }}", "a text of more than"},
      {"{% for i in range(100000) %}{{ 'x' * 100000 }}{% endfor %}", "a text of more than"},
      {"{% for i in range(100000) %}{% if ('x' * 100000) in ('y' * 900000) %}{% endif %}{% "
       "endfor %}",
       "does not end within"},
      {"{{ strftime_now('%999999999d') }}", "the text is too long"},
      {"{{ 2 ** 2 ** 70 }}", "an integer of more than 64 bits"},
      {"{{ (10 ** 18) ** (10 ** 18) }}", "an integer of more than 64 bits"},
      {"{{ " + std::string(200, '(') + "1" + std::string(200, ')') + " }}",
       "nested deeper than 150"},
      {"{{ " + std::string(100000, '[') + "1" + std::string(100000, ']') + " }}", "nested deeper"},
      {"{{ " + std::string(100000, '-') + "1 }}", "nested deeper than 150"},
  };
  for (const auto& [source, message] : cases) {
    EXPECT_THAT(MessageOf<InputError>([&] {
                  ChatTemplate chat_template(source, "t.jinja");
                  chat_template.set_limits(limits);
                  chat_template.Render(OrderedJson::array(), nullptr, false);
                }),
                AllOf(HasSubstr("t.jinja, line 1, "), HasSubstr(message)))
        << source.substr(0, 200);
  }
  std::string sum = "{{ 1", ifs, nots = "{{ ";
  for (int i = 0; i < 100000; ++i) sum += "+1", nots += "not ";
  for (int i = 0; i < 10000; ++i) ifs += "{% if 1 %}";
  EXPECT_THAT(ErrorOf(sum + " }}"), HasSubstr("nested deeper than 150"));
  EXPECT_THAT(ErrorOf(nots + "1 }}"), HasSubstr("nested deeper than 150"));
  EXPECT_THAT(ErrorOf(ifs), HasSubstr("nested deeper than 150"));
}

// The deepest that the limits allow fits on the stack, with sanitizers too.
TEST(ChatTemplate, AllowsDeepMacros) {
  EXPECT_EQ(Render("{% macro f(n) %}{% if n %}{% for i in [0] %}{{ (f(n - 1) ~ '') | trim }}x"
                   "{% endfor %}{% endif %}{% endmacro %}{{ f(40) }}"),
            std::string(40, 'x'));
}

TEST(ChatTemplate, LimitsCanBeSet) {
  ChatTemplate chat_template("{% for i in range(1000) %}ab{% endfor %}", "t.jinja");
  EXPECT_EQ(chat_template.Render(OrderedJson::array(), nullptr, false).text.size(), 2000u);
  chat_template.set_limits({.output_bytes = 1999});
  EXPECT_THAT(
      MessageOf<InputError>([&] { chat_template.Render(OrderedJson::array(), nullptr, false); }),
      HasSubstr("a text of more than 1999 bytes"));
  chat_template.set_limits({.steps = 1000});
  EXPECT_THAT(
      MessageOf<InputError>([&] { chat_template.Render(OrderedJson::array(), nullptr, false); }),
      HasSubstr("within 1000 steps"));
}

TEST(ChatTemplate, RefusesBadInput) {
  const ChatTemplate chat_template("{{ messages }}", "t.jinja");
  const auto error = [&](const OrderedJson& messages, const OrderedJson& variables) {
    return MessageOf<InputError>([&] { chat_template.Render(messages, variables, false); });
  };
  EXPECT_THAT(error(OrderedJson::object(), nullptr), HasSubstr("must be a list, not object"));
  EXPECT_THAT(error(OrderedJson::array(), OrderedJson::array()),
              HasSubstr("must be an object, not array"));
  EXPECT_THAT(error(OrderedJson::array({"\xff"}), nullptr), HasSubstr("is not UTF-8 at byte 0"));
  EXPECT_THAT(error(OrderedJson::array({UINT64_MAX}), nullptr),
              HasSubstr("does not fit in 64 bits"));
  OrderedJson deep = 1;
  for (int i = 0; i < 200; ++i) deep = OrderedJson::array({deep});
  EXPECT_THAT(error(OrderedJson::array({deep}), nullptr), HasSubstr("nested deeper than 100"));
  EXPECT_THAT(ErrorOf("a\xff"), HasSubstr("t.jinja: the chat template is not UTF-8 at byte 1"));
  EXPECT_THAT(ErrorOf(std::string(2 << 20, 'a')), HasSubstr("is too long"));
}

class ChatTemplateFiles : public testing::Test {
 protected:
  void WriteConfig(const std::string& text) { WriteText(folder_ + "/tokenizer_config.json", text); }
  std::string LoadAndRender(const OrderedJson& variables = nullptr) {
    return ChatTemplate::Load(folder_).Render(OrderedJson::array(), variables, false).text;
  }
  std::string LoadError() {
    return MessageOf<InputError>([&] { ChatTemplate::Load(folder_); });
  }

  std::string folder_ = TestFolder();
};

TEST_F(ChatTemplateFiles, AreFound) {
  EXPECT_THAT(LoadError(), HasSubstr("there is no chat_template; put"));
  WriteText(folder_ + "/chat_template.json", R"({"chat_template": "O"})");
  WriteConfig(R"({"bos_token": "<s>"})");
  EXPECT_EQ(LoadAndRender(), "O");
  WriteConfig(R"({"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false},
                  "pad_token": null, "chat_template": "{{ bos_token }}{{ eos_token }}{{ pad_token }}"})");
  EXPECT_EQ(LoadAndRender(), "<s></s>");
  EXPECT_EQ(ChatTemplate::Load(folder_ + "/tokenizer_config.json").origin(nullptr),
            folder_ + "/tokenizer_config.json: chat_template");
  // The variables of a call override the tokens of the tokenizer.
  EXPECT_EQ(LoadAndRender(OrderedJson::parse(R"({"bos_token": "B"})")), "B</s>");
  WriteText(folder_ + "/chat_template.jinja", "J{{ bos_token }}");
  EXPECT_EQ(LoadAndRender(), "J<s>");
  EXPECT_EQ(ChatTemplate::Load(folder_ + "/chat_template.jinja")
                .Render(OrderedJson::array(), nullptr, false)
                .text,
            "J<s>");
}

// Which one transformers takes; tests/peers/compare_conversations.py compares.
TEST_F(ChatTemplateFiles, ToolsTakeTheTemplateForThem) {
  const auto with = [](const char* tools) {
    return OrderedJson{{"tools", OrderedJson::parse(tools)}};
  };
  WriteConfig(R"({"bos_token": "<s>", "chat_template": [
      {"name": "default", "template": "D"}, {"name": "rag", "template": "{% broken"},
      {"name": "tool_use", "template": "{% generation %}T{{ bos_token }}{% endgeneration %}"}]})");
  EXPECT_EQ(LoadAndRender(), "D");
  EXPECT_EQ(LoadAndRender(with("null")), "D");
  EXPECT_EQ(LoadAndRender(with("[]")), "T<s>");
  EXPECT_EQ(LoadAndRender(with(R"([{"name": "f"}])")), "T<s>");
  const ChatTemplate both = ChatTemplate::Load(folder_);
  EXPECT_FALSE(both.has_generation(nullptr));
  EXPECT_TRUE(both.has_generation(with("[]")));
  EXPECT_THAT(both.origin(with("[]")), HasSubstr("tool_use"));

  // Files of their own take the place of all of these.
  WriteText(folder_ + "/chat_template.jinja", "J");
  EXPECT_EQ(LoadAndRender(with("[]")), "J");
  MakeDirectories(folder_ + "/additional_chat_templates");
  WriteText(folder_ + "/additional_chat_templates/tool_use.jinja", "K");
  EXPECT_EQ(LoadAndRender(with("[]")), "K");
  EXPECT_EQ(LoadAndRender(), "J");
}

TEST_F(ChatTemplateFiles, AreChecked) {
  WriteConfig("[]");
  EXPECT_THAT(LoadError(), HasSubstr("tokenizer_config.json: expected a JSON object"));
  WriteConfig("{}");
  EXPECT_THAT(LoadError(), HasSubstr("there is no chat_template; put"));
  WriteConfig(R"({"chat_template": 5})");
  EXPECT_THAT(LoadError(), HasSubstr("there is no chat_template; put"));
  WriteConfig(R"({"chat_template": [{"name": "default"}]})");
  EXPECT_THAT(LoadError(), HasSubstr("must have a \"name\" and a \"template\""));
  WriteConfig(R"({"chat_template": [{"name": "rag", "template": ""}]})");
  EXPECT_THAT(LoadError(), HasSubstr("no chat template is named \"default\"; there is rag"));
  WriteConfig(R"({"chat_template": "{% if %}"})");
  EXPECT_THAT(LoadError(), HasSubstr("chat_template, line 1, column 7: expected a value"));
}

}  // namespace
}  // namespace lockstep::data
