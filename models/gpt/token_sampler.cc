#include "models/gpt/token_sampler.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/math.h"
#include "core/philox.h"

namespace lockstep::models {
namespace {

using Candidate = TokenSampler::Candidate;

// The likelier first; ties go to the smaller id.
bool Likelier(const Candidate& a, const Candidate& b) {
  return a.probability != b.probability ? a.probability > b.probability : a.id < b.id;
}
bool SmallerId(const Candidate& a, const Candidate& b) { return a.id < b.id; }

// Divides by the sum.
void Normalise(std::vector<Candidate>& candidates) {
  double sum = 0;
  for (const Candidate& c : candidates) sum += c.probability;
  for (Candidate& c : candidates) c.probability /= sum;
}

}  // namespace

TokenSampler::TokenSampler(const SamplingOptions& options) : options_(options) {
  LS_CHECK(std::isfinite(options.repetition_penalty) && options.repetition_penalty > 0,
           "repetition_penalty must be above 0 (1: none), got ", options.repetition_penalty);
  LS_CHECK(std::isfinite(options.temperature) && options.temperature >= 0,
           "temperature must be at least 0 (0: always the likeliest token), got ",
           options.temperature);
  LS_CHECK(options.top_k >= 0, "top_k must be at least 0 (0: all tokens), got ", options.top_k);
  LS_CHECK(options.top_p > 0 && options.top_p <= 1,
           "top_p must be above 0 and at most 1 (1: all tokens), got ", options.top_p);
}

std::span<const Candidate> TokenSampler::Candidates(std::span<const float> logits,
                                                    std::span<const uint8_t> seen) {
  LS_CHECK(!logits.empty(), "cannot draw a token from no logits");
  if (options_.repetition_penalty != 1) {
    LS_CHECK(seen.size() >= logits.size(), "a repetition penalty needs to know which of ",
             logits.size(), " tokens the text has, got ", seen.size());
    const float penalty = static_cast<float>(options_.repetition_penalty);
    penalised_.assign(logits.begin(), logits.end());
    for (size_t i = 0; i < logits.size(); ++i) {
      if (seen[i]) penalised_[i] = logits[i] > 0 ? logits[i] / penalty : logits[i] * penalty;
    }
    logits = penalised_;
  }
  size_t likeliest = 0;
  bool numbers = true;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > logits[likeliest]) likeliest = i;
    numbers = numbers && !std::isnan(logits[i]);
  }
  LS_CHECK(numbers && std::isfinite(logits[likeliest]),
           "the model's logits are not finite: its weights are damaged");
  candidates_.clear();
  if (options_.temperature == 0) {
    candidates_.push_back({static_cast<int32_t>(likeliest), 1});
    return candidates_;
  }
  // Logits for now: exponentials may round to equal numbers, or to 0.
  for (size_t i = 0; i < logits.size(); ++i) {
    candidates_.push_back({static_cast<int32_t>(i), static_cast<double>(logits[i])});
  }
  const double largest = logits[likeliest];
  KeepTopK();
  for (Candidate& c : candidates_) {
    c.probability = math::Exp((c.probability - largest) / options_.temperature);
  }
  Normalise(candidates_);
  KeepTopP();
  return candidates_;
}

void TokenSampler::KeepTopK() {
  if (options_.top_k == 0 || options_.top_k >= static_cast<int64_t>(candidates_.size())) return;
  const auto end = candidates_.begin() + options_.top_k;
  std::nth_element(candidates_.begin(), end, candidates_.end(), Likelier);
  candidates_.erase(end, candidates_.end());
  std::sort(candidates_.begin(), candidates_.end(), SmallerId);
}

// A heap, since few are kept and sorting all would cost more.
void TokenSampler::KeepTopP() {
  if (options_.top_p == 1) return;
  const auto less_likely = [](const Candidate& a, const Candidate& b) { return Likelier(b, a); };
  auto rest = candidates_.end();
  std::make_heap(candidates_.begin(), rest, less_likely);
  double share = 0;
  while (rest != candidates_.begin() && share < options_.top_p) {
    share += candidates_.front().probability;
    std::pop_heap(candidates_.begin(), rest--, less_likely);
  }
  candidates_.erase(candidates_.begin(), rest);
  std::sort(candidates_.begin(), candidates_.end(), SmallerId);
  Normalise(candidates_);
}

int32_t TokenSampler::Draw(std::span<const float> logits, double u, std::span<const uint8_t> seen) {
  const std::span<const Candidate> candidates = Candidates(logits, seen);
  double cumulative = 0;
  int32_t last = 0;
  for (const Candidate& c : candidates) {
    if (c.probability == 0) continue;
    last = c.id;
    cumulative += c.probability;
    if (u < cumulative) break;
  }
  return last;  // also where rounding leaves the sum below u
}

double SamplingUniform(uint64_t seed, int64_t sample, int64_t position) {
  constexpr uint64_t kStream = HashName("sample");
  const Philox::Block block =
      Philox(seed)(kStream, static_cast<uint64_t>(sample) << 32 | static_cast<uint32_t>(position));
  const uint64_t bits = (uint64_t{block.v[0]} << 32 | block.v[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace lockstep::models
