#include "dist/expert/share_experts.h"

#include <bit>

#include "dist/expert/distributed_experts.h"
#include "dist/expert/expert_exchange.h"
#include "dist/tensor/tensor_experts.h"
#include "nn/mixture/mixture_of_experts.h"

namespace lockstep::dist {

void ShareExperts(Module& model, const std::shared_ptr<ProcessGroup>& group,
                  const std::shared_ptr<ProcessGroup>& sequence) {
  if (!group || group->size() == 1) return;
  LS_CHECK(std::has_single_bit(static_cast<uint64_t>(group->size())),
           "expert parallelism: the number of ranks must be a power of two, got ", group->size(),
           ": the gradients of their samples are added in pairs");
  const int64_t of_sequence = SizeOf(sequence.get());
  LS_CHECK(group->size() % of_sequence == 0 &&
               (!sequence || sequence->rank() == group->rank() % of_sequence),
           "expert parallelism: the ", of_sequence, " ranks that compute a sequence together must ",
           "be neighbours among the ", group->size(), " that split the experts");
  const auto parts = MeshParts::Of(model.Parameters());
  const auto exchange = std::make_shared<ExpertExchange>(group, sequence);
  bool any = false;
  for (const auto& [path, module] : model.NamedModules()) {
    auto* mixture = dynamic_cast<nn::MixtureOfExperts*>(module);
    if (mixture == nullptr) continue;
    const std::string place = path.empty() ? "experts" : path + ".experts";
    LS_CHECK(!mixture->has_chunks(), "expert parallelism: the mixture of '", place,
             "' routes chunks of sequences to the experts that it has already: call ShareExperts "
             "before ParallelizeContext");
    Child<nn::ExpertsLayer>* slot = &mixture->experts();
    const auto tensor = std::dynamic_pointer_cast<TensorExperts>(slot->module());
    if (tensor) slot = &tensor->own();
    const auto experts = std::dynamic_pointer_cast<nn::Experts>(slot->module());
    LS_CHECK(experts != nullptr, "expert parallelism: '", place,
             "' is not an nn::Experts, and only these can be split across ranks");
    RefuseDropoutOfExperts(*experts);
    const auto distributed =
        std::make_shared<DistributedExperts>(experts, group, of_sequence, place);
    for (const auto& weight : distributed->weights()) exchange->Cut(parts, *weight);
    if (tensor) {
      slot->Replace(distributed);
      distributed->AssignNames(place);
    } else {
      model.ReplaceChild(place, distributed);
    }
    any = true;
  }
  LS_CHECK(any,
           "expert parallelism: the model has no nn::MixtureOfExperts whose experts could be split "
           "across ranks: leave ShareExperts out");
  parts->Add(exchange);
}

}  // namespace lockstep::dist
