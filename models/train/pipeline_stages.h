// The parts of a GPT that one rank of a pipeline has.
#pragma once

#include <memory>
#include <vector>

#include "dist/tensor/tensor_ranks.h"
#include "models/gpt/gpt.h"

namespace lockstep::models {

// The parts of a GPT are its embedding, its blocks and its head. Each stage has a run of them, of
// about equal cost by the operations for a token of a sequence of `window`: stage s has the parts
// [cut[s], cut[s + 1]). Throws InputError if there are fewer parts than stages.
std::vector<int64_t> CutIntoStages(Gpt& gpt, int64_t window, int stages);

// Some consecutive parts of the model, whose modules it shares, under their names in the whole
// model.
class GptStage : public Module {
 public:
  // `tensor`: the ranks that compute its layers together.
  GptStage(Gpt& gpt, int64_t begin, int64_t end, dist::TensorRanksPtr tensor);

  // `input`: what the stage before gave, [B, T, n_embd], or with embed_mix [2 B, T, n_embd], the
  // start of the stream below the sum, where, while a graph is recorded, each
  // tensor-parallel rank has its part of the sequence; undefined for the first stage. ids and
  // targets are i32 [B, T]; targets are only read by the last stage, ids by the first and by those
  // with embeddings of values. The last stage gives what
  // Gpt does: the loss, or without targets the logits.
  //
  // What passes from stage to stage is the sum of the residual stream, with what it began with if
  // blocks mix that in, one tensor: the branch that
  // a stage's last block leaves open is added by the same operation that adds it within a stage, so
  // that neither results nor gradients differ in a bit, in any dtype.
  Tensor Forward(const Tensor& input, const Tensor& ids, const Tensor& targets);
  // The same before the last stage's head: what its blocks, or `input`, come to.
  nn::ResidualStream Stream(const Tensor& input, const Tensor& ids);

  bool first() const { return begin_ == 0; }
  bool last() const { return end_ == gpt_.blocks().size() + 2; }

 private:
  nn::ResidualStream Received(const Tensor& input) const;
  Tensor Sum(const nn::ResidualStream& stream) const;

  Gpt& gpt_;
  int64_t begin_, end_;  // parts
  const dist::TensorRanksPtr tensor_;
  std::vector<std::unique_ptr<Child<Module>>> parts_;
};

}  // namespace lockstep::models
