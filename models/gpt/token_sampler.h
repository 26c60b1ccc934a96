// Drawing a token from a model's logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::models {

// In the order in which they apply.
struct SamplingOptions {
  // For tokens already in the text: divides logits above 0 and multiplies those below (Keskar et
  // al., "CTRL", 2019). 1: none.
  double repetition_penalty = 1;
  // Divides the logits. 0: always the likeliest token; a tie goes to the smallest id.
  double temperature = 1;
  // Only the k likeliest tokens (Fan et al., 2018); ties go to smaller ids. 0: all.
  int64_t top_k = 0;
  // Keeps only the likeliest of these tokens that together reach this share of the probability
  // (Holtzman et al., "The curious case of neural text degeneration", 2020). 1: all.
  double top_p = 1;
};

// Reuses its memory from token to token.
class TokenSampler {
 public:
  struct Candidate {
    int32_t id;
    double probability;
  };

  // ArgumentError for an option that is out of range, naming it.
  explicit TokenSampler(const SamplingOptions& options);

  // The tokens that may be drawn, in the order of their ids, given unnormalised log-probabilities;
  // valid until the next call. `seen`: per id, whether the text has it; may be empty without a
  // repetition penalty. ArgumentError if there are no logits, or they are NaN or all infinite.
  std::span<const Candidate> Candidates(std::span<const float> logits,
                                        std::span<const uint8_t> seen = {});

  // The candidate into whose part of [0, 1) u falls, when they divide it in the order of their ids.
  int32_t Draw(std::span<const float> logits, double u, std::span<const uint8_t> seen = {});

 private:
  void KeepTopK();
  void KeepTopP();

  SamplingOptions options_;
  std::vector<float> penalised_;
  std::vector<Candidate> candidates_;
};

// Uniform in [0, 1), 53 bits: a function of the seed, of the sample's number and of the token's
// position in its text, by Philox.
double SamplingUniform(uint64_t seed, int64_t sample, int64_t position);

}  // namespace lockstep::models
