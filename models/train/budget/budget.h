// What is the best model that some time, FLOPs or tokens can make of some data? The choice behind
// --budget=10m, as a pure function:
//
//   const Budget budget = ParseBudget("10m");
//   const std::vector<Choice> choices = ChooseFor(budget, {.tokens = 1e6, .vocab_size = 65,
//                                                          .speeds = {{5e6, 9e10},
//                                                          {5e7, 1.2e11}}});
//   // choices[0].depth layers, choices[0].steps steps; then the two that are next best
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::models {

struct Budget {
  enum class Unit { kSeconds, kFlops, kTokens };
  Unit unit = Unit::kSeconds;
  double amount = 0;
};
// "90s", "10m", "2h", "1e18flops", "3e9tokens". Throws InputError.
Budget ParseBudget(const std::string& text);

// How fast models of one size train on this machine.
struct Speed {
  double flops_per_token = 0;   // as FlopsPerTokenOf
  double flops_per_second = 0;  // of these
};

struct Means {
  double tokens = 0;  // of the data
  int64_t vocab_size = 0;
  double bytes_per_token = 1;
  // In order of flops_per_token. Between them speeds lie on a line over its logarithm, beyond them
  // they are those of the nearest. Needed for a budget of seconds only.
  std::vector<Speed> speeds{};
};

struct Choice {
  int64_t depth = 0;
  int64_t batch = 0;  // tokens of a step
  int64_t steps = 0;
  double tokens_per_parameter = 0;  // for train.tokens_per_parameter
  double epochs = 0;
  double seconds = 0;        // 0: the speed is not known
  double expected_loss = 0;  // nats per token, of held-out data
};

// Parameters of blocks and head at this depth, and FLOPs of forward and backward, by its laws.
double ParametersOf(int64_t depth, int64_t vocab_size);
double FlopsPerTokenOf(int64_t depth, int64_t vocab_size);

// E + A (N^-a + (D / 10.5)^-a) nats per byte for N parameters and D tokens: Chinchilla's form
// (Hoffmann et al. 2022) with one exponent, so that 10.5 tokens for each parameter are best with
// any FLOPs. E, A and a go through three points: depth 4 after 0.15M tokens of Tiny Shakespeare
// (1.88, measured here) and after 2.2M (1.53, an estimate: AdamW's best run had 1.575), and GPT-2's
// 124M after 10B of FineWeb (3.28 for tokens of 4.6 bytes). Of repeated tokens, and of parameters
// beyond what the distinct ones can fill, less and less counts (Muennighoff et al., "Scaling
// data-constrained language models", 2023, equations 5 and 6).
double ExpectedLossPerByte(double parameters, double tokens, double distinct_tokens);

// The best depth, with what the budget lets it train on, though not more than some 16 passes over
// the data, and the next lower and higher one. Best is the lowest expected loss, or the smallest
// model within a thousandth of it; with a budget of tokens, which makes the largest model the best,
// it is the size for which so many are compute-optimal. Throws InputError if no depth makes a step.
std::vector<Choice> ChooseFor(const Budget& budget, const Means& means);

}  // namespace lockstep::models
