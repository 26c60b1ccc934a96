#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/tokenizer/gpt2_splitter.h"

#include <pcre2.h>

#include "core/error.h"
#include "data/utf8.h"

namespace lockstep::data {
namespace {

// GPT-2's pattern with possessive quantifiers, which match the same without backtracking. Unicode's
// White_Space property is spelled out, because PCRE2's \s includes U+180E.
#define LS_SPACE \
  R"(\x09-\x0d\x20\x85\xa0\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})"
constexpr char kPattern[] =
    "'(?:[sdmt]|ll|ve|re)| ?\\p{L}++| ?\\p{N}++| ?[^" LS_SPACE "\\p{L}\\p{N}]++|[" LS_SPACE
    "]++$|[" LS_SPACE "]+(?![^" LS_SPACE "])|[" LS_SPACE "]";
#undef LS_SPACE

std::string PcreMessage(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

struct MatchDataDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

}  // namespace

struct Gpt2Splitter::Pattern {
  pcre2_code* code = nullptr;
  ~Pattern() { pcre2_code_free(code); }
};

Gpt2Splitter::Gpt2Splitter() : pattern_(std::make_unique<Pattern>()) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pattern_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kPattern), PCRE2_ZERO_TERMINATED,
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY | PCRE2_ANCHORED,
                                 &error, &offset, nullptr);
  LS_INVARIANT(pattern_->code != nullptr, "PCRE2: ", PcreMessage(error), " at ", offset);
  // Without JIT (on an unsupported platform, or if memory must not be executable) the interpreter
  // finds the same matches, only slower.
  (void)pcre2_jit_compile(pattern_->code, PCRE2_JIT_COMPLETE);
}

Gpt2Splitter::~Gpt2Splitter() = default;

void Gpt2Splitter::Split(std::string_view text,
                         const std::function<void(std::string_view)>& sink) const {
  const std::unique_ptr<pcre2_match_data, MatchDataDeleter> match(
      pcre2_match_data_create(1, nullptr));
  if (match == nullptr) throw std::bad_alloc();
  const PCRE2_SIZE* span = pcre2_get_ovector_pointer(match.get());
  while (!text.empty()) {
    const size_t valid = ValidUtf8Prefix(text);
    for (size_t begin = 0; begin < valid;) {
      const int rc = pcre2_match(pattern_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), valid,
                                 begin, PCRE2_NO_UTF_CHECK, match.get(), nullptr);
      LS_INVARIANT(rc > 0 && span[1] > begin, "PCRE2: ", PcreMessage(rc), " at byte ", begin);
      sink(text.substr(begin, span[1] - begin));
      begin = span[1];
    }
    text.remove_prefix(valid);
    size_t malformed = 0;
    while (malformed < text.size() && DecodeUtf8(text, malformed).length == 0) ++malformed;
    if (malformed > 0) sink(text.substr(0, malformed));
    text.remove_prefix(malformed);
  }
}

}  // namespace lockstep::data
