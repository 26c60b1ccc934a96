#include "models/train/pipeline_parallel.h"

#include <unordered_map>

#include "dist/groups/agreement.h"
#include "dist/pipeline/stage_cut.h"
#include "kernels/loss_scale/loss_scale.h"
#include "nn/kv_cache.h"

namespace lockstep::models {
namespace {

constexpr int64_t kTextLimit = 1024;  // of what a rank says of its stages

int SizeOf(const std::shared_ptr<dist::ProcessGroup>& group) { return group ? group->size() : 1; }
int RankOf(const std::shared_ptr<dist::ProcessGroup>& group) { return group ? group->rank() : 0; }

DType LossDType(const Tensor& weight) {
  return weight.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
}

Tensor ToTensor(const std::vector<int32_t>& values, const data::Batch& batch, Device device) {
  return Tensor::FromVector<int32_t>(values, {batch.rows, batch.cols}, device);
}

}  // namespace

dist::PipelineSchedule ScheduleOf(const PipelinePlan& plan, int pipeline_ranks, int data_ranks) {
  const int64_t all = std::max<int64_t>(plan.reducer.micro_batches, data_ranks);
  if (all % data_ranks != 0) {
    throw InputError(StrCat("a step of ", all, " micro-batches gives ", data_ranks,
                            " pipelines different numbers of them: use a multiple of ", data_ranks,
                            ", by train.grad_accum or train.global_batch_size"));
  }
  try {
    return dist::MakeSchedule(plan.kind, pipeline_ranks, static_cast<int>(all / data_ranks),
                              plan.chunks);
  } catch (const ArgumentError& e) {
    throw InputError(e.what());
  }
}

std::vector<int> PipelineParallel::RanksOf(const PipelinePlan& plan, int pipeline_ranks,
                                           int data_ranks, Gpt& gpt) {
  const dist::PipelineSchedule schedule = ScheduleOf(plan, pipeline_ranks, data_ranks);
  const std::vector<int64_t> cut = CutIntoStages(gpt, plan.window, schedule.stages());
  gpt.AssignNames();
  std::unordered_map<const Parameter*, int> stage_of;
  for (int s = 0; s < schedule.stages(); ++s) {
    const GptStage stage(gpt, cut[s], cut[s + 1]);
    for (const auto& [name, p] : stage.NamedParameters()) {
      const auto [known, is_new] = stage_of.emplace(p.get(), s);
      if (is_new) continue;
      throw InputError(StrCat("the weight '", p->name(), "' is in stage ", known->second,
                              " of the pipeline and in stage ", s,
                              ": weights that several stages share are not supported yet, so use "
                              "model.tie_embeddings = false, or parallel.pp = 1"));
    }
  }
  std::vector<int> rank_of;
  for (const auto& p : gpt.Parameters()) rank_of.push_back(schedule.rank_of[stage_of.at(p.get())]);
  return rank_of;
}

void PipelineParallel::Place(const PipelineRanks& ranks, const PipelinePlan& plan,
                             PipelinedGpt& gpt) {
  const std::vector<int> rank_of =
      RanksOf(plan, SizeOf(ranks.pipeline), ranks.data ? ranks.data->size() : 1, gpt);
  if (ranks.pipeline) dist::PlaceParameters(ranks.pipeline, gpt.Parameters(), rank_of);
}

PipelineParallel::Stage::Stage(Gpt& gpt, int64_t begin, int64_t end, dist::ProcessGroup* data_ranks,
                               const std::string& name, const dist::ReducerOptions& options)
    : model(gpt, begin, end),
      // The stages' sums may run at the same time.
      group(data_ranks ? data_ranks->Duplicate(StrCat(data_ranks->name(), ".", name)) : nullptr),
      data(group.get(), model, options) {
  dist::StopObserving(&data.reducer(), model.Parameters());
}

PipelineParallel::PipelineParallel(const PipelineRanks& ranks, const PipelinePlan& plan,
                                   PipelinedGpt& gpt)
    : DataRanks(ranks.data, ranks.control), ranks_(ranks), gpt_(gpt), on_span_(plan.on_span) {
  const dist::PipelineSchedule schedule = ScheduleOf(plan, SizeOf(ranks.pipeline), size());
  const std::vector<int64_t> cut = CutIntoStages(gpt, plan.window, schedule.stages());
  std::vector<dist::PipelineStage> functions;
  for (const int s : schedule.StagesOf(RankOf(ranks.pipeline))) {
    stages_.push_back(std::make_unique<Stage>(gpt, cut[s], cut[s + 1], ranks.data,
                                              StrCat("stage_", s), plan.reducer));
    functions.push_back(FunctionsOf(*stages_.back()));
  }
  for (const auto& p : gpt.Parameters()) {
    if (p->layout().range && p->trainable()) elsewhere_.push_back(p);
  }
  pipeline_.emplace(ranks.pipeline.get(), schedule, std::move(functions),
                    dist::PipelineOptions{.on_span = on_span_});
  gpt.through_ = [this](const Tensor& ids, const Tensor& targets) { return Through(ids, targets); };
}

PipelineParallel::~PipelineParallel() {
  gpt_.through_ = nullptr;
  LeaveControl();
}

dist::PipelineStage PipelineParallel::FunctionsOf(Stage& stage) {
  const std::vector<int64_t>& order = stage.data.micro_order();
  dist::PipelineStage functions;
  functions.forward = [this, &stage, &order](const Tensor& input, int micro) {
    if (work_.state) work_.state->SetFirstSample(order[micro] * work_.rows);
    const Tensor out = stage.model.Forward(input, work_.ids[micro], work_.targets[micro]);
    if (stage.model.last()) work_.results.push_back(out.Detach());
    return out;
  };
  const auto root = [this](int) {
    const Tensor weight = gpt_.Parameters()[0]->value();
    return ops::ScaleRoot(Tensor::Full({}, work_.root, LossDType(weight), weight.device()),
                          *work_.state);
  };
  if (stage.model.last()) {
    functions.output_gradient = [root](const Tensor&, int micro) { return root(micro); };
  } else {
    functions.output_gradient = [](const Tensor& received, int) { return received; };
    // Also tells the state that this rank's gradients are scaled.
    functions.root_gradient = root;
  }
  functions.gradients = &stage.data.reducer();
  functions.before_gradients = [&stage, &order](int micro) {
    stage.data.BeginMicroBatch(micro + 1 == std::ssize(order));
  };
  return functions;
}

dist::PipelineBoundary PipelineParallel::BoundaryOf(int64_t rows, int64_t cols) const {
  return {{rows, cols, gpt_.config().n_embd}, gpt_.Parameters()[0]->value().dtype()};
}

std::vector<HostRead> PipelineParallel::Gradients(std::span<const data::Batch> batches, double root,
                                                  const StepState& state,
                                                  std::span<BackwardObserver* const> observers) {
  LS_CHECK(batches.size() == micro_order().size(), "a step of the pipeline has ",
           micro_order().size(), " micro-batches, got ", batches.size());
  work_ = {.rows = batches[0].rows, .root = root};
  work_.state.emplace(state);
  for (const data::Batch& batch : batches) {
    work_.ids.push_back(ToTensor(batch.inputs, batch, state.device()));
    work_.targets.push_back(ToTensor(batch.targets, batch, state.device()));
  }
  pipeline_->set_options({.on_span = on_span_, .observers = {observers.begin(), observers.end()}});
  pipeline_->Step(BoundaryOf(batches[0].rows, batches[0].cols));
  for (const auto& p : elsewhere_) {
    p->leaf().SetGrad(Tensor::Empty({0}, LossDType(p->value()), p->device()));
  }
  times_ = {};
  for (const auto& stage : stages_) {
    times_.communication_ms += stage->data.times().communication_ms;
    times_.overlapped_ms += stage->data.times().overlapped_ms;
    times_.exposed_ms += stage->data.times().exposed_ms;
  }
  std::vector<HostRead> losses;
  for (const Tensor& loss : work_.results) losses.emplace_back(loss);
  work_ = {};
  return losses;
}

// One micro-batch, of evaluation or of generating text.
Tensor PipelineParallel::Through(const Tensor& ids, const Tensor& targets) {
  LS_CHECK(!GradEnabled(),
           "a forward through a pipeline records no graph: write NoGrad around it, "
           "or train by PipelineParallel::Gradients");
  work_ = {.ids = {ids}, .targets = {targets}, .state = {}, .results = {}};
  pipeline_->set_options({});
  pipeline_->Forward(BoundaryOf(ids.dim(0), ids.dim(1)), 1);
  const Tensor weight = gpt_.Parameters()[0]->value();
  Tensor result;
  if (has_losses()) {
    result = work_.results.at(0);
  } else if (targets.defined()) {
    result = Tensor::Zeros({}, LossDType(weight), weight.device());
  }
  work_ = {};
  if (targets.defined() || !ranks_.pipeline) return result;
  if (!result.defined()) {
    const int64_t positions = nn::KvCacheScope::Current() != nullptr ? 1 : ids.dim(1);
    result = Tensor::Empty({ids.dim(0), positions, gpt_.config().vocab_size}, weight.dtype(),
                           weight.device());
  }
  result = result.Contiguous();
  ranks_.pipeline->Broadcast(result, schedule().rank_of.back(), "logits")->Wait();
  return result;
}

void PipelineParallel::CheckWeights(const std::string& when) {
  for (const auto& stage : stages_) stage->data.CheckWeights(when);
}

std::string PipelineParallel::LocateNonFinite(int64_t ago) {
  std::string text;
  for (const auto& stage : stages_) {
    const std::string of_stage = stage->data.LocateNonFinite(ago);
    if (!of_stage.empty()) text += (text.empty() ? "" : ", ") + of_stage;
  }
  if (!ranks_.control) return text;
  std::string all;
  for (const std::string& of_rank : dist::GatherTexts(*ranks_.control, text, kTextLimit)) {
    if (!of_rank.empty() && all.find(of_rank) == std::string::npos) {
      all += (all.empty() ? "" : ", ") + of_rank;
    }
  }
  return all;
}

}  // namespace lockstep::models
