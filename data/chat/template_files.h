// Chat templates in a model's files.
#pragma once

#include <map>
#include <string>

namespace lockstep::data {

struct TemplateText {
  std::string text;
  std::string origin;  // where it stands, for messages
};

// By name: "default", "tool_use" for conversations with tools, and others.
using NamedTemplates = std::map<std::string, TemplateText>;

// The templates of a tokenizer_config.json, a text or a list of {"name", "template"}; empty if it
// has none. InputError for JSON of another kind.
NamedTemplates TemplatesIn(const std::string& json, const std::string& origin);

// The templates of a file (a .json has them as TemplatesIn says, any other file is the default
// one), or those of a folder, as transformers finds them: chat_template.jinja and
// additional_chat_templates/NAME.jinja, in place of those of tokenizer_config.json. If there is
// none of these, that of chat_template.json. Empty if there is none.
NamedTemplates FindTemplates(const std::string& path);

}  // namespace lockstep::data
