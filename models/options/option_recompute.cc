#include "models/options/option_recompute.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "core/error.h"
#include "models/options/option_text.h"
#include "models/options/suggest.h"

namespace lockstep::models {
namespace {

using Part = RecomputeChoice::Part;

constexpr std::array<std::string_view, 7> kOps = {"gelu",       "relu2",      "silu",    "swiglu",
                                                  "geglu_tanh", "layer_norm", "rms_norm"};

constexpr std::array<std::string_view, 5> kAlone = {"none", "auto", "block", "attention", "mlp"};

constexpr std::string_view kFirst = "block:";

int64_t LayersOf(std::string_view number) {
  int64_t layers = 0;
  const char* const end = number.data() + number.size();
  const auto [rest, error] = std::from_chars(number.data(), end, layers);
  if (error != std::errc() || rest != end || layers < 1) {
    throw InputError(
        StrCat("must have a number of layers after ", kFirst, ", as in ", kFirst, "3"));
  }
  return layers;
}

bool Has(const auto& words, std::string_view word) {
  return std::ranges::find(words, word) != std::ranges::end(words);
}

std::string Joined(const auto& words) {
  std::string text;
  for (const auto& word : words) text += StrCat(text.empty() ? "" : ", ", word);
  return text;
}

// What is wrong with a word of `text`, after those in `ops`: the beginning of a sentence, which may
// be empty. None if it is fine.
std::optional<std::string> FaultOf(const std::string& word, std::string_view text,
                                   const std::vector<std::string>& ops) {
  if (Has(ops, word)) return StrCat(word, " is named twice: the value ");
  if (Has(kOps, word)) return std::nullopt;
  if (Has(kAlone, word)) return StrCat(word, " cannot be combined with others: the value ");
  std::vector<Candidate> known;
  for (const std::string_view op : kOps) known.push_back({std::string(op)});
  const bool alone = word == text;
  if (alone) {
    for (const std::string_view one : kAlone) known.push_back({std::string(one)});
  }
  const std::string subject = alone || word.empty() ? "" : word + ": ";
  const std::vector<std::string> nearest = Nearest(word, known);
  if (!nearest.empty()) return StrCat(subject, "did you mean ", nearest.front(), "? It ");
  return subject;
}

}  // namespace

std::string RecomputableOps() { return Joined(kOps); }

RecomputeChoice ParseRecompute(std::string_view text) {
  if (text == "none") return {};
  if (text == "auto") return {.automatic = true};
  if (text == "block") return {.part = Part::kBlock};
  if (text == "attention") return {.part = Part::kAttention};
  if (text == "mlp") return {.part = Part::kMlp};
  if (text.starts_with(kFirst)) {
    return {.part = Part::kBlock, .layers = LayersOf(text.substr(kFirst.size()))};
  }
  RecomputeChoice choice{.part = Part::kOps};
  for (std::string& word : WordsOf(text)) {
    if (const auto fault = FaultOf(word, text, choice.ops)) {
      throw InputError(StrCat(*fault, "must be ", Joined(kAlone), ", ", kFirst,
                              "N (of the first N layers), or operations of ", RecomputableOps(),
                              ", each once, as in gelu,layer_norm"));
    }
    choice.ops.push_back(std::move(word));
  }
  return choice;
}

std::string Describe(const RecomputeChoice& choice, int64_t n_layer) {
  const std::string layers =
      choice.layers < 0 || choice.layers == n_layer
          ? ""
          : StrCat(" of the first ", choice.layers == 1 ? "" : StrCat(choice.layers, " "), "of ",
                   n_layer, " layers");
  switch (choice.part) {
    case Part::kNone:
      return "nothing";
    case Part::kBlock:
      return StrCat(layers.empty()       ? "all blocks"
                    : choice.layers == 1 ? "the block"
                                         : "the blocks",
                    layers);
    case Part::kAttention:
      return StrCat("the attention", layers);
    case Part::kMlp:
      return StrCat("the MLPs", layers);
    case Part::kOps:
      return StrCat("the results of ", Joined(choice.ops), layers);
  }
  throw ArgumentError("no such part");
}

}  // namespace lockstep::models
