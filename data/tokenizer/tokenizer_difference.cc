#include "data/tokenizer/tokenizer_difference.h"

#include <optional>
#include <vector>

#include "core/error.h"
#include "core/io/json.h"

namespace lockstep::data {
namespace {

// Contractions, numbers, marks, spaces, letters of several scripts, and characters that NFC
// changes.
constexpr char kProbe[] =
    "The dog's 12345 naïve e\u0301t\u00e9 中文 Привет \u0e2a\u0e27\u0e31 \U0001F600\n\n  x = {};\t"
    "I'LL <b>\r\n can't_do   3.14, v2.0!!! ";

// Nothing for text that has no tokens.
std::optional<std::vector<int32_t>> Ids(const Tokenizer& tokenizer, const std::string& text) {
  try {
    return tokenizer.Encode(text);
  } catch (const InputError&) {
    return std::nullopt;
  }
}

// Empty for a tokenizer that has no file (IdTokenizer).
std::string JsonOf(const Tokenizer& tokenizer) {
  try {
    return tokenizer.ToJson();
  } catch (const ArgumentError&) {
    return "";
  }
}

std::string TokenName(const std::optional<int32_t>& token) {
  return token ? StrCat("token ", *token) : "no token";
}

std::string Encodes(std::string_view text) {
  return StrCat("they have the same tokens, but encode ", Quoted(text), " differently");
}

}  // namespace

std::string DifferenceOf(const Tokenizer& a, const Tokenizer& b) {
  if (&a == &b) return "";
  if (const std::string json = JsonOf(a); !json.empty() && json == JsonOf(b)) return "";
  if (a.vocab_size() != b.vocab_size()) {
    return StrCat("the former (", a.name(), ") has ", a.vocab_size(), " tokens, the latter (",
                  b.name(), ") ", b.vocab_size());
  }
  if (a.end_of_text() != b.end_of_text()) {
    return StrCat("the former separates documents by ", TokenName(a.end_of_text()),
                  ", the latter by ", TokenName(b.end_of_text()));
  }
  for (int32_t id = 0; id < a.vocab_size(); ++id) {
    const std::string text = a.TokenText(id), other = b.TokenText(id);
    if (text != other) {
      return StrCat("token ", id, " is ", Quoted(text), " in the former and ", Quoted(other),
                    " in the latter");
    }
  }
  for (int32_t id = 0; id < a.vocab_size(); ++id) {
    if (const std::string text = a.TokenText(id); Ids(a, text) != Ids(b, text)) {
      return Encodes(text);
    }
  }
  return Ids(a, kProbe) == Ids(b, kProbe) ? "" : Encodes(kProbe);
}

}  // namespace lockstep::data
