#include "dist/pipeline/pipeline.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/autograd/root_gradient.h"
#include "core/error.h"
#include "dist/pipeline/schedule_check.h"

namespace lockstep::dist {
namespace {

using enum PipelineOp;

PipelineSchedule Checked(const PipelineSchedule& schedule, int ranks) {
  LS_CHECK(schedule.ranks() == ranks, "the pipeline's schedule is for ", schedule.ranks(),
           " ranks, and there ", ranks == 1 ? "is 1" : StrCat("are ", ranks));
  Check(schedule);
  return AddTransfers(schedule);
}

// Tells an observer of a backward: at once, or, where the weight gradients are made later, once
// that begins.
class GradientObserver : public BackwardObserver {
 public:
  GradientObserver(BackwardObserver* to, bool later) : to_(to), later_(later) {}

  // The gradient of this leaf, the stage's input, is handed to `use` as soon as it is there.
  void SetInput(std::shared_ptr<Leaf> input, std::function<void(const Tensor&)> use) {
    input_ = std::move(input);
    use_ = std::move(use);
  }
  void OnBegin(const BackwardPlan& plan) override {
    // Without the nodes, which would keep the graph.
    plan_.leaves = plan.leaves;
    plan_.default_root_grad = plan.default_root_grad;
    if (!later_ && to_ != nullptr) to_->OnBegin(plan);
  }
  void OnLeafReady(Leaf& leaf) override {
    if (&leaf == input_.get()) {
      use_(leaf.grad());
      return;
    }
    if (later_) {
      ready_.push_back(&leaf);
    } else if (to_ != nullptr) {
      to_->OnLeafReady(leaf);
    }
  }
  void OnEnd() override {
    if (later_) {
      ended_ = true;
    } else if (to_ != nullptr) {
      to_->OnEnd();
    }
  }
  void OnError() noexcept override {
    if (to_ != nullptr) to_->OnError();
  }
  // The weight gradients follow.
  void BeginLater() {
    later_ = false;
    if (to_ == nullptr) return;
    to_->OnBegin(plan_);
    for (Leaf* leaf : ready_) to_->OnLeafReady(*leaf);
    if (ended_) to_->OnEnd();
  }

 private:
  BackwardObserver* const to_;
  bool later_, ended_ = false;
  BackwardPlan plan_;
  std::vector<Leaf*> ready_;
  std::shared_ptr<Leaf> input_;
  std::function<void(const Tensor&)> use_;
};

}  // namespace

struct Pipeline::Live {
  Tensor input;              // given by a stage of this rank
  Tensor gradient;           // of the output, likewise
  std::shared_ptr<Leaf> in;  // the input's gradient
  Tensor output;
  std::unique_ptr<GradientObserver> observer;
  DeferredGradients weights;
};

Pipeline::Pipeline(ProcessGroup* ranks, const PipelineSchedule& schedule,
                   std::vector<PipelineStage> stages, PipelineOptions options)
    : ranks_(ranks),
      rank_(RankIn(ranks)),
      schedule_(Checked(schedule, SizeOf(ranks))),
      mine_(schedule.StagesOf(rank_)),
      stages_(std::move(stages)),
      options_(std::move(options)),
      edges_(ranks, schedule_) {
  LS_CHECK(stages_.size() == mine_.size(), "rank ", rank_, " has ", mine_.size(),
           " stages of the pipeline's schedule, and was given ", stages_.size());
}

Pipeline::Live& Pipeline::At(const PipelineAction& action) {
  auto& live = live_[{action.stage, action.micro}];
  if (!live) live = std::make_shared<Live>();
  return *live;
}

PipelineStage& Pipeline::Stage(int stage) {
  return stages_[static_cast<size_t>(std::find(mine_.begin(), mine_.end(), stage) - mine_.begin())];
}

// To another stage: by a message, or where it is on this rank, at once.
void Pipeline::PassOn(const PipelineAction& send, int to, const Tensor& tensor, Tensor Live::*as) {
  if (running_->crosses(send.stage, to)) {
    edges_.Send(send, tensor);
  } else {
    At({.stage = to, .micro = send.micro}).*as = tensor.Detach();
  }
}

Tensor Pipeline::InputOf(const PipelineAction& forward) {
  if (forward.stage == 0) return {};
  if (!running_->crosses(forward.stage - 1, forward.stage)) {
    return std::exchange(At(forward).input, Tensor());
  }
  return edges_.Receive({forward.stage, kReceiveForward, forward.micro});
}

void Pipeline::RunForward(const PipelineAction& a, bool record) {
  Tensor input = InputOf(a);
  began_ = std::chrono::steady_clock::now();
  Live& live = At(a);
  if (input.defined() && record) {
    live.in = std::make_shared<Leaf>(input);
    live.in->set_name(StrCat("the input of stage ", a.stage));
    input.set_autograd(Edge::To(live.in));
  }
  live.output = Stage(a.stage).forward(input, a.micro);
  if (a.stage + 1 < running_->stages()) {
    PassOn({a.stage, kSendForward, a.micro}, a.stage + 1, live.output, &Live::input);
  }
  if (!record) live_.erase({a.stage, a.micro});
}

void Pipeline::RunBackward(const PipelineAction& a) {
  Live& live = At(a);
  PipelineStage& stage = Stage(a.stage);
  Tensor received;
  if (a.stage + 1 < running_->stages()) {
    received = running_->crosses(a.stage, a.stage + 1)
                   ? edges_.Receive({a.stage, kReceiveBackward, a.micro})
                   : std::exchange(live.gradient, Tensor());
  }
  began_ = std::chrono::steady_clock::now();
  const bool split = a.op == kInputGrad;
  if (!split && stage.before_gradients) stage.before_gradients(a.micro);
  const Tensor gradient = stage.output_gradient(received, a.micro);
  received = Tensor();
  std::optional<RootGradientScope> root;
  if (stage.root_gradient) root.emplace(stage.root_gradient(a.micro));
  live.observer = std::make_unique<GradientObserver>(stage.gradients, split);
  if (live.in) {
    // Ahead of the end of the backward, which may wait for the sums of other gradients.
    live.observer->SetInput(live.in, [this, a](const Tensor& input_gradient) {
      PassOn({a.stage, kSendBackward, a.micro}, a.stage - 1, input_gradient, &Live::gradient);
    });
  }
  BackwardOptions options;
  options.observers = options_.observers;
  options.observers.push_back(live.observer.get());
  if (split) {
    options.defer = [in = live.in.get()](const Leaf& leaf) { return &leaf != in; };
    options.deferred = &live.weights;
  }
  const Tensor output = std::exchange(live.output, Tensor());
  if (output.requires_grad()) {
    Backward(output, gradient, options);
  } else {  // the first stage, where nothing is trained
    live.observer->OnBegin({});
    live.observer->OnEnd();
  }
  live.in.reset();
  if (!split) live_.erase({a.stage, a.micro});
}

void Pipeline::RunWeightGrad(const PipelineAction& a) {
  began_ = std::chrono::steady_clock::now();
  Live& live = At(a);
  PipelineStage& stage = Stage(a.stage);
  if (stage.before_gradients) stage.before_gradients(a.micro);
  live.observer->BeginLater();
  live.weights.Run();
  live_.erase({a.stage, a.micro});
}

void Pipeline::Run(const PipelineSchedule& schedule, const PipelineBoundary& boundary,
                   bool record) {
  running_ = &schedule;
  live_.clear();
  edges_.Begin(schedule, boundary);
  for (const PipelineAction& a : schedule.actions[rank_]) {
    if (a.is_transfer()) continue;  // made where what they bring is there, or needed
    if (a.op == kForward) {
      RunForward(a, record);
    } else if (a.op == kWeightGrad) {
      RunWeightGrad(a);
    } else {
      RunBackward(a);
    }
    if (options_.on_span) options_.on_span({a, began_, std::chrono::steady_clock::now()});
  }
  edges_.End();
  running_ = nullptr;
}

void Pipeline::Step(const PipelineBoundary& boundary) { Run(schedule_, boundary, /*record=*/true); }

void Pipeline::Forward(const PipelineBoundary& boundary, int micro_batches) {
  const NoGrad no_grad;
  Run(AddTransfers(ForwardSchedule(schedule_.rank_of, micro_batches)), boundary,
      /*record=*/false);
}

}  // namespace lockstep::dist
