// A mixture of experts in the place of a transformer's MLP.
#pragma once

#include <functional>
#include <memory>

#include "nn/mixture/expert_router.h"
#include "nn/mixture/experts.h"
#include "nn/stream/residual_stream.h"
#include "nn/transformer_options.h"

namespace lockstep::nn {

// y = dropout(sum over a token's experts e of gate_e expert_e(x) + shared(x)): x [B, T, n_embd] ->
// the same, as a branch. Shazeer et al., "Outrageously large neural networks" (2017), Jiang et al.,
// "Mixtral of experts" (2024). No token is dropped: tokens are sorted by expert, each expert
// multiplies as many as chose it, and the results of a token are added in the order of its gates,
// the largest first. Children, replaceable: router (an ExpertRouter), experts (an ExpertsLayer),
// dropout; where mixture.n_shared is not 0 shared, an Mlp of that width, and with shared_gate
// shared_gate, a Layer (n_embd -> 1) whose sigmoid multiplies the output of shared. The experts
// have no biases, whatever TransformerOptions::bias says.
class MixtureOfExperts : public BranchLayer {
 public:
  explicit MixtureOfExperts(const TransformerOptions& options);

  using Router = ModuleOf<Routes(const Tensor&)>;

  Child<Router>& router() { return router_; }
  Child<ExpertsLayer>& experts() { return experts_; }
  // Where x and y are parts of a sequence (tensor parallelism): `whole` makes the whole of it from
  // x, and `part` takes y from the result. Both are differentiable.
  using Map = std::function<Tensor(const Tensor&)>;
  void SetSequence(Map whole, Map part) {
    whole_ = std::move(whole);
    part_ = std::move(part);
  }
  // Where x consists of chunks of sequences (context parallelism): by_chunks(x, routed) computes
  // the experts' output for all of them by calling routed, which takes a chunk. Not under NoGrad.
  using ByChunks = std::function<Tensor(const Tensor& x, const Map& routed)>;
  void SetChunks(ByChunks by_chunks) { by_chunks_ = std::move(by_chunks); }
  bool has_chunks() const { return by_chunks_ != nullptr; }

 protected:
  ops::Branch Forward(ops::Branch x) override;

 private:
  // Calls `meanwhile` where rows may be on their way to experts.
  Tensor Routed(const Tensor& x, const std::function<void()>& meanwhile);
  Tensor Shared(const Tensor& x);

  Child<Router> router_;
  Child<ExpertsLayer> experts_;
  std::unique_ptr<Child<BranchLayer>> shared_;  // null: none
  std::unique_ptr<Child<Layer>> shared_gate_;
  Child<BranchLayer> dropout_;
  Map whole_, part_;  // empty: x is the whole
  ByChunks by_chunks_;
};

}  // namespace lockstep::nn
