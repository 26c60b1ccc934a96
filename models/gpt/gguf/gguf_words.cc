#include "models/gpt/gguf/gguf_words.h"

namespace lockstep::models {
namespace {

#define LS_CONTRACTIONS R"((?i:'s|'t|'re|'ve|'m|'ll|'d))"
#define LS_REST R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"
#define LS_CASED(end)                                                                   \
  R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)" end \
  R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)" end
#define LS_CASED_REST R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"

constexpr std::string_view kLlama3 =
    LS_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})" LS_REST;
constexpr GgufWords kWords[] = {
    {"gpt-2", ""},
    {"smollm", "", /*digits=*/true},
    {"llama-bpe", kLlama3, false, /*ignore_merges=*/true},
    {"smaug-bpe", kLlama3},
    {"qwen2", LS_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})" LS_REST},
    {"gpt-4o", LS_CASED(LS_CONTRACTIONS "?") R"(|\p{N}{1,3})" LS_CASED_REST},
    {"tekken", LS_CASED("") R"(|\p{N})" LS_CASED_REST, false, /*ignore_merges=*/true},
};

}  // namespace

std::span<const GgufWords> KnownGgufWords() { return kWords; }

}  // namespace lockstep::models
