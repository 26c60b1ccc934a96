// The kernel calls of a GPT-2's training step, only for the benchmark.
#pragma once

#include <string>
#include <vector>

#include "kernels/op_case/op_case.h"

namespace lockstep {

struct GptShape {
  int64_t batch = 0, sequence = 0, heads = 0, width = 0, vocabulary = 0, layers = 0;

  int64_t rows() const { return batch * sequence; }
};

// An op at the sizes of the step, with one sample and without a reference.
struct StepCase {
  OpCase op;
  double calls = 0;  // per step; fractional where the sample stands for more than it has
};

// Everything that takes time, with the fusions of nn::TransformerBlock: products of matrices,
// attention, norms, the loss, embeddings, and the update of f32 masters of bf16 weights.
std::vector<StepCase> GptStep(const GptShape& shape);

// What the steps of other GPTs have: RMS norm, SwiGLU, rotary embedding; and what GPT-2's has if
// its fusions are taken apart. For counts, not for times.
std::vector<StepCase> OtherGptOps(const GptShape& shape);

}  // namespace lockstep
