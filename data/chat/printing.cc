// Values as text: Python's str(), repr() and json.dumps().
#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/io/json.h"
#include "data/chat/builtins.h"
#include "data/chat/text.h"
#include "data/chat/value.h"

namespace lockstep::data::chat {
namespace {

// As Python writes it: "1.5", "1e+16", "inf".
std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  const double size = std::abs(value);
  const bool fixed = value == 0 || (size >= 1e-4 && size < 1e16);
  char buffer[40];
  const auto format = fixed ? std::chars_format::fixed : std::chars_format::scientific;
  std::string text(buffer, std::to_chars(buffer, std::end(buffer), value, format).ptr);
  return fixed && text.find('.') == text.npos ? text + ".0" : text;
}

// Writes repr() without a format, and else JSON.
class Writer {
 public:
  explicit Writer(const JsonFormat* json) : json_(json) {}

  std::string Write(const Value& value) && {
    Append(value);
    return std::move(out_);
  }

 private:
  void Append(const Value& value) {
    Work(1);
    RequireTextFits(out_.size());
    switch (value.kind()) {
      case Kind::kString:
        return AppendText(value.text());
      case Kind::kList:
        return AppendAll(value.items(), "[", "]", [&](const Value& item) { Append(item); });
      case Kind::kTuple: {
        const char* end = json_ ? "]" : value.items().size() == 1 ? ",)" : ")";
        return AppendAll(value.items(), json_ ? "[" : "(", end,
                         [&](const Value& item) { Append(item); });
      }
      case Kind::kDict:
        return AppendDict(value.dict().items);
      case Kind::kUndefined:
        if (json_ != nullptr) RequireDefined(value);
        out_ += "Undefined";
        break;
      default:
        out_ += json_ ? JsonScalar(value) : Str(value);
    }
  }

  void AppendText(const std::string& text) {
    TextWork(text.size());
    out_ += json_ ? Json(text).dump(-1, json_->ensure_ascii) : ReprText(text);
  }

  static std::string JsonScalar(const Value& value) {
    if (value.Is(Kind::kNone)) return "null";
    if (value.Is(Kind::kBool)) return value.integer() != 0 ? "true" : "false";
    if (value.Is(Kind::kInt)) return Str(value);
    if (!value.Is(Kind::kFloat)) {
      Fail("tojson: an object of type ", TypeName(value), " is not JSON serializable");
    }
    const double number = value.number();
    if (std::isnan(number)) return "NaN";
    return std::isfinite(number) ? FloatText(number) : number < 0 ? "-Infinity" : "Infinity";
  }

  template <class Items, class AppendItem>
  void AppendAll(const Items& items, const char* begin, const char* end, AppendItem append) {
    out_ += begin;
    ++depth_;
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += json_ ? json_->item_separator : ", ";
      NewLine();
      append(items[i]);
    }
    --depth_;
    if (!items.empty()) NewLine();
    out_ += end;
  }

  void AppendDict(std::vector<std::pair<Value, Value>> items) {
    if (json_ && json_->sort_keys) {
      std::ranges::stable_sort(items,
                               [](const auto& a, const auto& b) { return Less(a.first, b.first); });
    }
    AppendAll(items, "{", "}", [&](const auto& item) {
      const bool text = json_ == nullptr || item.first.Is(Kind::kString);
      text ? Append(item.first) : AppendText(JsonScalar(item.first));
      out_ += json_ ? json_->key_separator : ": ";
      Append(item.second);
    });
  }

  void NewLine() {
    if (json_ == nullptr || !json_->indent) return;
    RequireTextFits(out_.size() + static_cast<size_t>(depth_) * json_->indent->size());
    out_ += '\n';
    for (int i = 0; i < depth_; ++i) out_ += *json_->indent;
  }

  const JsonFormat* const json_;
  int depth_ = 0;
  std::string out_;
};

}  // namespace

std::string ToJson(const Value& value, const JsonFormat& format) {
  return Writer(&format).Write(value);
}

std::string Str(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "";
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return value.integer() != 0 ? "True" : "False";
    case Kind::kInt:
      return std::to_string(value.integer());
    case Kind::kFloat:
      return FloatText(value.number());
    case Kind::kString:
      TextWork(value.text().size());
      return value.text();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
      return Writer(nullptr).Write(value);
    case Kind::kFunction: {
      const Builtin& builtin = *value.function().builtin;
      Fail("the ", builtin.kind == BuiltinKind::kFunction ? "function" : "method", " '",
           builtin.name, "' cannot be printed; call it: ", builtin.name, "()");
    }
    case Kind::kObject:
      Fail("a ", TypeName(value), " cannot be printed");
    default:
      Fail("a ", TypeName(value), " cannot be printed; make a list of it with |list first");
  }
}

}  // namespace lockstep::data::chat
