// What backward computes again instead of keeping it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::models {

// What is recomputed in each block of a model; see nn/recompute.h.
struct RecomputeChoice {
  enum class Part { kNone, kBlock, kAttention, kMlp, kOps };
  Part part = Part::kNone;
  std::vector<std::string> ops{};  // kOps
  int64_t layers = -1;             // recompute only in the first `layers` blocks; -1: in all
  // `auto`: `layers` is still to be chosen by the memory plan.
  bool automatic = false;

  bool operator==(const RecomputeChoice&) const = default;
};

// Parses none, auto, block, block:3 (in the first 3 layers), attention, mlp, or operations as in
// "gelu,layer_norm". Throws InputError; the message does not say where the text came from.
RecomputeChoice ParseRecompute(std::string_view text);

// The operations that ParseRecompute takes: "gelu, silu, ...".
std::string RecomputableOps();

// "the blocks of the first 3 of 12 layers", "the MLPs", "the results of gelu, layer_norm"; for
// kNone "nothing".
std::string Describe(const RecomputeChoice& choice, int64_t n_layer);

}  // namespace lockstep::models
