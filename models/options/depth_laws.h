// What follows from --depth=N: the shape, the batch, the length and the rates of a run that makes a
// model of so many layers good soon.
//
//   options.AddDial("depth", &config.depth, FollowDepth, {.doc = "..."});
//
// Two points anchor the laws. Depth 4 was tuned here, on characters of Tiny Shakespeare and two CPU
// cores. Depth 12 and what lies above it are nanochat's (dev/LOG.md, 2026), found on GPUs.
#pragma once

#include <cstdint>
#include <vector>

#include "models/options/options.h"

namespace lockstep::models {

constexpr int64_t kMaxDepth = 40;
// Tokens to train on for each parameter that multiplies, so that neither a smaller nor a larger
// model is better with the same FLOPs: nanochat's, by IsoFLOPs.
constexpr double kTokensPerParameter = 10.5;

// The width of a model, a multiple of the width of its heads.
int64_t WidthOfDepth(int64_t depth);
int64_t HeadWidthOfDepth(int64_t depth);
// Tokens that it attends to: a power of two.
int64_t ContextOfDepth(int64_t depth);
// Tokens of a step, in a run of so many in all: a power of two. From nanochat's depth 12 on it
// grows as their power 0.383 (Bergsma et al., "Power Lines", 2025); below, as the power that leads
// through the runs that were tuned here.
int64_t BatchOfTokens(double tokens);
// Parameters of the matrices in the blocks.
double BlockParameters(int64_t depth, int64_t width);

// All options that follow. Of what was given, later laws make use: the batch has as many sequences
// as its tokens need at the given context, and the rates are those of the given width.
std::vector<Following> FollowDepth(int64_t depth, const Given& given);

}  // namespace lockstep::models
