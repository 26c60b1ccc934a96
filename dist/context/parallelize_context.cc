#include "dist/context/parallelize_context.h"

#include <map>
#include <set>

#include "dist/context/context_attention.h"
#include "dist/context/context_layers.h"
#include "dist/context/context_mixture.h"
#include "dist/expert/distributed_experts.h"
#include "dist/tensor/head_norm.h"
#include "dist/tensor/parallel_linear.h"
#include "dist/tensor/sequence.h"
#include "dist/tensor/vocabulary.h"
#include "nn/documents.h"
#include "nn/lora/lora.h"
#include "nn/lora/quantized_linear.h"

namespace lockstep::dist {
namespace {

// For layers that are whole on each rank.
std::shared_ptr<Module> OfWhole(const ContextRanksPtr& ranks, Module* module) {
  if (auto* m = dynamic_cast<nn::Linear*>(module)) {
    return std::make_shared<ContextLinear>(m->weight(), m->bias(), m->activation(), ranks);
  }
  if (auto* m = dynamic_cast<nn::BranchLinear*>(module)) {
    return std::make_shared<ContextBranchLinear>(m->weight(), m->bias(), ranks);
  }
  if (auto* m = dynamic_cast<nn::LmHead*>(module)) {
    return std::make_shared<ContextHead>(m->weight(), m->tied(), m->loss_chunk(), m->softcap(),
                                         m->z_loss(), ranks);
  }
  return nullptr;
}

// For layers of which the ranks within have parts.
std::shared_ptr<Module> OfParts(const ContextRanksPtr& ranks, Module* module) {
  if (auto* m = dynamic_cast<ColumnLinear*>(module)) {
    return std::make_shared<ContextLinear>(m->weight(), m->bias(), m->activation(), ranks,
                                           m->segments(), ranks->within());
  }
  if (auto* m = dynamic_cast<RowLinear*>(module)) {
    return std::make_shared<ContextBranchLinear>(m->weight(), m->bias(), ranks, ranks->within());
  }
  if (auto* m = dynamic_cast<VocabularyHead*>(module)) {
    return std::make_shared<ContextHead>(m->weight(), m->tied(), m->loss_chunk(), m->softcap(),
                                         m->z_loss(), ranks);
  }
  if (auto* m = dynamic_cast<SequenceDropout*>(module)) {
    return std::make_shared<SequenceDropout>(m->p(), ranks);
  }
  return nullptr;
}

// What takes the module's place; null: it stays. `is_whole`: on each of the ranks within.
std::shared_ptr<Module> Replacement(const ContextRanksPtr& ranks, Module* module, bool is_whole) {
  if (auto* m = dynamic_cast<nn::Embedding*>(module)) {
    return std::make_shared<ContextEmbedding>(*m, ranks);
  }
  if (auto* m = dynamic_cast<nn::ResidualNorm*>(module)) {
    return std::make_shared<SequenceNorm>(*m, ranks);
  }
  if (auto* m = dynamic_cast<nn::BranchNorm*>(module)) {
    return std::make_shared<SequenceBranchNorm>(*m, ranks);
  }
  if (auto* m = dynamic_cast<nn::StreamMix*>(module)) {
    return std::make_shared<SequenceMix>(*m, ranks);
  }
  if (auto* m = dynamic_cast<nn::RmsNorm*>(module)) {
    if (!m->weight()) return nullptr;  // rows are normed one by one
    return std::make_shared<HeadNorm>(*m, ranks, /*dim=*/0);
  }
  if (auto* m = dynamic_cast<SequenceLinear*>(module)) {
    return std::make_shared<SequenceLinear>(m->weight(), ranks);
  }
  if (auto* m = dynamic_cast<RowDropout*>(module)) {
    return std::make_shared<RowDropout>(m->p(), ranks->within(), ranks);
  }
  if (auto* m = dynamic_cast<nn::Dropout*>(module)) {
    LS_CHECK(!ranks->within() || m->p() == 0, "context parallelism: '", m->path(),
             "' is the dropout of a layer that each tensor-parallel rank computes for the whole "
             "sequence, whose mask cannot be cut: leave out lora.dropout for this layer, or one of "
             "virtual.tp and virtual.cp");
    return ranks->within() ? nullptr : std::make_shared<SequenceDropout>(m->p(), ranks);
  }
  return is_whole ? OfWhole(ranks, module) : OfParts(ranks, module);
}

Tensor Attend(const ContextRanksPtr& ranks, const Tensor& qkv, const nn::AttentionCall& call) {
  std::vector<Tensor> chunks = qkv.Chunk(ranks->own(), 0);
  std::vector<Tensor> positions(chunks.size());
  if (const Tensor& whole = nn::CurrentDocuments().positions; whole.defined()) {
    positions = ranks->Cut(whole);
  }
  for (size_t j = 0; call.rotary && j < chunks.size(); ++j) {
    const int64_t first = ranks->PartAt(static_cast<int64_t>(j)) * qkv.dim(1);
    chunks[j] =
        (*call.rotary)(std::move(chunks[j]), call.n_head + call.n_kv_head, first, positions[j]);
  }
  return ContextAttention(ranks, chunks, call);
}

// The slots in an adapted layer whose modules have its own path, so that it does not tell them
// apart.
std::vector<internal::ChildSlot*> UnnamedSlots(Module* module) {
  std::vector<internal::ChildSlot*> slots;
  if (auto* m = dynamic_cast<nn::LoraLinear*>(module)) slots.push_back(&m->base());
  if (auto* m = dynamic_cast<nn::LoraBranchLinear*>(module)) slots.push_back(&m->base());
  if (auto* m = dynamic_cast<nn::LoraUpdate*>(module)) {
    if (m->layer(0) != nullptr && m->layer(0)->name().empty()) slots.push_back(m->layer(0));
  }
  return slots;
}

// The modules of mixtures, which all ranks of a layer compute alike, for whole chunks: shared
// experts and their gates.
std::set<const Module*> WholeModules(Module& model) {
  std::set<const Module*> whole;
  for (const auto& [path, module] : model.NamedModules()) {
    if (dynamic_cast<nn::MixtureOfExperts*>(module) == nullptr) continue;
    for (const auto& [below, inner] : module->NamedModules()) whole.insert(inner);
  }
  return whole;
}

// For experts that are split across equally long runs of ranks; null if they are not.
TensorRanksPtr RanksWithSameExperts(Module& model, const ContextRanks& ranks) {
  for (const auto& [path, module] : model.NamedModules()) {
    const auto* experts = dynamic_cast<DistributedExperts*>(module);
    if (experts != nullptr) return WithSameExperts(ranks, *experts);
  }
  return nullptr;
}

}  // namespace

void ParallelizeContext(Module& model, const ContextRanksPtr& ranks) {
  const std::set<const Module*> whole = WholeModules(model);
  const TensorRanksPtr same = RanksWithSameExperts(model, *ranks);
  std::set<const Parameter*> shared_out;
  std::map<const Module*, internal::ChildSlot*> unnamed;
  for (const auto& [path, module] : model.NamedModules()) {
    if (auto* attention = dynamic_cast<nn::CausalSelfAttention*>(module)) {
      attention->AttendBy([ranks](const Tensor& qkv, const nn::AttentionCall& call) {
        return Attend(ranks, qkv, call);
      });
    }
    if (auto* mixture = dynamic_cast<nn::MixtureOfExperts*>(module)) {
      for (const auto& p : RouteChunks(*mixture, ranks, same)) shared_out.insert(p.get());
    }
    if (auto* frozen = dynamic_cast<nn::QuantizedLayer*>(module)) {
      frozen->MultiplyByChunks(ranks->own());
    }
    for (internal::ChildSlot* slot : UnnamedSlots(module)) unnamed[slot->module().get()] = slot;
    const bool is_whole = !ranks->within() || whole.contains(module);
    const std::shared_ptr<Module> replacement = Replacement(ranks, module, is_whole);
    if (!replacement) continue;
    if (const auto slot = unnamed.find(module); slot != unnamed.end()) {
      slot->second->Replace(replacement);
    } else {
      model.ReplaceChild(path, replacement);
    }
    for (const auto& p : replacement->Parameters()) shared_out.insert(p.get());
  }
  if (!unnamed.empty()) model.AssignNames(model.path());
  for (const auto& [name, p] : model.NamedParameters()) {
    LS_CHECK(shared_out.contains(p.get()) || !p->trainable(),
             "context parallelism: the parameter '", name,
             "' belongs to a module whose gradients it cannot sum over parts of a sequence: leave "
             "parallel.cp and virtual.cp out, or use a model of linear layers, embeddings, norms, "
             "causal attention and mixtures of experts");
  }
}

}  // namespace lockstep::dist
