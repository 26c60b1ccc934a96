#include "data/text/json_field.h"

#include <simdjson.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "core/error.h"
#include "core/io/json.h"
#include "data/text/repair_utf8.h"
#include "data/text/row_errors.h"

namespace lockstep::data {
namespace {

using Library = nlohmann::json;

constexpr size_t kMaxDepth = 512;
constexpr size_t kMostNames = 50;

// Replaces the line by the string, if the line is a JSON object that has the field once and as a
// string or null, and if all of it is well-formed UTF-8 without lone surrogates; otherwise returns
// false.
bool QuickField(std::string* line, std::string_view field) {
  constexpr size_t kMaxBytes = size_t{2} << 20;  // of a line: the parser keeps 15 times as much
  if (line->size() > kMaxBytes) return false;
  thread_local simdjson::dom::parser parser(kMaxBytes);
  // Its own limit is 1024 levels. A line that is too deep goes on to FieldReader, which says so.
  if (parser.max_depth() != kMaxDepth && parser.allocate(kMaxBytes, kMaxDepth)) return false;
  static_assert(kJsonPadding >= simdjson::SIMDJSON_PADDING);
  line->reserve(line->size() + kJsonPadding);
  simdjson::dom::object object;
  if (parser.parse(line->data(), line->size(), false).get(object)) return false;
  std::optional<std::string_view> text;  // the parser's
  for (const auto& [key, value] : object) {
    if (key != field) continue;
    std::string_view found;
    if (text || (!value.is_null() && value.get(found))) return false;
    text = found;
  }
  if (text) line->assign(*text);
  return text.has_value();
}

// Keeps the wanted string and follows the rest.
class FieldReader : public nlohmann::json_sax<Library> {
 public:
  explicit FieldReader(std::string_view field) : field_(field) {}

  bool null() override {
    if (!wanted_) return Other("null");
    std::string none;
    return string(none);
  }
  bool boolean(bool) override { return Other("a boolean"); }
  bool number_integer(number_integer_t) override { return Other("a number"); }
  bool number_unsigned(number_unsigned_t) override { return Other("a number"); }
  bool number_float(number_float_t, const string_t&) override { return Other("a number"); }
  bool binary(binary_t&) override { return Other("binary data"); }
  bool string(string_t& value) override {
    if (!wanted_) return Other("a string");
    if (text) return Fail(StrCat("the field ", Quoted(field_), " is there twice"));
    text = std::move(value);
    wanted_ = false;
    return true;
  }
  bool start_object(std::size_t) override {
    if (depth_ > 0 && !Other("an object")) return false;
    return Open();
  }
  bool start_array(std::size_t) override { return Other("an array") && Open(); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override {
    if (depth_ != 1) return true;
    wanted_ = name == field_;
    if (names.size() < kMostNames) names.push_back(name.substr(0, 100));
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const Library::exception& error) override {
    return Fail(StrCat("not valid JSON ", ParseErrorText(error.what())));
  }

  std::optional<std::string> text;
  std::string error;
  std::vector<std::string> names;  // the first fields of the outer object

 private:
  bool Fail(std::string message) {
    error = std::move(message);
    return false;
  }
  // A value that is not the wanted string.
  bool Other(std::string_view what) {
    if (depth_ == 0) {
      return Fail(StrCat("expected an object such as {\"", field_, "\": \"...\"}, found ", what));
    }
    if (wanted_) {
      return Fail(StrCat("the field ", Quoted(field_), " must be a string, but it is ", what));
    }
    return true;
  }
  bool Open() {
    if (++depth_ > kMaxDepth) return Fail(StrCat("nested deeper than ", kMaxDepth, " levels"));
    return true;
  }
  bool Close() {
    --depth_;
    return true;
  }

  const std::string_view field_;
  size_t depth_ = 0;
  bool wanted_ = false;  // the next value is the field's
};

}  // namespace

JsonText JsonField(std::string line, std::string_view field,
                   const std::function<std::string()>& place) {
  if (QuickField(&line, field)) return {std::move(line)};
  const int64_t repaired = RepairJson(&line);
  if (repaired > 0 && QuickField(&line, field)) return {std::move(line), repaired};
  // It takes several times as long, and says what is wrong.
  FieldReader reader(field);
  Library::sax_parse(line.begin(), line.end(), &reader);
  if (!reader.error.empty()) throw InputError(StrCat(place(), ": ", reader.error));
  if (!reader.text) {
    std::string advice = AdviceOnConversations(reader.names);
    if (advice.empty()) {
      advice = StrCat("name the one that holds the text with --data.field=, or, to train ",
                      "on conversations, write them as \"messages\", \"conversations\" ",
                      "(ShareGPT), \"instruction\" and \"output\" (Alpaca), or \"prompt\" and ",
                      "\"completion\"", AdviceOnPairs(reader.names));
    }
    throw InputError(StrCat(place(), ": there is no field ", Quoted(field), " (found ",
                            ListNames(reader.names), "): ", advice));
  }
  return {std::move(*reader.text), repaired};
}

}  // namespace lockstep::data
