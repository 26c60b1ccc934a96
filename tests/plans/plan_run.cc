#include "tests/plans/plan_run.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "dist/mesh.h"
#include "models/train/parallelize.h"
#include "models/train/run_model.h"
#include "models/train/run_ranks.h"
#include "models/train/run_setup.h"
#include "nn/init.h"
#include "nn/lora/quantized_linear.h"
#include "nn/precision.h"
#include "tests/dist/gpu_ranks.h"
#include "tests/dist/in_process.h"
#include "tests/models/training.h"

namespace lockstep::models {
namespace {

// The sign of a NaN, such as the norm of a step that is skipped, says nothing.
bool SameBits(const std::vector<double>& a, const std::vector<double>& b, size_t i) {
  if (i >= b.size()) return false;
  if (std::isnan(a[i]) && std::isnan(b[i])) return true;
  return std::bit_cast<uint64_t>(a[i]) == std::bit_cast<uint64_t>(b[i]);
}

bool SameBits(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  const Tensor x = a.Contiguous(), y = b.Contiguous();
  return std::memcmp(x.raw_data(), y.raw_data(), static_cast<size_t>(x.bytes())) == 0;
}

std::map<std::string, Tensor> ByName(const NamedTensors& tensors) {
  return {tensors.begin(), tensors.end()};
}

GptConfig ModelOf(const Task& task, const Plan& plan) {
  GptConfig model = task.model;
  model.recompute = plan.recompute;
  model.offload = plan.offload;
  return model;
}

void Fill(Gpt& model, Device device, DType dtype, uint64_t seed) {
  nn::Materialize(model, device, seed, {.compute = dtype});
}

Task Settled(Task task, const Plan& plan) {
  if (task.fast) task.virtual_tp = plan.tp, task.virtual_cp = plan.cp;
  return task;
}

// As options of train_gpt, but for how a shard is kept (Plan::options).
RunConfig ConfigOf(const Task& task, const Plan& plan) {
  RunConfig config;
  config.parallel = {.tp = plan.tp,
                     .virtual_tp = task.virtual_tp,
                     .cp = plan.cp,
                     .virtual_cp = task.virtual_cp,
                     .pp = std::max<int64_t>(plan.pp, 1),
                     .schedule = std::string(dist::Name(plan.schedule)),
                     .ep = plan.ep,
                     .shard = plan.is_sharded() ? "full" : "none",
                     .shard_ranks = plan.is_sharded() ? plan.shards : 0};
  config.dist.reduction = task.fast ? "fast" : "ordered";
  return config;
}

dist::Mesh MeshOf(const dist::ProcessGroup& all, const Task& task, const Plan& plan) {
  LS_CHECK(all.size() == plan.ranks(), all.size(), " ranks instead of ", plan.ranks());
  return MeshOf(ConfigOf(task, plan), all.rank(), all.size());
}

MeshGroups GroupsOf(dist::ProcessGroup& all, const dist::Mesh& mesh, bool sums_context,
                    std::shared_ptr<dist::ProcessGroup> of_errors) {
  const auto make = [&](const std::vector<std::string>& axes, bool on_host) {
    return all.Split((on_host ? "control." : "") + mesh.GroupName(axes), mesh.RanksAlong(axes));
  };
  MeshGroups groups = MeshGroups::Of(mesh, make, sums_context);
  groups.all = std::move(of_errors);
  return groups;
}

// As train_gpt makes it, but for what it never has: pipelines and shards of one rank, a reducer
// where nothing is to be summed, and any ShardOptions.
ParallelPlan ToParallelPlan(const Task& task, const Plan& plan) {
  RunSetup setup;
  setup.config = ConfigOf(task, plan);
  setup.data_ranks = plan.shards * plan.copies;
  setup.micro_batches = task.micro_batches;
  setup.config.model.block_size = task.model.block_size;
  ParallelPlan p = PlanOf(setup);
  if (plan.pp == 1) {
    p.pipeline = ToPipelinePlan(setup.config, setup.window(), nullptr);
    p.sums_context_with_data = false;
  }
  if (!plan.is_sharded()) {
    if (!p.reducer) p.reducer = ToReducerOptions(setup.config.dist, setup.micro_batches, nullptr);
    return p;
  }
  const dist::ShardOptions made = ToShardOptions(setup.config, setup.micro_batches, nullptr);
  p.reducer.reset();
  p.shard = plan.options;
  if (task.fast) p.shard->sum = made.sum;
  p.shard->experts = made.experts;
  if (plan.pp > 0) p.shard->reshard = dist::Reshard::kAfterStep;
  return p;
}

void Load(Gpt& model, const Outcome& from) {
  for (const auto& [name, p] : model.NamedParameters()) {
    if (nn::IsQuantizedWeight(name)) continue;  // which never changes, and each plan cuts otherwise
    Tensor value = p->value().Detach();
    value.CopyFrom(p->PartOf(from.weights.at(name)));
  }
  for (const auto& [name, buffer] : model.NamedBuffers()) {
    buffer.CopyFrom(from.weights.at(name));
  }
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Task& t) {
  const GptConfig& m = t.model;
  return out << m.n_layer << " layers of width " << m.n_embd << ", vocabulary " << m.vocab_size
             << (m.mixture.n_expert > 0
                     ? StrCat(", ", m.mixture.n_expert_used, " of ", m.mixture.n_expert,
                              " experts, router ", RouterName(m.mixture.router))
                     : "")
             << (m.tie_embeddings ? ", tied" : "") << (m.bias ? ", biases" : "") << ", "
             << Name(m.norm) << ", " << Name(m.activation) << ", " << Name(m.position)
             << (m.head_dim > 0 ? ", wide heads" : "")
             << (m.qk_norm != nn::QkNorm::kNone ? ", normed heads" : "")
             << (m.norm_weight ? "" : ", norms without weights")
             << (m.embed_norm ? ", normed embedding" : "")
             << (m.value_embed ? ", embedded values" : "")
             << (m.embed_mix ? ", mixed with its start" : "") << (m.init_zero ? ", zeros" : "")
             << ", dropout " << m.dropout << ", " << t.dtype << ", " << t.optim.name
             << (t.optim.master_weights ? "" : " without originals") << ", state "
             << t.optim.state_dtype << ", clip " << t.optim.clip << ", rates " << t.optim.matrix_lr
             << " " << t.optim.embedding_lr << " " << t.optim.unembedding_lr << " "
             << t.optim.scalar_lr << (t.optim.muon_split ? ", split" : "") << ", "
             << (t.optim.cautious_weight_decay ? "cautious " : "") << t.optim.weight_decay_schedule
             << " decay" << (t.optim.decay_embeddings ? "" : " of blocks") << ", "
             << t.micro_batches << " micro-batches, virtual.tp " << t.virtual_tp << ", virtual.cp "
             << t.virtual_cp
             << (m.lora.rank > 0
                     ? StrCat(", adapters of rank ", m.lora.rank, " of ", m.lora.targets,
                              ", which drop ", m.lora.dropout, " of a base in ", m.lora.base)
                     : "")
             << (t.document_mask ? ", document masks" : "") << (t.fast ? ", fast" : "");
}

std::ostream& operator<<(std::ostream& out, const Plan& p) {
  out << p.shards << " shards of " << p.copies << " copies";
  if (p.tp > 1) out << ", tp " << p.tp;
  if (p.ep > 1) out << ", ep " << p.ep;
  if (p.cp > 1) out << ", cp " << p.cp;
  if (p.pp > 0) out << ", pipelines of " << p.pp << " by " << dist::Name(p.schedule);
  if (!p.is_sharded()) {
    out << ", data parallel";
  } else {
    out << ", reshard " << static_cast<int>(p.options.reshard) << ", accumulate "
        << static_cast<int>(p.options.accumulate) << (p.in_memory ? ", in memory" : "");
  }
  return out << ", recomputes " << Describe(p.recompute, 100) << ", offloads "
             << Describe(p.offload);
}

Task LlamaLike(Task task) {
  task.model.bias = false;
  task.model.norm = NormKind::kRmsNorm;
  task.model.activation = nn::MlpActivation::kSwiGlu;
  task.model.position = Position::kRope;
  return task;
}

Task GemmaLike(Task task) {
  GptConfig& m = task.model;
  m.qkv_bias = true;
  m.qk_norm = nn::QkNorm::kHead;
  m.attn_scale = 0.4;
  m.attn_softcap = 0.5;
  m.window = 3;
  m.window_pattern = 2;
  m.norm_offset = 1;
  m.norm_place = nn::NormPlace::kSandwich;
  m.activation = nn::MlpActivation::kGegluTanh;
  m.rope_local_theta = 50;
  m.rope_skip = 3;
  m.embed_scale = 5;
  m.logit_softcap = 0.7;
  return task;
}

Task OlmoLike(Task task) {
  task.model.qk_norm = nn::QkNorm::kFull;
  task.model.norm_place = nn::NormPlace::kPost;
  return task;
}

Task ModernLike(Task task) {
  GptConfig& m = task.model;
  m.norm = NormKind::kRmsNorm;
  m.norm_weight = false;
  m.qk_norm = nn::QkNorm::kHead;
  m.activation = nn::MlpActivation::kRelu2;
  m.embed_norm = true;
  m.embed_mix = true;
  m.value_embed = true;
  return task;
}

Plan ByShards(Plan plan, const dist::ShardOptions& options) {
  plan.options = options;
  plan.options.sum = dist::GradientSum::kOrdered;
  return plan;
}

std::string Difference(const Outcome& a, const Outcome& b) {
  const auto in_list = [](const auto& x, const auto& y) -> std::optional<size_t> {
    for (size_t i = 0; i < std::max(x.size(), y.size()); ++i) {
      if (i >= x.size() || !SameBits(x, y, i)) return i;
    }
    return {};
  };
  const auto in_map = [](const auto& x, const auto& y) -> std::string {
    for (const auto& [name, tensor] : x) {
      if (!y.contains(name) || !SameBits(tensor, y.at(name))) return name;
    }
    return x.size() == y.size() ? "" : "names";
  };
  if (const auto step = in_list(a.losses, b.losses)) return StrCat("the loss of step ", *step);
  if (const auto step = in_list(a.norms, b.norms)) return StrCat("the norm of step ", *step);
  if (in_list(a.loads, b.loads)) return "the loads of experts";
  if (!SameBits({a.val_loss}, {b.val_loss}, 0)) return "the validation loss";
  if (!SameBits({a.val_loss_ema}, {b.val_loss_ema}, 0)) return "the averages' validation loss";
  const std::string weight = in_map(a.weights, b.weights);
  if (!weight.empty()) return StrCat("the weight '", weight, "'");
  const std::string state = in_map(ByName(a.state), ByName(b.state));
  if (!state.empty()) return StrCat("the state '", state, "'");
  return a.loss_scale == b.loss_scale ? "" : "the loss scale";
}

PlanRun::PlanRun(dist::ProcessGroup& all, const Task& task, const Plan& plan, const Outcome* from)
    : task_(Settled(task, plan)),
      all_(all.Duplicate("errors")),
      parallel_plan_(ToParallelPlan(task_, plan)),
      groups_(GroupsOf(all, MeshOf(all, task_, plan), parallel_plan_.sums_context_with_data, all_)),
      model_(ModelOf(task, plan)),
      tokens_(std::make_shared<data::SeparatedTokens>(Tokens(400), 9, data::Separator::kFirst)) {
  // All begin with the weights of the first ranks that have them.
  const bool is_first = MeshOf(all, task_, plan).coordinate("dp") < plan.data_ranks_of_experts();
  ranks_ = Parallelize(model_, groups_, parallel_plan_, [&](bool on_meta) {
    // Alone, FullyShard knows its device by the parameters.
    const bool in_memory = plan.is_sharded() && (plan.in_memory || !groups_.data);
    if (plan.ep > 1 && !plan.is_sharded()) {
      Fill(model_, all.device(), task.dtype, is_first ? 4 : 5);
    } else if (!in_memory) {
      Fill(model_, on_meta ? kMeta : all.device(), task.dtype, 4);
    } else if (on_meta) {
      Fill(model_, all.device(), task.dtype, is_first ? 4 : 5);
    }
  });
  QuantizeWeights(model_);
  if (from != nullptr) {
    outcome_ = *from;
    Load(model_, *from);
  }
  optimizer_ = MakeOptimizer(task.optim, model_, plan.offload);
  if (from != nullptr) optimizer_->LoadState(from->state);
  const auto step = static_cast<int64_t>(outcome_.losses.size());
  const data::Sampler sampler(data::Order::kShuffled, 3, tokens_->size(), task.model.block_size);
  loader_ =
      std::make_unique<data::Loader>(tokens_, sampler,
                                     data::BatchLayout{.batch_size = 2,
                                                       .micro_batches = task.micro_batches,
                                                       .micro_order = parallel().micro_order(),
                                                       .document_mask = task.document_mask},
                                     step);
  // The scale begins too large, and grows beyond what fits again.
  std::optional<LossScaleOptions> scaling;
  if (task.dtype == DType::kF16) scaling = {.init = 0x1p22, .growth_interval = 2};
  trainer_ = std::make_unique<Trainer>(model_, *optimizer_, SmallSchedule(), *loader_,
                                       TrainerOptions{.first_step = step,
                                                      .micro_batches = task.micro_batches,
                                                      .clip = task.optim.clip,
                                                      .seed = 9,
                                                      .ranks = ranks_.get(),
                                                      .check_every = 2,
                                                      .loss_scaling = scaling,
                                                      .loss_scale = outcome_.loss_scale});
}

double PlanRun::Evaluate() {
  return trainer_->Evaluate(
      data::EvalBatches(tokens_, task_.model.block_size, 3, 2, task_.document_mask));
}

void PlanRun::Train(int steps) {
  outcome_.losses.reserve(outcome_.losses.size() + steps);
  outcome_.norms.reserve(outcome_.norms.size() + steps);
  outcome_.loads.reserve(outcome_.loads.size() + 2 * steps);
  for (int i = 0; i < steps; ++i) {
    if (std::ssize(outcome_.losses) == task_.steps / 2) {
      outcome_.val_loss = Evaluate();
      if (task_.optim.ema > 0) {
        optimizer_->WithAverages([&] { outcome_.val_loss_ema = Evaluate(); });
      }
    }
    const StepMetrics m = trainer_->Step();
    CheckReplicas(model_, groups_, parallel_plan_, StrCat("after step ", trainer_->step()));
    outcome_.losses.push_back(m.loss);
    outcome_.norms.push_back(m.grad_norm);
    outcome_.loads.insert(outcome_.loads.end(), {m.expert_most, m.expert_least});
  }
}

Outcome PlanRun::Finish() {
  outcome_.weights.clear();
  outcome_.state.clear();
  for (const auto& [name, p] : model_.NamedParameters()) {
    if (nn::IsQuantizedWeight(name)) continue;
    outcome_.weights[name] = p->WholeOf(p->value().Detach()).To(kCpu).Clone();
  }
  for (const auto& [name, buffer] : model_.NamedBuffers()) {
    outcome_.weights[name] = buffer.To(kCpu).Clone();
  }
  optimizer_->ForEachState([&](const std::string& name, const Parameter& p, const Tensor& part) {
    outcome_.state.emplace_back(name, p.WholeOf(part).To(kCpu).Clone());
  });
  outcome_.loss_scale = trainer_->loss_scale();
  return outcome_;
}

void QuantizeWeights(Gpt& model) {
  for (const auto& [path, layer] : nn::QuantizedLayers(model)) {
    for (size_t i = 0; i < layer->num_matrices(); ++i) {
      Parameter weight(layer->shape(i), nn::Normal(0, 0.1), /*decay=*/false);
      weight.set_name(StrCat(path, i));
      weight.Materialize(kCpu, DType::kF32, /*seed=*/4);
      layer->SetMatrix(i, ops::Nf4Quantize(weight.value().Detach(), layer->double_quantized()));
    }
  }
}

Outcome TrainBy(const Task& task, const Plan& plan, int steps, const Outcome* from, bool on_gpus) {
  std::vector<Outcome> outcomes(static_cast<size_t>(plan.ranks()));
  const auto body = [&](dist::ProcessGroup& all) {
    PlanRun run(all, task, plan, from);
    run.Train(steps);
    outcomes[static_cast<size_t>(all.rank())] = run.Finish();
  };
  on_gpus ? dist::RunOnGpus(plan.ranks(), body) : dist::RunInProcess(plan.ranks(), body);
  for (const Outcome& other : outcomes) EXPECT_EQ(Difference(other, outcomes[0]), "");
  return outcomes[0];
}

Outcome TrainAlone(const Task& task, bool on_gpu) {
  return TrainBy(task, {.data_parallel = true}, task.steps, nullptr, on_gpu);
}

void ExpectSameBits(const Task& task, const std::vector<Plan>& plans, bool on_gpus) {
  const Outcome alone = TrainAlone(task, on_gpus);
  EXPECT_LT(task.optim.clip, alone.norms.back());  // the first may be skipped by a loss scale
  const char* const half = std::getenv("PLAN_HALF");
  const size_t stride = half != nullptr && plans.size() > 1 ? 2 : 1;
  for (size_t i = stride == 2 ? std::strtoul(half, nullptr, 10) % 2 : 0; i < plans.size();
       i += stride) {
    EXPECT_EQ(Difference(TrainBy(task, plans[i], task.steps, nullptr, on_gpus), alone), "")
        << task << "; " << plans[i];
  }
}

}  // namespace lockstep::models
