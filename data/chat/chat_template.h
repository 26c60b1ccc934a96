// Chat templates: the text of a conversation, as a model was trained to read it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/io/json.h"
#include "data/chat/budget.h"
#include "data/chat/evaluator.h"
#include "data/chat/template_files.h"

namespace lockstep::data {

// A conversation as text.
struct RenderedChat {
  std::string text;  // UTF-8
  // What {% generation %} blocks wrote, in order: what the assistant says, for the loss mask.
  // Bytes of `text`; CountUtf8 gives characters.
  std::vector<chat::ByteSpan> generation;
};

// A template in the language of Jinja, as Hugging Face's tokenizers carry it: the subset that chat
// templates use, in the environment of transformers (trim_blocks, lstrip_blocks, break and
// continue, tojson without HTML escapes, raise_exception, strftime_now, generation blocks).
// README.md lists what there is. Immutable after construction, so threads can share it.
class ChatTemplate {
 public:
  // Parses `source`. Throws InputError with `origin` (a file), line and column if it is not a
  // template, or uses what is not supported.
  ChatTemplate(std::string_view source, std::string origin);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // Those called "default" and "tool_use". InputError also if there is no default.
  ChatTemplate(const NamedTemplates& templates, const std::string& origin);

  // What FindTemplates finds; special tokens (bos_token and so on) become variables if there is a
  // tokenizer_config.json next to it. InputError if there is no template.
  static ChatTemplate Load(const std::string& path);
  // The templates of a tokenizer_config.json, with its special tokens. `origin` names the text in
  // messages. InputError if there is none.
  static ChatTemplate FromConfig(const std::string& json, const std::string& origin);

  // `messages`: a list of objects with "role" and "content", in the order that their files have;
  // `variables`: an object, or null; for example {"tools": [...], "enable_thinking": false}. It
  // overrides special tokens; `tools` and `documents` are None unless given. With tools the
  // template "tool_use" renders them, if there is one.
  //
  // Throws InputError with the position in the template if the template fails, raises an exception,
  // or exceeds `limits`.
  RenderedChat Render(const OrderedJson& messages, const OrderedJson& variables,
                      bool add_generation_prompt) const;

  // Whether Render returns generation spans with such variables, and where the template comes from.
  bool has_generation(const OrderedJson& variables) const {
    return For(variables).syntax->has_generation;
  }
  const std::string& origin(const OrderedJson& variables) const { return For(variables).origin; }
  // The tokenizer's, by name ("bos_token"); variables of the template.
  const std::map<std::string, std::string>& special_tokens() const { return special_tokens_; }

  void set_special_tokens(std::map<std::string, std::string> tokens) {
    special_tokens_ = std::move(tokens);
  }
  void set_limits(const chat::Limits& limits) { limits_ = limits; }
  // The time that strftime_now returns, in seconds since 1970; the current time unless it is set.
  // Set it to prepare data that can be reproduced.
  void set_now(std::optional<int64_t> now) { now_ = now; }

 private:
  struct Parsed {
    std::string origin;
    std::unique_ptr<const chat::Syntax> syntax;
  };
  static Parsed Parse(std::string_view source, std::string origin);
  const Parsed& For(const OrderedJson& variables) const;

  Parsed default_, tool_use_;  // the latter without syntax if there is none
  std::map<std::string, std::string> special_tokens_;
  chat::Limits limits_;
  std::optional<int64_t> now_;
};

}  // namespace lockstep::data
