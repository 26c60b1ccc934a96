#include <algorithm>
#include <cmath>
#include <cstdio>

#include "data/chat/builtins.h"
#include "data/chat/text.h"
#include "data/utf8.h"

namespace lockstep::data::chat {
namespace {

class JsonWriter {
 public:
  explicit JsonWriter(const Arguments& arguments) {
    const auto bound =
        arguments.Bind("tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
    ensure_ascii_ = TruthyOr(bound[0], false);
    if (bound[1] && !bound[1]->Is(Kind::kNone)) {
      indent_ = bound[1]->Is(Kind::kString) ? bound[1]->text() : Spaces(*bound[1]);
      item_separator_ = std::string(1, ',');
    }
    if (bound[2] && !bound[2]->Is(Kind::kNone)) {
      const List separators = Iterate(*bound[2]);
      if (separators.size() != 2) Fail("the separators of tojson must be two texts");
      item_separator_ = RequireText(separators[0], "each separator of tojson");
      key_separator_ = RequireText(separators[1], "each separator of tojson");
    }
    sort_keys_ = TruthyOr(bound[3], false);
  }

  void Write(const Value& value) {
    Work(1);
    RequireTextFits(out_.size());
    switch (value.kind()) {
      case Kind::kNone:
        out_ += "null";
        break;
      case Kind::kBool:
        out_ += value.boolean() ? "true" : "false";
        break;
      case Kind::kInt:
        out_ += Str(value);
        break;
      case Kind::kFloat:
        out_ += Number(value.number());
        break;
      case Kind::kString:
        WriteText(value.text());
        break;
      case Kind::kList:
      case Kind::kTuple:
        WriteAll(value.items(), '[', ']', [&](const Value& item) { Write(item); });
        break;
      case Kind::kDict:
        WriteDict(value.dict());
        break;
      default:
        Fail("tojson: an object of type ", TypeName(value), " is not JSON serializable");
    }
  }

  std::string Take() { return std::move(out_); }

 private:
  static std::string Spaces(const Value& count) {
    const int64_t spaces = RequireInteger(count, "the indent of tojson");
    RequireTextFits(static_cast<size_t>(std::max<int64_t>(spaces, 0)));
    return std::string(static_cast<size_t>(std::max<int64_t>(spaces, 0)), ' ');
  }

  static std::string Number(double value) {
    if (std::isfinite(value)) return FloatText(value);
    return std::isnan(value) ? "NaN" : value < 0 ? "-Infinity" : "Infinity";
  }

  static std::string KeyText(const Value& key) {
    switch (key.kind()) {
      case Kind::kString:
        return key.text();
      case Kind::kNone:
        return "null";
      case Kind::kBool:
        return key.boolean() ? "true" : "false";
      case Kind::kInt:
        return Str(key);
      case Kind::kFloat:
        return Number(key.number());
      default:
        Fail("tojson: keys must be str, int, float, bool or None, not ", TypeName(key));
    }
  }

  void WriteText(const std::string& text) {
    out_ += '"';
    for (const uint32_t code : CodePoints(text)) {
      char escape[16] = "";
      static constexpr std::string_view kNamed = "\"\"\\\\\nn\rr\tt\bb\ff";
      const size_t named = code < 0x80 ? kNamed.find(static_cast<char>(code)) : std::string::npos;
      if (named != std::string::npos && named % 2 == 0) {
        std::snprintf(escape, sizeof(escape), "\\%c", kNamed[named + 1]);
      } else if (code >= 0x10000 && ensure_ascii_) {
        std::snprintf(escape, sizeof(escape), "\\u%04x\\u%04x", 0xd800 + ((code - 0x10000) >> 10),
                      0xdc00 + (code & 0x3ff));
      } else if (code < 0x20 || (code > 0x7e && ensure_ascii_)) {
        std::snprintf(escape, sizeof(escape), "\\u%04x", static_cast<unsigned>(code));
      }
      if (escape[0] != '\0') {
        out_ += escape;
      } else {
        AppendUtf8(code, &out_);
      }
    }
    out_ += '"';
  }

  template <class Items, class WriteItem>
  void WriteAll(const Items& items, char open, char close, WriteItem write) {
    out_ += open;
    ++depth_;
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += item_separator_;
      NewLine();
      write(items[i]);
    }
    --depth_;
    if (!items.empty()) NewLine();
    out_ += close;
  }

  void WriteDict(const Dict& dict) {
    auto items = dict.items;
    if (sort_keys_) {
      std::ranges::stable_sort(items,
                               [](const auto& a, const auto& b) { return Less(a.first, b.first); });
    }
    WriteAll(items, '{', '}', [&](const auto& item) {
      WriteText(KeyText(item.first));
      out_ += key_separator_;
      Write(item.second);
    });
  }

  void NewLine() {
    if (!indent_) return;
    RequireTextFits(out_.size() + static_cast<size_t>(depth_) * indent_->size());
    out_ += '\n';
    for (int i = 0; i < depth_; ++i) out_ += *indent_;
  }

  bool ensure_ascii_ = false;
  bool sort_keys_ = false;
  std::optional<std::string> indent_;
  std::string item_separator_ = ", ";
  std::string key_separator_ = ": ";
  int depth_ = 0;
  std::string out_;
};

}  // namespace

Value ToJson(const Value& value, const Arguments& arguments) {
  RequireDefined(value);
  JsonWriter writer(arguments);
  writer.Write(value);
  return Value::String(writer.Take());
}

}  // namespace lockstep::data::chat
