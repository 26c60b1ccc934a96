// The methods of texts, lists, tuples and dicts.
#pragma once

#include <optional>
#include <string>

#include "data/chat/arguments.h"
#include "data/chat/value.h"

namespace lockstep::data::chat {

// The bound method, or nullopt if such objects have no method of that name. Undefined, with the
// reason, if Python has it but templates may not call it: it changes its object, or is not
// supported.
std::optional<Value> FindMethod(const Value& object, const std::string& name);

Value CallMethod(const Method& method, const Arguments& arguments);

}  // namespace lockstep::data::chat
