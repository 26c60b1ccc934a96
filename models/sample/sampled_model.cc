#include "models/sample/sampled_model.h"

#include "models/checkpoint/checkpoint.h"
#include "models/gpt/hf/bitsandbytes.h"
#include "models/gpt/hf/hf_format.h"
#include "models/gpt/quantize_base.h"
#include "models/train/parallelize.h"

namespace lockstep::models {

std::string BaseFor(const std::string& option, const std::string& folder,
                    const std::vector<PeftAdapter>& adapters) {
  if (option != "auto") return option;
  const std::string stored = BaseIn(WeightsOf(folder));
  std::vector<PeftAdapter> all = adapters;
  if (PeftAdapter::Exists(folder)) all.push_back(PeftAdapter::Open(folder));
  std::string base;
  for (const PeftAdapter& adapter : all) {
    const std::string of_adapter = adapter.base_kind().empty() ? stored : adapter.base_kind();
    if (base.empty()) base = of_adapter;
    if (base == of_adapter) continue;
    throw InputError(StrCat(all[0].folder(), " was trained on weights of the kind ", base, ", and ",
                            adapter.folder(), " on ", of_adapter,
                            ": choose the kind for all of them with --base"));
  }
  return base.empty() ? stored : base;
}

std::unique_ptr<Gpt> LoadSampledModel(const std::string& folder, const std::string& base,
                                      const PeftAdapter* adapter, const dist::TensorRanksPtr& ranks,
                                      Device device, bool averages) {
  auto model = std::make_unique<Gpt>(ReadHfConfig(WeightsOf(folder)));
  AddAdapters(folder, *model);
  if (adapter != nullptr) adapter->AddTo(*model);
  if (base != "model") QuantizeBase(*model, base == "nf4");
  ParallelizeLayers(*model, ranks);
  model->Materialize(device, /*seed=*/std::nullopt);
  LoadWeights(folder, *model);
  if (averages) LoadAverages(folder, *model);
  if (adapter != nullptr) adapter->LoadInto(*model);
  return model;
}

void CheckDivides(const GptConfig& shape, int ranks) {
  const int64_t keys = shape.key_heads();
  if (const int64_t experts = shape.mixture.n_expert; experts % ranks != 0) {
    throw InputError(StrCat("the model's ", experts, " experts cannot be split across ", ranks,
                            " processes: use --nproc with a divisor of them"));
  }
  const int64_t rows = (shape.vocab_size + ranks - 1) / ranks;
  if (rows * (ranks - 1) >= shape.vocab_size) {
    throw InputError(StrCat("the model's vocabulary of ", shape.vocab_size, " is too small for ",
                            ranks, " processes: use fewer with --nproc"));
  }
  if (shape.n_head % ranks == 0 && (keys % ranks == 0 || ranks % keys == 0)) return;
  throw InputError(StrCat("the model's ", shape.n_head, " heads, of ", keys,
                          " keys and values, cannot be split across ", ranks,
                          " processes: use --nproc with a divisor of the heads that divides the "
                          "others or is a multiple of them"));
}

}  // namespace lockstep::models
