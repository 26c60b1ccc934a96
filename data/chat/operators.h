// Operators of expressions, on values.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "data/chat/value.h"

namespace lockstep::data::chat {

// `symbol` is one of + - * / // % **. Integers of more than 64 bits are errors.
Value Arithmetic(std::string_view symbol, const Value& a, const Value& b);
Value Negate(const Value& value);

// object.name: methods and attributes first, then the key of a dict. Undefined if there is neither.
Value GetAttribute(const Value& object, const std::string& name);
// object[key]: elements first, then methods and attributes.
Value GetItem(const Value& object, const Value& key);
// object[begin:end:step]; None for what is absent.
Value GetSlice(const Value& object, const Value& begin, const Value& end, const Value& step);

}  // namespace lockstep::data::chat
