#include "dist/tensor/parallelize.h"

#include <fnmatch.h>

#include <map>

#include "dist/groups/agreement.h"
#include "dist/tensor/head_norm.h"
#include "dist/tensor/parallel_linear.h"
#include "dist/tensor/sequence.h"
#include "dist/tensor/shared_keys.h"
#include "dist/tensor/tensor_exchange.h"
#include "dist/tensor/tensor_experts.h"
#include "dist/tensor/vocabulary.h"
#include "nn/attention/causal_self_attention.h"
#include "nn/lora/lora.h"

namespace lockstep::dist {
namespace {

class Applier {
 public:
  Applier(Module& model, const TensorRanksPtr& ranks)
      : model_(model),
        ranks_(ranks),
        parts_(MeshParts::Of(model.Parameters())),
        exchange_(std::make_shared<TensorExchange>(ranks)) {
    parts_->Add(exchange_);
  }

  // Whether the module is one to which the style applies.
  bool Apply(const TensorRule& rule, const std::string& path, Module* module) {
    switch (rule.style) {
      case TensorStyle::kColumn:
        if (auto* adapted = dynamic_cast<nn::LoraLinear*>(module)) {
          return ShareAdapted(*adapted, rule.segments);
        }
        return Replace<nn::Linear>(
                   path, module,
                   [&](const nn::Linear& layer) { return ColumnOf(layer, rule.segments); }) ||
               Replace<nn::QuantizedLinear>(path, module, [&](const nn::QuantizedLinear& layer) {
                 return ColumnOf(layer, rule.segments);
               });
      case TensorStyle::kRow:
        if (auto* adapted = dynamic_cast<nn::LoraBranchLinear*>(module)) {
          return ShareAdapted(*adapted);
        }
        return Replace<nn::BranchLinear>(
                   path, module, [&](const nn::BranchLinear& layer) { return RowOf(layer); }) ||
               Replace<nn::QuantizedBranchLinear>(
                   path, module,
                   [&](const nn::QuantizedBranchLinear& layer) { return RowOf(layer); });
      case TensorStyle::kHeads: {
        auto* attention = dynamic_cast<nn::CausalSelfAttention*>(module);
        if (attention == nullptr) return false;
        if (attention->qk_norm() == nn::QkNorm::kFull) CheckKeysAreCut(path, *attention);
        ShareHeads(*attention, ranks_);
        if (Child<Layer>* const values = attention->value_embed()) {
          Cut(In<nn::Embedding>(path, *values).weight(), 1, {});
        }
        for (const Child<Layer>* norm : {attention->q_norm(), attention->k_norm()}) {
          if (norm != nullptr) ReplaceNorm(path, *attention, *norm);
        }
        return true;
      }
      case TensorStyle::kVocabulary:
        return Replace<nn::Embedding>(path, module,
                                      [&](const nn::Embedding& table) {
                                        exchange_->CutVocabulary(parts_, *table.weight());
                                        return std::make_shared<VocabularyEmbedding>(table, ranks_);
                                      }) ||
               Replace<nn::LmHead>(path, module, [&](const nn::LmHead& head) {
                 exchange_->CutVocabulary(parts_, *head.weight());
                 return std::make_shared<VocabularyHead>(head, ranks_);
               });
      case TensorStyle::kSequence:
        return Replace<nn::ResidualNorm>(path, module,
                                         [&](const nn::ResidualNorm& norm) {
                                           return std::make_shared<SequenceNorm>(norm, ranks_);
                                         }) ||
               Replace<nn::BranchNorm>(path, module,
                                       [&](const nn::BranchNorm& norm) {
                                         return std::make_shared<SequenceBranchNorm>(norm, ranks_);
                                       }) ||
               Replace<nn::StreamMix>(path, module,
                                      [&](const nn::StreamMix& mix) {
                                        return std::make_shared<SequenceMix>(mix, ranks_);
                                      }) ||
               Replace<nn::Dropout>(path, module, [&](const nn::Dropout& dropout) {
                 return std::make_shared<SequenceDropout>(dropout.p(), ranks_);
               });
      case TensorStyle::kExperts: {
        auto* mixture = dynamic_cast<nn::MixtureOfExperts*>(module);
        if (mixture == nullptr) return false;
        const auto experts = std::dynamic_pointer_cast<nn::Experts>(mixture->experts().module());
        LS_CHECK(experts != nullptr, "Parallelize: '", path,
                 ".experts' is not an nn::Experts, and only these can be split across ranks");
        if (ranks_->parts() > 1) RefuseDropoutOfExperts(*experts);
        for (const auto& p : experts->Parameters()) Cut(p, 0, {});
        model_.ReplaceChild(path + ".experts", std::make_shared<TensorExperts>(experts, ranks_));
        TakeParts(*mixture, ranks_);
        return true;
      }
    }
    throw ArgumentError("Parallelize: unknown style");
  }

 private:
  std::shared_ptr<ColumnLinear> ColumnOf(const nn::Linear& layer,
                                         const std::vector<int64_t>& segments) {
    Cut(layer.weight(), 0, segments);
    Cut(layer.bias(), 0, segments);
    return std::make_shared<ColumnLinear>(layer, segments, ranks_);
  }
  std::shared_ptr<RowLinear> RowOf(const nn::BranchLinear& layer) {
    Cut(layer.weight(), 1, {});
    return std::make_shared<RowLinear>(layer, ranks_);
  }
  std::shared_ptr<Layer> ColumnOf(const nn::QuantizedLinear& layer,
                                  const std::vector<int64_t>& segments) {
    Cut(layer.bias(), 0, segments);
    return WithCodes(std::make_shared<QuantizedColumnLinear>(layer, segments, ranks_), layer);
  }
  std::shared_ptr<nn::BranchLayer> RowOf(const nn::QuantizedBranchLinear& layer) {
    return WithCodes(std::make_shared<QuantizedRowLinear>(layer, ranks_), layer);
  }
  // A rank's part of a matrix is made of the bytes that are the rank's of the new parameter.
  template <class M>
  std::shared_ptr<M> WithCodes(std::shared_ptr<M> layer, const nn::QuantizedLayer& replaced) {
    for (size_t i = 0; i < layer->codes().size(); ++i) {
      parts_->Replace(*replaced.codes()[i], *layer->codes()[i]);
      Cut(layer->codes()[i], 0, {});
    }
    return layer;
  }
  // Splits a slice's adapter, which has the cuts of those of the layer's segments that it covers.
  bool ShareAdapted(nn::LoraLinear& adapted, const std::vector<int64_t>& segments) {
    const std::string& path = adapted.adapter_path();
    if (const auto* quantized = As<nn::QuantizedLinear>(adapted.base())) {
      adapted.base().Replace(ColumnOf(*quantized, segments));
    } else {
      adapted.base().Replace(ColumnOf(In<nn::Linear>(path, adapted.base()), segments));
    }
    adapted.lora_dropout().Replace(std::make_shared<SequenceDropout>(
        In<nn::Dropout>(path, adapted.lora_dropout()).p(), ranks_));
    adapted.lora_a().Replace(
        std::make_shared<SequenceLinear>(In<nn::Linear>(path, adapted.lora_a()).weight(), ranks_));
    nn::LoraUpdate& update = *adapted.lora_b();
    update.KeepRows(ranks_->size());
    auto next = segments.begin();
    for (size_t i = 0; i < adapted.slices().size(); ++i) {
      std::vector<int64_t> own;
      for (int64_t rows = adapted.slices()[i].rows; rows > 0 && next != segments.end(); ++next) {
        LS_CHECK(*next <= rows, "Parallelize: the slice '", adapted.slices()[i].name,
                 "' of the adapter of '", path, "' ends within a segment that ranks cut, of ",
                 *next, " rows: give it whole segments");
        own.push_back(*next);
        rows -= *next;
      }
      if (Child<Layer>* const layer = update.layer(i)) {
        layer->Replace(ColumnOf(In<nn::Linear>(path, *layer), own));
      }
    }
    return true;
  }
  bool ShareAdapted(nn::LoraBranchLinear& adapted) {
    const std::string& path = adapted.adapter_path();
    if (const auto* quantized = As<nn::QuantizedBranchLinear>(adapted.base())) {
      adapted.base().Replace(RowOf(*quantized));
    } else {
      adapted.base().Replace(RowOf(In<nn::BranchLinear>(path, adapted.base())));
    }
    adapted.lora_dropout().Replace(
        std::make_shared<RowDropout>(In<nn::Dropout>(path, adapted.lora_dropout()).p(), ranks_));
    adapted.lora_a().Replace(RowOf(In<nn::BranchLinear>(path, adapted.lora_a())));
    for (size_t i = 0; i < adapted.slices().size(); ++i) {
      Child<Layer>* const layer = adapted.lora_b()->layer(i);
      if (layer == nullptr) continue;
      layer->Replace(
          std::make_shared<SequenceLinear>(In<nn::Linear>(path, *layer).weight(), ranks_));
    }
    return true;
  }
  template <class M, class Slot>
  static const M* As(const Child<Slot>& slot) {
    return dynamic_cast<const M*>(slot.module().get());
  }
  // What is in a slot of the adapted layer at `path`, which must be an M.
  template <class M, class Slot>
  static const M& In(const std::string& path, const Child<Slot>& slot) {
    const M* const module = As<M>(slot);
    LS_CHECK(
        module != nullptr, "Parallelize: ", slot.name().empty() ? "the base" : "'", slot.name(),
        slot.name().empty() ? "" : "'", " of the adapted layer '", path,
        "' has been replaced by a layer of another kind, such as a quantised one, which cannot be "
        "split across tensor-parallel ranks: use parallel.tp = 1 and virtual.tp = 1");
    return *module;
  }
  // A norm of all keys together cannot norm copies of them.
  void CheckKeysAreCut(const std::string& path, const nn::CausalSelfAttention& attention) const {
    const int64_t keys = attention.n_kv_head(), parts = ranks_->parts();
    LS_CHECK(keys % parts == 0, "Parallelize: '", path,
             ".k_norm' norms all heads together (model.qk_norm = \"full\"), and the ", parts,
             " parts of virtual.tp do not divide the ", keys,
             " heads of keys (model.n_kv_head): use a divisor of them");
  }
  // The norm is a child of the attention at `path`.
  void ReplaceNorm(const std::string& path, const nn::CausalSelfAttention& attention,
                   const Child<Layer>& norm) {
    const auto replaced = std::dynamic_pointer_cast<nn::RmsNorm>(norm.module());
    LS_CHECK(replaced != nullptr, "Parallelize: '", path, ".", norm.name(),
             "' is not an nn::RmsNorm, and only these can be split across ranks");
    const bool full = attention.qk_norm() == nn::QkNorm::kFull;
    if (!replaced->weight() && !full) return;  // heads are normed one by one
    const int64_t parts = ranks_->parts(), keys = attention.n_kv_head() * ranks_->size();
    LS_CHECK(keys % parts == 0, "Parallelize: the gradient of '", path, ".", norm.name(),
             "' is a sum over the ", parts, " parts of virtual.tp, and these do not divide the ",
             keys, " heads of keys (model.n_kv_head): use a divisor of them, or ",
             "model.qk_norm=none");
    if (full) {
      Cut(replaced->weight(), 0, {});
      return model_.ReplaceChild(StrCat(path, ".", norm.name()),
                                 std::make_shared<ProjectionNorm>(*replaced, ranks_));
    }
    model_.ReplaceChild(StrCat(path, ".", norm.name()),
                        std::make_shared<HeadNorm>(*replaced, ranks_, /*dim=*/2));
  }
  // parameter may be null.
  void Cut(const std::shared_ptr<Parameter>& parameter, int dim,
           const std::vector<int64_t>& segments) {
    if (parameter) exchange_->Cut(parts_, *parameter, dim, segments);
  }
  template <class M, class F>
  bool Replace(const std::string& path, Module* module, const F& make) {
    auto* replaced = dynamic_cast<M*>(module);
    if (replaced) model_.ReplaceChild(path, make(*replaced));
    return replaced != nullptr;
  }

  Module& model_;
  const TensorRanksPtr ranks_;
  const std::shared_ptr<MeshParts> parts_;
  const std::shared_ptr<TensorExchange> exchange_;
};

// Null of a layer without an adapter.
const Module* BaseOf(Module* module) {
  if (auto* adapted = dynamic_cast<nn::LoraLinear*>(module)) {
    return adapted->base().module().get();
  }
  if (auto* adapted = dynamic_cast<nn::LoraBranchLinear*>(module)) {
    return adapted->base().module().get();
  }
  return nullptr;
}

}  // namespace

void Parallelize(Module& model, const TensorRanksPtr& ranks, const TensorPlan& plan) {
  Applier applier(model, ranks);
  for (const TensorRule& rule : plan) {
    bool fits = false;
    const Module* base = nullptr;  // of the adapted layer before, whose path it has
    for (const auto& [path, module] : model.NamedModules()) {
      if (path.empty() || module == base || fnmatch(rule.pattern.c_str(), path.c_str(), 0) != 0) {
        continue;
      }
      const Module* const inner = BaseOf(module);
      fits |= applier.Apply(rule, path, module);
      if (inner != nullptr) base = inner;
    }
    LS_CHECK(fits, "Parallelize: the rule '", rule.pattern,
             "' fits no module of a kind that its style applies to: leave it out, or correct the "
             "pattern");
  }
  if (!nn::LoraAdapters(model).empty()) model.AssignNames(model.path());  // of what is in slots now
}

void CheckReplicas(const TensorRanks& ranks, const Module& model, const std::string& when) {
  if (ranks.size() == 1) return;
  std::map<int64_t, NamedTensors> alike;  // by how far copies are apart
  for (const auto& [name, p] : model.NamedParameters()) {
    alike[ranks.CopyStride(*p)].emplace_back(name, p->value().Detach());
  }
  for (const auto& [name, buffer] : model.NamedBuffers()) alike[1].emplace_back(name, buffer);
  for (const auto& [stride, tensors] : alike) {
    if (stride == ranks.size()) continue;
    CheckSameBits(*ranks.group(), "the weights that ranks share " + when, tensors, stride);
  }
}

}  // namespace lockstep::dist
