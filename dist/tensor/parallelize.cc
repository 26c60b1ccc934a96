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
        return Replace<nn::Linear>(path, module, [&](const nn::Linear& layer) {
          Cut(layer.weight(), 0, rule.segments);
          Cut(layer.bias(), 0, rule.segments);
          return std::make_shared<ColumnLinear>(layer, rule.segments, ranks_);
        });
      case TensorStyle::kRow:
        return Replace<nn::BranchLinear>(path, module, [&](const nn::BranchLinear& layer) {
          Cut(layer.weight(), 1, {});
          return std::make_shared<RowLinear>(layer, ranks_);
        });
      case TensorStyle::kHeads: {
        auto* attention = dynamic_cast<nn::CausalSelfAttention*>(module);
        if (attention == nullptr) return false;
        if (attention->qk_norm() == nn::QkNorm::kFull) CheckKeysAreCut(path, *attention);
        ShareHeads(*attention, ranks_);
        for (const Child<Layer>* norm : {attention->q_norm(), attention->k_norm()}) {
          if (norm != nullptr) ReplaceNorm(path, *attention, *norm);
        }
        return true;
      }
      case TensorStyle::kVocabulary:
        return Replace<nn::Embedding>(path, module,
                                      [&](const nn::Embedding& table) {
                                        Cut(table.weight(), 0, {});
                                        return std::make_shared<VocabularyEmbedding>(table, ranks_);
                                      }) ||
               Replace<nn::LmHead>(path, module, [&](const nn::LmHead& head) {
                 Cut(head.weight(), 0, {});
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
               Replace<nn::Dropout>(path, module, [&](const nn::Dropout& dropout) {
                 return std::make_shared<SequenceDropout>(dropout.p(), ranks_);
               });
      case TensorStyle::kExperts: {
        auto* mixture = dynamic_cast<nn::MixtureOfExperts*>(module);
        if (mixture == nullptr) return false;
        const auto experts = std::dynamic_pointer_cast<nn::Experts>(mixture->experts().module());
        LS_CHECK(experts != nullptr, "Parallelize: '", path,
                 ".experts' is no nn::Experts, and ranks can share out only these");
        for (const auto& p : experts->Parameters()) Cut(p, 0, {});
        model_.ReplaceChild(path + ".experts", std::make_shared<TensorExperts>(experts, ranks_));
        TakeParts(*mixture, ranks_);
        return true;
      }
    }
    throw ArgumentError("Parallelize: unknown style");
  }

 private:
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
    const int64_t parts = ranks_->parts(), keys = attention.n_kv_head() * ranks_->size();
    LS_CHECK(keys % parts == 0, "Parallelize: the gradient of '", path, ".", norm.name(),
             "' is a sum over the ", parts, " parts of virtual.tp, and these do not divide the ",
             keys, " heads of keys (model.n_kv_head): use a divisor of them, or ",
             "model.qk_norm=none");
    const auto replaced = std::dynamic_pointer_cast<nn::RmsNorm>(norm.module());
    LS_CHECK(replaced != nullptr, "Parallelize: '", path, ".", norm.name(),
             "' is no nn::RmsNorm, and ranks can share out only these");
    if (attention.qk_norm() == nn::QkNorm::kFull) {
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

}  // namespace

void Parallelize(Module& model, const TensorRanksPtr& ranks, const TensorPlan& plan) {
  Applier applier(model, ranks);
  for (const TensorRule& rule : plan) {
    bool fits = false;
    for (const auto& [path, module] : model.NamedModules()) {
      if (!path.empty() && fnmatch(rule.pattern.c_str(), path.c_str(), 0) == 0) {
        fits |= applier.Apply(rule, path, module);
      }
    }
    LS_CHECK(fits, "Parallelize: the rule '", rule.pattern,
             "' fits no module of a kind that its style applies to: leave it out, or correct the "
             "pattern");
  }
}

void CheckReplicas(const TensorRanks& ranks, const Module& model, const std::string& when) {
  if (ranks.size() == 1) return;
  std::map<int64_t, NamedTensors> alike;  // by how far copies are apart
  for (const auto& [name, p] : model.NamedParameters()) {
    alike[ranks.CopiesApart(*p)].emplace_back(name, p->value().Detach());
  }
  for (const auto& [name, buffer] : model.NamedBuffers()) alike[1].emplace_back(name, buffer);
  for (const auto& [apart, tensors] : alike) {
    if (apart == ranks.size()) continue;
    CheckSameBits(*ranks.group(), "the weights that ranks share " + when, tensors, apart);
  }
}

}  // namespace lockstep::dist
