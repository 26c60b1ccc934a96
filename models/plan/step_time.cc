#include "models/plan/step_time.h"

#include <algorithm>
#include <cmath>

#include "dist/pipeline/schedule_check.h"
#include "models/options/option_offload.h"
#include "models/plan/block_time.h"

namespace lockstep::models {
namespace {

// Gradients are summed, and kept, in fp32; AdamW reads them, its two moments and the fp32 weights,
// and writes all but the first, and the weights of the computation.
constexpr double kGradientBytes = 4, kMomentBytes = 12, kUpdateBytes = 28;

// The compute stream of a rank, and that of its messages: each does one thing after the other.
class Streams {
 public:
  explicit Streams(std::vector<StepSpan>* spans) : spans_(spans) {}
  // Both return when it ends. It begins after what was issued before it, and not before `after`.
  double Compute(StepSpan::Kind kind, double seconds, double after = 0) {
    return Issue(&compute_, kind, seconds, after);
  }
  double Message(double seconds, double after) {
    messages_ += seconds;
    return Issue(&message_, StepSpan::Kind::kMessage, seconds, after);
  }
  double now() const { return compute_; }
  double end() const { return std::max(compute_, message_); }
  double messages() const { return messages_; }  // seconds of all of them

 private:
  double Issue(double* free_at, StepSpan::Kind kind, double seconds, double after) {
    if (seconds <= 0) return std::max(*free_at, after);
    const double begin = std::max(*free_at, after);
    *free_at = begin + seconds;
    if (spans_ != nullptr) spans_->push_back({kind, begin, *free_at});
    return *free_at;
  }
  std::vector<StepSpan>* const spans_;
  double compute_ = 0, message_ = 0, messages_ = 0;
};

// What data ranks send of one block, or of embedding and head.
struct DataMessages {
  double gather = 0, reduce = 0;  // seconds of one
};

class Step {
 public:
  Step(const PlannedModel& model, const Layout& layout, const Cluster& cluster)
      : model_(model),
        layout_(layout),
        cluster_(cluster),
        block_(BlockTimeOf(model, layout, cluster)),
        head_(HeadTimeOf(model, layout, cluster)) {}

  StepTime WithoutPipeline(std::vector<StepSpan>* spans) const;
  StepTime InPipeline(bool exact) const;

 private:
  double micro_batches() const { return static_cast<double>(layout_.grad_accum); }
  double layers() const { return model_.layers; }
  bool sharded() const { return layout_.shards() > 1; }
  DataMessages MessagesOf(double parameters) const;
  double UpdateSeconds(double parameters) const;
  double OffloadSeconds(double parameters, double blocks) const;
  // The computation of a rank with so many blocks and this part of the head, of all micro-batches.
  StepTime Computing(double blocks, double heads) const;

  const PlannedModel& model_;
  const Layout& layout_;
  const Cluster& cluster_;
  const BlockTime block_, head_;
};

DataMessages Step::MessagesOf(double parameters) const {
  const MeshSizes& m = layout_.mesh;
  const int64_t shards = layout_.shards(), stride = m.tp * m.cp;
  const double weights = model_.weight_bytes * parameters;
  const double gradients = kGradientBytes * parameters;
  DataMessages all;
  if (shards > 1) {
    const Link link = cluster_.Between(shards, stride);
    all.gather = RingSeconds(link, shards, weights);
    all.reduce = RingSeconds(link, shards, gradients);
  }
  // Among the copies of a shard, with the ranks that have other parts of the sequences: a sum is
  // scattered and gathered.
  const int64_t copies = m.dp / shards * m.cp;
  if (copies > 1) {
    const Link link = cluster_.Between(copies, shards > 1 ? stride * shards : m.tp);
    all.reduce += 2 * RingSeconds(link, copies, gradients / static_cast<double>(shards));
  }
  return all;
}

double Step::UpdateSeconds(double parameters) const {
  const double own = parameters / static_cast<double>(layout_.shards());
  return MemorySeconds(cluster_, own * (kUpdateBytes + kGradientBytes + model_.weight_bytes));
}

// What copies take that computing does not hide: the optimizer's state goes both ways during the
// update; weights come twice, and activations go and come, for each micro-batch.
double Step::OffloadSeconds(double parameters, double blocks) const {
  const double host = cluster_.host.bytes_per_second, m = micro_batches();
  const OffloadChoice offload = ParseOffload(layout_.offload);
  double seconds = 0;
  if (offload.optimizer) {
    seconds += kMomentBytes * parameters / static_cast<double>(layout_.shards()) / host;
  }
  double copied = 0;
  if (offload.weights) {
    copied += 2 * model_.weight_bytes * parameters / static_cast<double>(layout_.shards()) / host;
  }
  if (offload.activations) copied += 2 * blocks * block_.kept_bytes / host;
  const double compute = blocks * (block_.forward() + block_.backward());
  return seconds + m * std::max(cluster_.disturbs * copied, copied - compute);
}

StepTime Step::Computing(double blocks, double heads) const {
  StepTime t;
  const double m = micro_batches();
  const double of_blocks = block_.other.forward + block_.other.backward() + block_.recomputed.other;
  t.norms = m * blocks * of_blocks * block_.norms;
  t.activations = m * blocks * of_blocks * block_.activations;
  t.loss = m * heads * (head_.other.forward + head_.other.backward());
  for (const auto& [part, times] : {std::pair(&block_, m * blocks), {&head_, m * heads}}) {
    t.products += times * (part->products.forward + part->products.backward());
    t.attention += times * (part->attention.forward + part->attention.backward());
    t.other += times * (part->other.forward + part->other.backward());
    t.host += times * (part->host.forward + part->host.backward());
    t.tensor += times * (part->tensor.forward + part->tensor.backward());
    t.context += times * (part->context.forward + part->context.backward());
    t.experts += times * (part->experts.forward + part->experts.backward());
    for (const auto again : {&Recomputed::products, &Recomputed::attention, &Recomputed::other,
                             &Recomputed::messages}) {
      t.recomputed.*again += times * part->recomputed.*again;
    }
  }
  t.total = t.products + t.attention + t.other + t.host + t.tensor + t.context + t.experts +
            t.recomputed.total();
  return t;
}

// Micro-batches between the first two and the last take as long as the second.
StepTime Step::WithoutPipeline(std::vector<StepSpan>* spans) const {
  using enum StepSpan::Kind;
  const bool full = layout_.shard == "full" && sharded();
  const bool every = full || (layout_.shard == "gradients" && sharded());
  const auto n = static_cast<size_t>(model_.layers);
  const double of_block = model_.ParametersOf(layout_.mesh, 1, false);
  const double of_ends = model_.ParametersOf(layout_.mesh, 0, true);
  const DataMessages block = MessagesOf(of_block), ends = MessagesOf(of_ends);
  const int64_t played = std::min<int64_t>(layout_.grad_accum, 3);
  Streams streams(spans);
  double second = 0, messages = 0;  // of the second micro-batch
  for (int64_t micro = 0; micro < played; ++micro) {
    const double before = streams.now(), ended = streams.end(), sent = streams.messages();
    const bool last = micro == played - 1;
    // A unit is gathered while the one before it computes.
    double ready = streams.Message(full ? ends.gather : 0, before), started = before;
    const auto next = [&](double gather) {
      const double arrived = ready;
      ready = streams.Message(full ? gather : 0, started);
      return arrived;
    };
    next(block.gather);
    for (size_t l = 0; l < n; ++l) {
      const double arrived = next(l + 1 < n ? block.gather : 0);
      started = std::max(streams.now(), arrived);
      streams.Compute(kForward, block_.forward(), arrived);
    }
    streams.Compute(kForward, head_.forward());
    double done = streams.Compute(kBackward, head_.backward());
    const auto reduce = [&](double seconds) {
      if (every || last) streams.Message(seconds, done);
    };
    if (!model_.tied) reduce(ends.reduce / 2);
    for (size_t l = 0; l < n; ++l) {
      const double arrived = next(l + 1 < n ? block.gather : 0);
      started = std::max(streams.now(), arrived);
      done = streams.Compute(kBackward, block_.backward(), arrived);
      reduce(block.reduce);
    }
    reduce(model_.tied ? ends.reduce : ends.reduce / 2);
    if (micro == 1) second = streams.end() - ended, messages = streams.messages() - sent;
  }
  const double whole = layers() * of_block + of_ends;
  StepTime t = Computing(layers(), 1);
  const double update = UpdateSeconds(whole), offload = OffloadSeconds(whole, layers());
  streams.Compute(kUpdate, update, streams.end());
  if (!full && sharded()) streams.Message(MessagesOf(whole).gather, streams.end());
  const auto more = static_cast<double>(layout_.grad_accum - played);
  t.data = std::max({0.0, cluster_.disturbs * (streams.messages() + more * messages),
                     streams.end() + more * second - update - t.total});
  t.update = update;
  t.offload = offload;
  t.total += t.data + update + offload;
  return t;
}

StepTime Step::InPipeline(bool exact) const {
  const auto p = static_cast<double>(layout_.mesh.pp);
  const dist::PipelineKind kind = dist::ParsePipelineKind(layout_.schedule);
  const int chunks = dist::ChunksOf(kind, static_cast<int>(layout_.chunks));
  const double head = (head_.forward() + head_.backward()) / (block_.forward() + block_.backward());
  const double blocks = CutStages(layers(), head, p * chunks).longest;
  StepTime t = Computing(layers() / p, 1 / p);
  dist::PipelineTimes times{
      .forward = blocks * block_.forward(),
      .input_grad = blocks * (block_.input_grad() + block_.recomputed.total()),
      .weight_grad = blocks * block_.weight_grad()};
  const MeshSizes& m = layout_.mesh;
  const Link link = cluster_.Between(m.pp, m.ranks() / m.pp);
  times.transfer = link.seconds + block_.stream_bytes / link.bytes_per_second;
  double makespan = 0;
  if (exact) {
    makespan = dist::Simulate(dist::MakeSchedule(kind, static_cast<int>(m.pp),
                                                 static_cast<int>(layout_.grad_accum), chunks),
                              times)
                   .makespan;
  } else {
    const double stage = times.forward + times.input_grad + times.weight_grad;
    const double idle = kind == dist::PipelineKind::kZeroBubbleH1
                            ? times.forward + times.input_grad - times.weight_grad
                        : kind == dist::PipelineKind::kZeroBubbleV ? chunks * stage / 6
                                                                   : stage;
    makespan = micro_batches() * chunks * stage + (p - 1) * (idle + 2 * chunks * times.transfer);
  }
  t.idle = std::max(0.0, makespan - t.total);
  // A stage's gradients are whole with its last backward, behind which the sum of most may hide.
  const double own_blocks = std::ceil(layers() / p);
  const double own = model_.ParametersOf(m, own_blocks, /*ends=*/false) +
                     model_.ParametersOf(m, 0, /*ends=*/true) / 2;
  const DataMessages data = MessagesOf(own);
  const double last = blocks * block_.backward() * chunks;
  t.data = std::max(data.reduce / own_blocks, data.reduce - last);
  if (sharded()) t.data += std::max(data.gather / own_blocks, data.gather - times.forward);
  const double update = UpdateSeconds(own);
  t.offload = OffloadSeconds(own, own_blocks);
  t.update = update;
  t.total += t.idle + t.data + update + t.offload;
  return t;
}

}  // namespace

StageCut CutStages(double layers, double head, double stages) {
  StageCut best{.blocks = layers, .longest = INFINITY};
  for (double with_head = 0; with_head <= layers && with_head + head <= best.longest; ++with_head) {
    const double others = std::ceil((layers - with_head) / (stages - 1));
    const double longest = std::max(others, with_head + head);
    if (longest < best.longest) best = {others, longest};
  }
  return best;
}

double PlannedModel::ParametersOf(const MeshSizes& mesh, double blocks, bool ends) const {
  const auto tp = static_cast<double>(mesh.tp), ep = static_cast<double>(mesh.ep);
  return blocks * (block_parameters + expert_parameters / ep) / tp +
         (ends ? end_parameters / tp : 0);
}

StepTime TimeOf(const PlannedModel& model, const Layout& layout, const Cluster& cluster, bool exact,
                std::vector<StepSpan>* spans) {
  const Step step(model, layout, cluster);
  return layout.mesh.pp > 1 ? step.InPipeline(exact) : step.WithoutPipeline(spans);
}

}  // namespace lockstep::models
