#include "models/train/pipeline_parallel.h"

#include <unordered_map>

#include "dist/groups/agreement.h"
#include "dist/pipeline/stage_cut.h"
#include "kernels/loss_scale/loss_scale.h"
#include "models/train/step/batch_tensor.h"
#include "nn/kv_cache.h"

namespace lockstep::models {
namespace {

// Whether the stage's module reads the parameter as one that is another's.
bool ReadsTied(Module& stage, const Parameter& parameter) {
  for (const auto& [path, module] : stage.NamedModules()) {
    const auto* reader = dynamic_cast<const nn::ReadsTiedWeight*>(module);
    if (reader != nullptr && reader->tied() && reader->tied()->weight().get() == &parameter) {
      return true;
    }
  }
  return false;
}

}  // namespace

dist::PipelineSchedule ScheduleOf(const PipelinePlan& plan, int64_t micro_batches,
                                  int pipeline_ranks, int data_ranks) {
  const int64_t all = std::max<int64_t>(micro_batches, data_ranks);
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

std::vector<int> PipelineParallel::RanksOf(const ParallelPlan& plan, int pipeline_ranks,
                                           int data_ranks, Gpt& gpt, std::vector<int>* copies) {
  const dist::PipelineSchedule schedule =
      ScheduleOf(*plan.pipeline, plan.micro_batches, pipeline_ranks, data_ranks);
  const std::vector<int64_t> cut = CutIntoStages(gpt, plan.pipeline->window, schedule.stages());
  gpt.AssignNames();
  std::unordered_map<const Parameter*, int> stage_of, copy_of;
  for (int s = 0; s < schedule.stages(); ++s) {
    GptStage stage(gpt, cut[s], cut[s + 1], /*tensor=*/nullptr);
    for (const auto& [name, p] : stage.NamedParameters()) {
      const auto [known, is_new] = stage_of.emplace(p.get(), s);
      if (is_new) continue;
      if (ReadsTied(stage, *p) && copy_of.emplace(p.get(), s).second) continue;
      throw InputError(StrCat("the weight '", p->name(), "' is in stage ", known->second,
                              " of the pipeline and in stage ", s,
                              ": only the output head may share a weight of another stage "
                              "(nn::TiedWeight), so give each stage its own, or use "
                              "parallel.pp = 1"));
    }
  }
  std::vector<int> rank_of;
  if (copies) copies->clear();
  for (const auto& p : gpt.Parameters()) {
    rank_of.push_back(schedule.rank_of[stage_of.at(p.get())]);
    const auto copy = copy_of.find(p.get());
    if (copies) copies->push_back(copy == copy_of.end() ? -1 : schedule.rank_of[copy->second]);
  }
  return rank_of;
}

// A sharded stage keeps its gathered weights for the step.
void PipelineParallel::CheckOffload(dist::PipelineKind kind, bool is_sharded,
                                    const GptConfig& config) {
  using enum dist::PipelineKind;
  const bool later = kind == kZeroBubbleH1 || kind == kZeroBubbleV;
  if (!config.offload.weights || !later || is_sharded) return;
  throw InputError(StrCat(
      "parallel.schedule = \"", dist::Name(kind),
      "\" makes weight gradients when a block's weights are in the host's memory again: leave "
      "weights out of train.offload, or use parallel.schedule = \"1f1b\" or "
      "\"interleaved\", or parallel.shard"));
}

void PipelineParallel::Place(const MeshGroups& groups, const ParallelPlan& plan, Gpt& gpt) {
  std::vector<int> copy_of;
  const std::vector<int> rank_of =
      RanksOf(plan, SizeOf(groups.pipeline.get()), SizeOf(groups.data.get()), gpt, &copy_of);
  dist::PlaceParameters(groups.pipeline, gpt.Parameters(), rank_of, copy_of);
}

PipelineParallel::Stage::Stage(Gpt& gpt, int64_t begin, int64_t end,
                               const dist::TensorRanksPtr& tensor, const MeshGroups& of_rank,
                               const std::string& name, const ParallelPlan& plan,
                               const dist::TiedGradients& tied)
    : model(gpt, begin, end, tensor) {
  // The stages' sums may run at the same time.
  const auto own = [&](const std::shared_ptr<dist::ProcessGroup>& group) {
    return group ? group->Duplicate(StrCat(group->name(), ".", name)) : nullptr;
  };
  groups = {.data = own(of_rank.data)};
  groups.shard = own(of_rank.shard);
  groups.replicate = own(of_rank.replicate);
  groups.experts = of_rank.experts;  // only forwards and backwards use it, one at a time
  groups.data_ranks_of_experts = of_rank.data_ranks_of_experts;
  // Ranks of other samples, unless the experts are split only across ranks that compute the same
  // sequences.
  if (groups.data_ranks_of_experts > 1) groups.expert_copies = own(of_rank.expert_copies);
  data = MakeDataRanks(groups, plan, model, &tied);
}

PipelineParallel::PipelineParallel(const MeshGroups& groups, const ParallelPlan& plan, Gpt& gpt,
                                   dist::TensorRanksPtr tensor)
    : DataRanks(groups.data.get(), groups.control),
      StepRanks(groups.context, groups.all),
      groups_(groups),
      tensor_(tensor ? std::move(tensor) : std::make_shared<dist::TensorRanks>(nullptr, 1)),
      gpt_(gpt),
      options_{.on_span = plan.pipeline->on_span},
      tied_(gpt) {
  const int pipeline_ranks = SizeOf(groups.pipeline.get());
  const dist::PipelineSchedule schedule =
      ScheduleOf(*plan.pipeline, plan.micro_batches, pipeline_ranks, size());
  const std::vector<int64_t> cut = CutIntoStages(gpt, plan.pipeline->window, schedule.stages());
  // Again: layers that were replaced since Place may not know of tied weights.
  RanksOf(plan, pipeline_ranks, size(), gpt);
  CheckOffload(plan.pipeline->kind, plan.shard.has_value(), gpt.config());
  std::vector<dist::PipelineStage> functions;
  for (const int s : schedule.StagesOf(RankIn(groups.pipeline.get()))) {
    stages_.push_back(std::make_unique<Stage>(gpt, cut[s], cut[s + 1], tensor_, groups,
                                              StrCat("stage_", s), plan, tied_));
    functions.push_back(FunctionsOf(*stages_.back()));
  }
  for (const auto& p : gpt.Parameters()) {
    const bool is_here = !p->exchange() || p->exchange()->Holds(*p);
    if (!is_here && p->trainable()) elsewhere_.push_back(p);
  }
  pipeline_.emplace(groups.pipeline.get(), schedule, std::move(functions), options_);
  MeetTied();
  gpt.SetRanks({.stream = [this](const Tensor& ids) { return Stream(ids); },
                .forward = [this](const Tensor& ids,
                                  const Tensor& targets) { return Through(ids, targets); }});
}

// Collective: the two ranks that have a tied weight find each other, and begin with the same if it
// has memory.
void PipelineParallel::MeetTied() {
  const int first = schedule()->rank_of.front(), last = schedule()->rank_of.back();
  if (tied_.uses().empty() || first == last) return;
  const int rank = groups_.pipeline->rank();
  const bool has = rank == first || rank == last;
  const auto group = groups_.pipeline->Split(
      StrCat(groups_.pipeline->name(), ".tied"),
      has ? std::vector{std::min(first, last), std::max(first, last)} : std::vector{rank});
  if (!has) return;
  tie_ = group;
  for (const auto& use : tied_.uses()) {
    const Tensor weight = use->weight()->value().Detach();
    if (weight.device().is_meta()) continue;
    dist::BroadcastTensors(*tie_, std::span(&weight, 1), /*root=*/first < last ? 0 : 1);
  }
}

// The gradients of both uses of a tied weight, which are summed over the micro-batches and the data
// ranks by now, on both of its ranks: a sum of two has the same bits in either order.
void PipelineParallel::AddTied() {
  if (schedule()->rank_of.front() == schedule()->rank_of.back()) return tied_.Add();
  if (!tie_) return;
  for (const auto& use : tied_.uses()) {
    Leaf& leaf = use->weight()->leaf();
    const bool embeds = leaf.grad().defined();
    const Tensor sum = embeds ? leaf.grad() : use->gradient_holder()->grad();
    // Both ranks have the same part of it, perhaps none.
    if (sum.numel() > 0) {
      tie_->AllReduce(sum, dist::ReduceOp::kSum, StrCat("the gradient of ", use->weight()->name()))
          ->Wait();
    }
    if (!embeds) leaf.ShareGrad(sum);
  }
  tied_.Clear();
  if (tie_->device().is_cuda()) tie_->CheckInStep();
}

PipelineParallel::~PipelineParallel() {
  gpt_.SetRanks({});
  LeaveControl();
}

dist::PipelineStage PipelineParallel::FunctionsOf(Stage& stage) {
  const std::vector<int64_t>& order = stage.data->micro_order();
  dist::PipelineStage functions;
  functions.forward = [this, &stage, &order](const Tensor& input, int micro) {
    if (work_.state) work_.state->SetFirstSample(order[micro] * work_.rows);
    const nn::DocumentScope documents(work_.documents.empty() ? nn::CurrentDocuments()
                                                              : work_.documents[micro]);
    if (stage.model.last() && !work_.state) {
      work_.stream = stage.model.Stream(input, work_.ids[micro]);
      return Tensor();
    }
    const Tensor out =
        stage.model.Forward(input, work_.ids[micro], work_.state ? work_.targets[micro] : Tensor());
    if (stage.model.last()) work_.results.push_back(out.Detach());
    return out;
  };
  const auto root = [this](int) {
    const Tensor weight = gpt_.Parameters()[0]->value();
    return ops::ScaleRoot(
        Tensor::Full({}, work_.root, AccumulationDType(weight.dtype()), weight.device()),
        *work_.state);
  };
  if (stage.model.last()) {
    functions.output_gradient = [root](const Tensor&, int micro) { return root(micro); };
  } else {
    functions.output_gradient = [](const Tensor& received, int) { return received; };
    // Also tells the state that this rank's gradients are scaled.
    functions.root_gradient = root;
  }
  functions.gradients = stage.data->ObserveOnlyGiven();
  functions.before_gradients = [&stage, &order](int micro) {
    stage.data->BeginMicroBatch(micro + 1 == std::ssize(order));
  };
  return functions;
}

dist::PipelineBoundary PipelineParallel::BoundaryOf(int64_t rows, int64_t cols) const {
  const DType dtype = gpt_.Parameters()[0]->value().dtype();
  const int64_t tensors = gpt_.config().embed_mix ? 2 : 1;
  const Shape whole = {tensors * rows, cols, gpt_.config().n_embd};
  return {GradEnabled() ? tensor_->PartShape(whole) : whole, dtype};
}

std::vector<HostRead> PipelineParallel::Gradients(std::span<const data::Batch> batches, double root,
                                                  const StepState& state,
                                                  std::span<BackwardObserver* const> observers) {
  LS_CHECK(batches.size() == micro_order().size(), "a step of the pipeline has ",
           micro_order().size(), " micro-batches, got ", batches.size());
  tied_.Clear();  // of a step that failed
  work_ = {.rows = batches[0].rows, .root = root};
  work_.state.emplace(state);
  for (const data::Batch& batch : batches) {
    work_.ids.push_back(ToTensor(batch.inputs, batch, state.device()));
    work_.targets.push_back(ToTensor(batch.targets, batch, state.device()));
    work_.documents.push_back(DocumentsOf(batch, state.device()));
  }
  dist::PipelineOptions options = options_;
  options.observers = {observers.begin(), observers.end()};
  pipeline_->set_options(options);
  pipeline_->Step(BoundaryOf(batches[0].rows, batches[0].cols));
  AddTied();
  for (const auto& p : elsewhere_) {
    p->leaf().SetGrad(Tensor::Empty({0}, AccumulationDType(p->value().dtype()), p->device()));
  }
  times_ = {};
  for (const auto& stage : stages_) {
    times_.communication_ms += stage->data->times().communication_ms;
    times_.overlapped_ms += stage->data->times().overlapped_ms;
    times_.exposed_ms += stage->data->times().exposed_ms;
    times_.receiving_ms += stage->data->times().receiving_ms;
    times_.arrival_ms = std::max(times_.arrival_ms, stage->data->times().arrival_ms);
  }
  std::vector<HostRead> losses;
  for (const Tensor& loss : work_.results) {
    if (!loss.device().is_meta()) losses.emplace_back(loss);
  }
  work_ = {};
  return losses;
}

std::vector<HostRead> PipelineParallel::Gradients(StepWork& work) {
  std::vector<data::Batch> batches;
  for (const int64_t m : micro_order()) batches.push_back(work.Next(m));
  work.clock().Enter(&StepTimes::backward_ms);  // and forward, in turn
  return Gradients(batches, work.root(), work.state(), work.observers());
}

// One micro-batch, of evaluation or of generating text.
nn::ResidualStream PipelineParallel::Stream(const Tensor& ids) {
  LS_CHECK(!GradEnabled(),
           "a forward through a pipeline records no graph: write NoGrad around it, "
           "or train by PipelineParallel::Gradients");
  work_ = {.ids = {ids}};
  pipeline_->set_options({});
  pipeline_->Forward(BoundaryOf(ids.dim(0), ids.dim(1)), 1);
  return std::exchange(work_, {}).stream;
}

Tensor PipelineParallel::Through(const Tensor& ids, const Tensor& targets) {
  nn::ResidualStream stream = Stream(ids);
  const Tensor weight = gpt_.Parameters()[0]->value();
  Tensor result;
  if (has_losses()) {
    result = gpt_.head()(std::move(stream), targets);
  } else if (targets.defined()) {
    result = Tensor::Zeros({}, AccumulationDType(weight.dtype()), weight.device());
  }
  if (targets.defined() || !groups_.pipeline) return result;
  if (!result.defined()) {
    const int64_t positions = nn::KvCacheScope::Current() != nullptr ? 1 : ids.dim(1);
    result = Tensor::Empty({ids.dim(0), positions, gpt_.config().vocab_size}, weight.dtype(),
                           weight.device());
  }
  result = result.Contiguous();
  groups_.pipeline->Broadcast(result, schedule()->rank_of.back(), "logits")->Wait();
  return result;
}

void PipelineParallel::CheckWeights(const std::string& when) {
  for (const auto& stage : stages_) stage->data->CheckWeights(when);
  // Every rank has those of all stages, and moves routers' biases alike.
  if (const NamedTensors buffers = gpt_.NamedBuffers(); control() && !buffers.empty()) {
    dist::CheckSameBits(*control(), "the buffers " + when, buffers);
  }
  if (!tie_) return;
  NamedTensors tied;
  for (const auto& use : tied_.uses()) {
    tied.emplace_back(use->weight()->name(), use->weight()->value().Detach());
  }
  dist::CheckSameBits(*tie_, "the tied weights " + when, tied);
}

std::string PipelineParallel::LocateNonFinite(int64_t ago) {
  std::string text;
  for (const auto& stage : stages_) {
    const std::string of_stage = stage->data->LocateNonFinite(ago);
    if (!of_stage.empty()) text += (text.empty() ? "" : ", ") + of_stage;
  }
  return text;
}

}  // namespace lockstep::models
