// Tensor and sequence parallelism of a model of the library's layers, by a table.
#pragma once

#include <string>
#include <vector>

#include "core/module.h"
#include "dist/tensor/tensor_ranks.h"

namespace lockstep::dist {

enum class TensorStyle {
  kColumn,      // nn::Linear: ColumnLinear; nn::LoraLinear: its base, and its adapter
  kRow,         // nn::BranchLinear: RowLinear; nn::LoraBranchLinear: the same
  kHeads,       // nn::CausalSelfAttention: an equal part of its heads; its norms: HeadNorm
  kVocabulary,  // nn::Embedding, nn::LmHead: VocabularyEmbedding, VocabularyHead
  kSequence,    // nn::ResidualNorm, BranchNorm, StreamMix, Dropout: SequenceNorm, ...
  kExperts,     // nn::MixtureOfExperts: an equal part of its experts, TensorExperts
};

// What becomes of the modules whose path matches `pattern`, in which * stands for any characters.
struct TensorRule {
  std::string pattern;  // "h.*.attn.c_attn"
  TensorStyle style;
  // For kColumn: the sizes of the segments of the layer's outputs, each of which is cut: queries,
  // keys and values, or gate and up. Empty: the outputs are one segment.
  std::vector<int64_t> segments = {};
};
using TensorPlan = std::vector<TensorRule>;

// Replaces modules, and cuts their parameters, so that the ranks compute each layer together:
//   auto ranks = std::make_shared<dist::TensorRanks>(tp_group.get(), /*parts=*/4);
//   dist::Parallelize(model, ranks, {{"h.*.attn", TensorStyle::kHeads},
//                                    {"h.*.attn.c_attn", TensorStyle::kColumn, {c, c, c}},
//                                    {"h.*.attn.c_proj", TensorStyle::kRow},
//                                    {"h.*.ln_*", TensorStyle::kSequence}, ...});
//   model.Materialize(...);  // fills this rank's parts, with the bits that they have in the whole
// The adapter of a layer (nn::AddLora, before) is split as well: of a column-parallel layer each
// rank makes A x of its part of the sequence, and has the rows of B that it has of the layer; of a
// row-parallel one it has the columns of A, and makes B h of its part of the sequence.
//
// The model is used as before. Every rank gives it the same samples; what all ranks have whole
// stays the same on each, and its gradients are those of the whole batch, to be summed over
// data-parallel ranks only. With one rank and several parts it is the same model, to the bit.
//
// To be called before an optimizer or anything else holds a parameter, whether or not they have
// memory. Throws ArgumentError naming the module or parameter for sizes that do not divide, and for
// a rule that fits no module.
void Parallelize(Module& model, const TensorRanksPtr& ranks, const TensorPlan& plan);

// Collective. Throws ReplicaError, naming tensor and rank, if what ranks have alike differs:
// weights that all of them have whole, experts that several have, buffers. `when` is for the
// message, "after step 100".
void CheckReplicas(const TensorRanks& ranks, const Module& model, const std::string& when);

}  // namespace lockstep::dist
