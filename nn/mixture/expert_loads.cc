#include "nn/mixture/expert_loads.h"

#include <algorithm>
#include <numeric>

namespace lockstep::nn {
namespace {

double MeanOf(const std::vector<double>& load) {
  return std::accumulate(load.begin(), load.end(), 0.0) / static_cast<double>(load.size());
}

}  // namespace

ExpertLoads::ExpertLoads(Module& model) {
  for (const auto& [name, module] : model.NamedModules()) {
    auto* router = dynamic_cast<ExpertRouter*>(module);
    if (router == nullptr) continue;
    routers_.push_back(router);
    has_biases_ |= router->bias_rate() > 0;
  }
}

std::vector<HostRead> ExpertLoads::Take() {
  std::vector<HostRead> reads;
  for (ExpertRouter* router : routers_) {
    if (!router->load().defined() && router->is_elsewhere()) {
      reads.emplace_back(Tensor::Zeros({router->n_expert()}, DType::kI64));
      continue;
    }
    LS_CHECK(router->load().defined(), "the router '", router->path(),
             "' has no load yet: take it after a forward of a training step");
    reads.emplace_back(router->load());
    router->load().Fill(0);
  }
  return reads;
}

void ExpertLoads::Discard() {
  for (ExpertRouter* router : routers_) {
    if (router->load().defined()) router->load().Fill(0);
  }
}

void ExpertLoads::MoveBiases(const LayerLoads& loads) const {
  if (!has_biases_) return;
  LS_CHECK(loads.size() == routers_.size(), "MoveBiases needs the loads of ", routers_.size(),
           " routers, got ", loads.size());
  for (size_t i = 0; i < routers_.size(); ++i) {
    const ExpertRouter& router = *routers_[i];
    if (router.bias_rate() == 0) continue;
    const double mean = MeanOf(loads[i]);
    std::vector<float> bias = router.bias().To(DType::kF32).ToVector<float>();
    const auto rate = static_cast<float>(router.bias_rate());
    for (size_t e = 0; e < bias.size(); ++e) {
      if (loads[i][e] < mean) bias[e] += rate;
      if (loads[i][e] > mean) bias[e] -= rate;
    }
    router.bias().CopyFrom(Tensor::FromVector(bias, router.bias().shape()));
  }
}

LayerLoads ToLoads(std::vector<HostRead> reads) {
  LayerLoads loads;
  for (HostRead& read : reads) {
    const std::vector<int64_t> counts = read.Get().ToVector<int64_t>();
    loads.emplace_back(counts.begin(), counts.end());
  }
  return loads;
}

LoadSpread SpreadOf(const LayerLoads& loads) {
  LoadSpread spread;
  for (const std::vector<double>& load : loads) {
    const double mean = MeanOf(load);
    if (mean <= 0) continue;
    const auto [least, most] = std::ranges::minmax(load);
    spread.most = std::max(spread.most, most / mean);
    spread.least = std::min(spread.least, least / mean);
  }
  return spread;
}

}  // namespace lockstep::nn
