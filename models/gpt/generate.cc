#include "models/gpt/generate.h"

#include <algorithm>
#include <chrono>

namespace lockstep::models {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::vector<std::vector<int32_t>> Run(Gpt& model, std::span<const GenerateSequence> sequences,
                                      int64_t vocab_limit, const GenerateOptions& options,
                                      const std::function<bool(int64_t, int32_t)>& on_token,
                                      ContextCache* kept, GenerateStats* stats) {
  LS_CHECK(options.batch_size > 0, "batch_size must be at least 1, got ", options.batch_size);
  const int64_t n = std::ssize(sequences);
  int64_t longest = 1;
  for (const GenerateSequence& s : sequences) longest = std::max(longest, std::ssize(s.prompt));
  // The last token is drawn, never computed.
  const int64_t last = longest + std::max<int64_t>(options.tokens - 1, 0);
  TextBatch batch(model, vocab_limit,
                  {.slots = std::clamp<int64_t>(n, 1, options.batch_size),
                   .capacity = std::min(model.config().block_size, last),
                   .slide = options.slide,
                   .kv_cache = options.kv_cache},
                  kept);
  std::vector<std::vector<int32_t>> results(sequences.size());
  std::vector<TextRequest> requests;
  for (int64_t i = 0; i < n; ++i) {
    const GenerateSequence& s = sequences[static_cast<size_t>(i)];
    requests.push_back({.prompt = s.prompt,
                        .tokens = options.tokens,
                        .sampling = {.repetition_penalty = options.repetition_penalty,
                                     .temperature = options.temperature,
                                     .top_k = options.top_k,
                                     .top_p = options.top_p},
                        .seed = options.seed,
                        .sample = s.sample,
                        .on_token = [&results, &on_token, i](int32_t id, std::span<const float>) {
                          results[static_cast<size_t>(i)].push_back(id);
                          return !on_token || on_token(i, id);
                        }});
    batch.Check(requests.back());
  }
  auto next = requests.begin();
  while (batch.size() > 0 || next != requests.end()) {
    Clock::time_point start = Clock::now();
    while (!batch.full() && next != requests.end()) {
      stats->prompt_tokens += batch.Start(std::move(*next++));
    }
    stats->prompt_seconds += SecondsSince(start);
    start = Clock::now();
    stats->tokens += batch.size();
    batch.Advance();
    stats->seconds += SecondsSince(start);
  }
  return results;
}

}  // namespace

GenerateStats& GenerateStats::operator+=(const GenerateStats& other) {
  prompt_tokens += other.prompt_tokens;
  prompt_seconds += other.prompt_seconds;
  tokens += other.tokens;
  seconds += other.seconds;
  return *this;
}

std::vector<std::vector<int32_t>> GenerateBatch(
    Gpt& model, std::span<const GenerateSequence> sequences, int64_t vocab_limit,
    const GenerateOptions& options, const std::function<bool(int64_t, int32_t)>& on_token,
    GenerateStats* stats) {
  GenerateStats own;
  std::vector<std::vector<int32_t>> results =
      Run(model, sequences, vocab_limit, options, on_token, nullptr, &own);
  if (stats != nullptr) *stats = own;
  return results;
}

std::vector<int32_t> Generate(Gpt& model, std::span<const int32_t> prompt, int64_t vocab_limit,
                              const GenerateOptions& options,
                              const std::function<bool(int32_t)>& on_token, ContextCache* kept,
                              GenerateStats* stats) {
  const GenerateSequence sequence{.prompt = {prompt.begin(), prompt.end()}};
  std::function<bool(int64_t, int32_t)> forward;
  if (on_token) forward = [&](int64_t, int32_t id) { return on_token(id); };
  GenerateStats own;
  std::vector<int32_t> tokens =
      std::move(Run(model, std::span(&sequence, 1), vocab_limit, options, forward, kept, &own)[0]);
  if (stats != nullptr) *stats += own;
  return tokens;
}

}  // namespace lockstep::models
