#include "data/chat/builtins.h"

#include <algorithm>
#include <map>

#include "data/chat/text.h"

namespace lockstep::data::chat {
namespace {

using Table = std::map<std::string, const Builtin*, std::less<>>;

const Table& BuiltinsOf(BuiltinKind kind) {
  static const std::vector<Builtin> tables[] = {FilterTable(), TestTable(), MethodTable(),
                                                FunctionTable()};
  static const auto by_kind = [] {
    std::map<BuiltinKind, Table> by_kind;
    for (const auto& table : tables) {
      for (const Builtin& builtin : table) {
        for (const std::string& name : builtin.names) by_kind[builtin.kind][name] = &builtin;
      }
    }
    return by_kind;
  }();
  return by_kind.at(kind);
}

Value Default(const std::string& text) {
  if (text == "none") return Value();
  if (text == "false") return Value::Bool(false);
  const bool is_number = text.find_first_of("0123456789") != text.npos;
  return is_number ? Value::Int(std::stoll(text)) : Value::String(text);
}

}  // namespace

std::vector<std::optional<Value>> Bind(std::string_view function, const Arguments& arguments,
                                       const std::vector<std::string>& names) {
  if (arguments.positional.size() > names.size()) {
    Fail(function, " takes at most ", names.size(), " arguments, not ",
         arguments.positional.size());
  }
  std::vector<std::optional<Value>> bound(names.size());
  std::ranges::copy(arguments.positional, bound.begin());
  for (const auto& [name, value] : arguments.named) {
    const auto it = std::ranges::find(names, name);
    if (it == names.end()) Fail(function, " takes no argument named '", name, "'");
    std::optional<Value>& slot = bound[static_cast<size_t>(it - names.begin())];
    if (slot) Fail(function, " got two values for its argument '", name, "'");
    slot = value;
  }
  return bound;
}

std::string Call::Name(size_t i) const {
  return "the argument '" + builtin.parameters[i] + "' of " + builtin.name;
}

Builtin::Builtin(BuiltinKind kind, std::string_view names, std::string_view parameters)
    : kind(kind), names(Split(names, std::nullopt, -1)), variadic(parameters == "*") {
  name = this->names.front();
  if (variadic) return;
  for (const std::string& parameter : Split(parameters, std::nullopt, -1)) {
    const size_t equals = parameter.find('=');
    this->parameters.push_back(parameter.substr(0, equals));
    defaults.push_back(equals == parameter.npos ? std::nullopt
                                                : std::optional(parameter.substr(equals + 1)));
  }
}

const Builtin* FindBuiltin(BuiltinKind kind, std::string_view name) {
  const Table& table = BuiltinsOf(kind);
  const auto it = table.find(name);
  return it == table.end() ? nullptr : it->second;
}

const Builtin& RequireBuiltin(BuiltinKind kind, std::string_view name) {
  if (const Builtin* builtin = FindBuiltin(kind, name)) return *builtin;
  std::string known;
  for (const auto& [other, unused] : BuiltinsOf(kind)) known += (known.empty() ? "" : ", ") + other;
  Fail("the ", kind == BuiltinKind::kFilter ? "filter" : "test", " '", name,
       "' is not supported; there are ", known);
}

Value Apply(const Builtin& builtin, const Value& self, const Arguments& arguments,
            Rendering* rendering) {
  Call call{builtin, rendering, self, arguments, {}};
  if (!builtin.variadic) {
    auto given = Bind(builtin.name, arguments, builtin.parameters);
    for (size_t i = 0; i < given.size(); ++i) {
      if (!given[i] && !builtin.defaults[i]) {
        Fail(builtin.name, " needs the argument '", builtin.parameters[i], "'");
      }
      call.bound.push_back(given[i] ? *std::move(given[i]) : Default(*builtin.defaults[i]));
    }
  }
  return builtin.function(call);
}

}  // namespace lockstep::data::chat
