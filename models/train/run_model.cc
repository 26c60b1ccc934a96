#include "models/train/run_model.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string_view>

#include "core/cuda/blaslt.h"
#include "core/cuda/device_info.h"
#include "kernels/cpu/gemm.h"
#include "models/checkpoint/adapter_base.h"
#include "models/checkpoint/checkpoint.h"
#include "models/gpt/gpt.h"
#include "models/gpt/hf/hf_format.h"
#include "models/gpt/peft/adapter.h"
#include "models/options/plan_rules.h"
#include "models/preference/preference_objective.h"
#include "models/report/run_progress.h"
#include "models/train/parallel_plan.h"
#include "models/train/run_data.h"
#include "nn/precision.h"
#include "optim/adamw.h"
#include "optim/lion.h"
#include "optim/muon.h"
#include "optim/sgd.h"

namespace lockstep::models {

// fp32 and tf32 differ in how matrices are multiplied, not in what tensors hold.
void MaterializeFor(const RunSetup& setup, Device device, Module& model) {
  const auto seed = static_cast<uint64_t>(setup.config.seed);
  const bool copied = setup.start.going_on && DividesCopies(setup.config.parallel);
  const bool loads = !setup.weights.empty() || copied;
  nn::Materialize(model, device, loads ? std::nullopt : std::optional(seed),
                  {.compute = WeightDType(setup.config.train.precision),
                   .reduction = WeightDType(setup.config.train.grad_dtype)});
  if (!loads) return;
  for (const auto& [name, p] : model.NamedParameters()) {
    if (IsOfAdapter(name)) p->Initialize(seed);
  }
}

std::string ArithmeticOf(const RunSetup& setup) {
  if (setup.device.is_cuda()) return cuda::GetDeviceInfo(setup.device).name;
  return cpu::DescribeProducts(WeightDType(setup.config.train.precision));
}

void FillModel(const RunSetup& setup, Gpt& model) {
  cuda::AllowTf32(setup.config.train.precision == "tf32");
  MaterializeFor(setup, setup.device, model);
  if (setup.start.going_on && DividesCopies(setup.config.parallel)) return;
  const std::string& weights = setup.weights;
  if (!weights.empty()) LoadWeights(weights, model);
  const std::string from = AdaptersOf(setup);
  if (from.empty()) return;
  const PeftAdapter adapter = PeftAdapter::Open(from, setup.model);
  CheckBase(adapter, weights, Warn);
  adapter.LoadInto(model);
}

namespace {

// Of parameters, for their learning rates.
enum class Kind { kMatrix, kEmbedding, kHead, kScalar, kOther };

Kind KindOf(const Parameter& p) {
  const std::string& name = p.name();
  if (name.starts_with("wte.") || name.starts_with("wpe.") || IsValueEmbed(name)) {
    return Kind::kEmbedding;
  }
  if (name.starts_with("lm_head.")) return Kind::kHead;
  if (p.logical_shape().ndim() < 2) return Kind::kScalar;
  return IsLinearMap(name, p) ? Kind::kMatrix : Kind::kOther;
}

// 0: that of the run.
double OwnRate(const OptimOptions& o, Kind kind) {
  switch (kind) {
    case Kind::kMatrix:
      return o.matrix_lr;
    case Kind::kEmbedding:
      return o.embedding_lr;
    case Kind::kHead:
      return o.unembedding_lr;
    case Kind::kScalar:
      return o.scalar_lr;
    case Kind::kOther:
      return 0;
  }
  throw ArgumentError("no such kind of parameter");
}

// A group for each setting that a trainable parameter has; the first one has the frozen ones, too.
std::vector<optim::ParameterGroup> GroupsOf(const OptimOptions& o, const Module& model) {
  std::vector<optim::ParameterGroup> groups;
  std::vector<std::shared_ptr<Parameter>> frozen;
  for (const auto& p : model.Parameters()) {
    if (!p->trainable()) {
      frozen.push_back(p);
      continue;
    }
    const Kind kind = KindOf(*p);
    optim::ParameterGroup own;
    if (const double rate = OwnRate(o, kind); rate > 0) own.lr_factor = rate / o.lr;
    const bool table = kind == Kind::kEmbedding || kind == Kind::kHead;
    if (table && !o.decay_embeddings) own.weight_decay = 0;
    auto group = std::ranges::find_if(groups, [&](const optim::ParameterGroup& g) {
      return g.lr_factor == own.lr_factor && g.weight_decay == own.weight_decay;
    });
    if (group == groups.end()) group = groups.insert(group, own);
    group->parameters.push_back(p);
  }
  if (groups.empty()) groups.emplace_back();
  std::ranges::copy(frozen, std::back_inserter(groups[0].parameters));
  return groups;
}

// What blocks fuse into one matrix, by rows: queries, keys and values, or gate and up. The matrix
// that follows it, c_proj, has a column for each query, or for each row of the gate.
std::vector<int64_t> FusedRows(const Parameter& p, int64_t columns) {
  const int64_t rest = p.logical_shape()[0] - columns;
  if (rest <= 0) return {};
  if (p.name().ends_with(".c_fc.weight")) return {columns, rest};
  return {columns, rest / 2, rest / 2};
}

// MuonOptions::segments of a model's fused matrices.
std::function<std::vector<int64_t>(const Parameter&)> SegmentsIn(const Module& model) {
  std::map<std::string, std::vector<int64_t>> rows;
  const auto parameters = model.NamedParameters();
  const std::map<std::string, std::shared_ptr<Parameter>> by_name(parameters.begin(),
                                                                  parameters.end());
  for (const auto& [name, p] : parameters) {
    for (const std::string_view fused : {"c_attn.weight", "c_fc.weight"}) {
      if (!name.ends_with(fused)) continue;
      const auto next = by_name.find(name.substr(0, name.size() - fused.size()) + "c_proj.weight");
      if (next != by_name.end()) rows[name] = FusedRows(*p, next->second->logical_shape()[1]);
    }
  }
  return [rows](const Parameter& p) {
    const auto own = rows.find(p.name());
    return own == rows.end() ? std::vector<int64_t>() : own->second;
  };
}

}  // namespace

std::unique_ptr<const Objective> MakeObjective(const RunConfig& config, LanguageModel& model) {
  if (!Prefers(config)) return std::make_unique<LanguageObjective>();
  return std::make_unique<PreferenceObjective>(model, ToDpoOptions(config.dpo));
}

DpoOptions ToDpoOptions(const DpoRunOptions& o) {
  return {.loss = o.loss == "ipo" ? DpoLossKind::kIpo : DpoLossKind::kSigmoid,
          .beta = o.beta,
          .label_smoothing = o.label_smoothing};
}

std::unique_ptr<optim::Optimizer> MakeOptimizer(const RunSetup& setup, const Module& model,
                                                int64_t rank) {
  auto optimizer = MakeFreshOptimizer(setup, model);
  if (setup.start.checkpoint) {
    LoadOptimizerState(*setup.start.checkpoint, *optimizer,
                       WorkerStateOf(setup, "optimizer", rank));
  }
  return optimizer;
}

std::string WorkerStateOf(const RunSetup& setup, const std::string& kind, int64_t rank) {
  const int64_t saved = ReadTrainerState(*setup.start.checkpoint).workers;
  return WorkerFile(kind, WorkersOf(setup) > 0 && saved > 0 ? rank % saved : 0);
}

std::unique_ptr<optim::Optimizer> MakeFreshOptimizer(const RunSetup& setup, const Module& model) {
  return MakeOptimizer(setup.config.optim, model, setup.model.offload);
}

std::unique_ptr<optim::Optimizer> MakeOptimizer(const OptimOptions& o, const Module& model,
                                                const OffloadChoice& choice) {
  const auto with = [&](auto options) {  // what all have in common
    options.weight_decay = o.weight_decay;
    options.master_weights = o.master_weights;
    options.state_dtype = WeightDType(o.state_dtype);
    options.offload = {.to_host = choice.optimizer};
    options.ema = o.ema;
    return options;
  };
  const DecoupledDecay decay{.cautious = o.cautious_weight_decay,
                             .steps = o.weight_decay_schedule == "linear" ? o.decay_steps : 0};
  std::vector<optim::ParameterGroup> groups = GroupsOf(o, model);
  if (o.name == "sgd") {
    const bool nesterov = o.nesterov && o.momentum > 0;
    return std::make_unique<optim::Sgd>(
        std::move(groups), with(optim::SgdOptions{.momentum = o.momentum, .nesterov = nesterov}));
  }
  if (o.name == "lion") {
    return std::make_unique<optim::Lion>(
        std::move(groups), with(optim::LionOptions{.beta1 = o.beta1, .beta2 = o.beta2}));
  }
  if (o.name == "muon") {
    optim::MuonOptions options{
        .momentum = o.momentum,
        .nesterov = o.nesterov,
        .scale = o.muon_scale == "original" ? MuonScale::kSpectral : MuonScale::kMatchAdamW,
        .dtype = WeightDType(o.muon_dtype),
        .decay = decay,
        .beta1 = o.beta1,
        .beta2 = o.beta2,
        .eps = o.eps};
    options.matrix = [](const Parameter& p) { return KindOf(p) == Kind::kMatrix; };
    if (o.muon_split) options.segments = SegmentsIn(model);
    return std::make_unique<optim::Muon>(std::move(groups), with(options));
  }
  LS_INVARIANT(o.name == "adamw", "no optimizer ", o.name);
  return std::make_unique<optim::AdamW>(
      std::move(groups),
      with(optim::AdamWOptions{.beta1 = o.beta1, .beta2 = o.beta2, .eps = o.eps, .decay = decay}));
}

optim::LrSchedule MakeSchedule(const RunConfig& config) {
  const OptimOptions& o = config.optim;
  const bool open = config.train.is_open();  // the decay has not begun
  return optim::LrSchedule(
      {.decay = open ? optim::LrDecay::kConstant : optim::ParseLrDecay(o.schedule),
       .lr = o.lr,
       .min_lr = o.min_lr,
       .warmup = o.warmup,
       .decay_steps = o.decay_steps,
       .wsd_fraction = o.decay_fraction,
       .decay_start = o.decay_start});
}

std::optional<LossScaleOptions> LossScalingFor(const TrainOptions& train) {
  if (train.precision != "fp16") return {};
  return LossScaleOptions{.init = train.loss_scale, .growth_interval = train.loss_scale_every};
}

}  // namespace lockstep::models
