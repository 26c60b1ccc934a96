#include "data/chat/arguments.h"

#include <algorithm>

namespace lockstep::data::chat {

std::vector<std::optional<Value>> Arguments::Bind(std::string_view function,
                                                  const std::vector<std::string>& names,
                                                  size_t least) const {
  if (positional.size() > names.size()) {
    Fail(function, " takes at most ", names.size(), " arguments, not ", positional.size());
  }
  std::vector<std::optional<Value>> bound(names.size());
  std::ranges::copy(positional, bound.begin());
  for (const auto& [name, value] : named) {
    const auto it = std::ranges::find(names, name);
    if (it == names.end()) Fail(function, " takes no argument named '", name, "'");
    std::optional<Value>& slot = bound[static_cast<size_t>(it - names.begin())];
    if (slot) Fail(function, " got two values for its argument '", name, "'");
    slot = value;
  }
  for (size_t i = 0; i < least; ++i) {
    if (!bound[i]) Fail(function, " needs the argument '", names[i], "'");
  }
  return bound;
}

const std::string& RequireText(const Value& value, const char* what) {
  RequireDefined(value);
  if (!value.Is(Kind::kString)) Fail(what, " must be a text, not '", TypeName(value), "'");
  return value.text();
}

std::optional<std::string> OptionalText(const std::optional<Value>& value, const char* what) {
  if (!value || value->Is(Kind::kNone)) return std::nullopt;
  return RequireText(*value, what);
}

int64_t IntegerOr(const std::optional<Value>& value, int64_t absent, const char* what) {
  return value ? RequireInteger(*value, what) : absent;
}

bool TruthyOr(const std::optional<Value>& value, bool absent) {
  return value ? Truthy(*value) : absent;
}

}  // namespace lockstep::data::chat
