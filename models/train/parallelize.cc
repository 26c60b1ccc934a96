#include "models/train/parallelize.h"

#include "dist/context/parallelize_context.h"
#include "dist/expert/share_experts.h"
#include "models/train/pipeline_parallel.h"

namespace lockstep::models {

dist::TensorPlan GptTensorPlan(const GptConfig& c) {
  using enum dist::TensorStyle;
  const int64_t head = c.head_dim > 0 ? c.head_dim : c.n_embd / c.n_head;
  const int64_t queries = head * c.n_head;
  const int64_t keys = head * c.key_heads();
  const int64_t inner = c.n_inner > 0 ? c.n_inner : 4 * c.n_embd;
  dist::TensorRule c_fc{"h.*.mlp.c_fc", kColumn};
  if (nn::IsGated(c.activation)) c_fc.segments = {inner, inner};
  dist::TensorPlan plan = {{"wte", kVocabulary},
                           {"drop", kSequence},
                           {"h.*.ln_[12]*", kSequence},
                           {"h.*.attn", kHeads},
                           {"h.*.attn.c_attn", kColumn, {queries, keys, keys}},
                           {"h.*.attn.c_proj", kRow},
                           {"ln_f", kSequence},
                           {"lm_head", kVocabulary}};
  if (c.embed_mix) plan.push_back({"h.*.mix", kSequence});
  const bool mixture = c.mixture.n_expert > 0;
  if (mixture) plan.push_back({"h.*.mlp", kExperts});
  if (!mixture || c.n_dense > 0) {
    plan.push_back(c_fc);
    plan.push_back({"h.*.mlp.c_proj", kRow});
  }
  return plan;
}

void ParallelizeLayers(Gpt& model, const dist::TensorRanksPtr& ranks) {
  if (ranks->parts() == 1) return;
  try {
    dist::Parallelize(model, ranks, GptTensorPlan(model.config()));
  } catch (const ArgumentError& error) {
    throw InputError(error.what());
  }
}

dist::TensorRanksPtr ShareLayers(Gpt& model, const MeshGroups& groups, const ParallelPlan& plan) {
  const auto sums = plan.fast_tensor_sums ? dist::MakeLibrarySums : dist::MakeOrderedSums;
  auto tensor = std::make_shared<dist::TensorRanks>(groups.tensor.get(), plan.tensor_parts,
                                                    sums(groups.tensor.get()));
  ParallelizeLayers(model, tensor);
  // Splits the experts of a tensor-parallel rank, first across those that compute a sequence
  // together.
  const bool of_sequence = groups.data_ranks_of_experts == 1;
  dist::ShareExperts(model, groups.experts, of_sequence ? groups.experts : groups.context);
  if (plan.context_pairs == 1) return tensor;
  if (tensor->parts() == 1) tensor = nullptr;
  const auto context = std::make_shared<dist::ContextRanks>(
      groups.context.get(), plan.context_pairs, plan.sums_context_with_data, std::move(tensor));
  dist::ParallelizeContext(model, context);
  return context;
}

void CheckReplicas(const Gpt& model, const MeshGroups& groups, const ParallelPlan& plan,
                   const std::string& when) {
  const dist::TensorRanks tensor(groups.tensor.get(), plan.tensor_parts);
  dist::CheckReplicas(tensor, model, when);
  if (!groups.context) return;
  const dist::ContextRanks context(groups.context.get(), plan.context_pairs);
  dist::CheckReplicas(context, model, when);
}

std::unique_ptr<StepRanks> ShareSamples(Gpt& model, const MeshGroups& groups,
                                        const ParallelPlan& plan) {
  auto data = MakeDataRanks(groups, plan, model);
  if (!data) return std::make_unique<SampleRanks>(plan.micro_batches);
  return std::make_unique<SampleRanks>(std::move(data),
                                       plan.sums_context_with_data ? nullptr : groups.context,
                                       plan.diloco ? nullptr : groups.all);
}

std::unique_ptr<StepRanks> Parallelize(Gpt& model, const MeshGroups& groups,
                                       const ParallelPlan& plan,
                                       const std::function<void(bool on_meta)>& materialize) {
  if (plan.pipeline) PipelineParallel::Place(groups, plan, model);
  const dist::TensorRanksPtr ranks = ShareLayers(model, groups, plan);
  // Blocks recompute and offload by themselves, within what follows.
  const auto share_samples = [&]() -> std::unique_ptr<StepRanks> {
    if (plan.pipeline) return std::make_unique<PipelineParallel>(groups, plan, model, ranks);
    return ShareSamples(model, groups, plan);
  };
  if (!plan.shard) {
    materialize(/*on_meta=*/false);
    return share_samples();
  }
  materialize(/*on_meta=*/true);
  auto sharded = share_samples();
  materialize(/*on_meta=*/false);
  return sharded;
}

}  // namespace lockstep::models
