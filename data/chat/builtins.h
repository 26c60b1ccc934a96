// Filters (value|name) and tests (value is name).
#pragma once

#include <string>
#include <string_view>

#include "data/chat/arguments.h"
#include "data/chat/value.h"

namespace lockstep::data::chat {

// Throw TemplateFailure unless there is such a filter or test; the message says whether Jinja has
// it.
void RequireFilter(std::string_view name);
void RequireTest(std::string_view name);

Value ApplyFilter(const std::string& name, const Value& value, const Arguments& arguments);
bool ApplyTest(const std::string& name, const Value& value, const Arguments& arguments);

// json.dumps of Python, as Hugging Face's filter `tojson` calls it: no HTML escapes.
Value ToJson(const Value& value, const Arguments& arguments);

}  // namespace lockstep::data::chat
