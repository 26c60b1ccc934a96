// The arguments of a call.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/chat/value.h"

namespace lockstep::data::chat {

struct Arguments {
  List positional;
  std::vector<std::pair<std::string, Value>> named;

  // The arguments in the order of `names`, each nullopt if it is not given. Throws for arguments
  // beyond these, and if one of the first `least` is missing.
  std::vector<std::optional<Value>> Bind(std::string_view function,
                                         const std::vector<std::string>& names,
                                         size_t least = 0) const;
};

// Of a bound argument: absent and None are the same for optional texts in Python's methods.
std::optional<std::string> OptionalText(const std::optional<Value>& value, const char* what);
// An undefined value is no text.
const std::string& RequireText(const Value& value, const char* what);
int64_t IntegerOr(const std::optional<Value>& value, int64_t absent, const char* what);
bool TruthyOr(const std::optional<Value>& value, bool absent);

}  // namespace lockstep::data::chat
