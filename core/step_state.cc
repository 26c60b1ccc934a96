#include "core/step_state.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "core/autograd/node.h"
#include "core/autograd/op_observer.h"
#include "core/autograd/recompute.h"
#include "core/math.h"
#include "core/philox.h"

namespace lockstep {
namespace {
thread_local const StepState* current_state = nullptr;
}  // namespace

struct StepState::Block {
  StepValues host;
  std::vector<Betas> betas;
  Tensor values;
  const StepWatch* watch = nullptr;
  bool first_sample_given = false;  // for the step's first micro-batch
  bool drew_without_it = false;
  bool needs_first_sample = false;  // a micro-batch has ended
  std::optional<LossScaleOptions> loss_scaling;
  bool root_scaled = false, root_shared = false;    // of the next Backward
  bool was_read = false;                            // since Begin
  std::unordered_map<uint64_t, int64_t> site_uses;  // in this micro-batch
};

StepState::StepState(Device device, uint64_t seed) : block_(std::make_shared<Block>()) {
  block_->values = Tensor::Zeros({sizeof(StepValues)}, DType::kU8, device);
  block_->host.seed = seed;
  Upload(0, sizeof(StepValues));
}

StepValues* StepState::device_values() const {
  return static_cast<StepValues*>(block_->values.raw_data());
}

const StepState*& StepState::OfThread() { return current_state; }
StepState StepState::Copy() const {
  StepState copy = *this;
  copy.block_ = std::make_shared<Block>(*block_);
  copy.block_->values = tensor().Clone();
  copy.block_->watch = nullptr;  // which the step may outlive
  return copy;
}

const Tensor& StepState::tensor() const { return block_->values; }
uint64_t StepState::seed() const { return block_->host.seed; }
const StepWatch* StepState::watch() const { return block_->watch; }
void StepState::SetWatch(const StepWatch* watch) const { block_->watch = watch; }

void StepState::Begin(int64_t step, double lr, std::vector<Betas> betas) {
  LS_CHECK(betas.size() <= kMaxBetas, "a step has at most ", kMaxBetas,
           " different pairs of betas, got ", betas.size(),
           ": give more groups of parameters the same betas");
  StepValues& host = block_->host;
  host = {.step = step, .seed = host.seed, .lr = static_cast<float>(lr)};
  // -expm1(n log b) keeps full precision where b is close to 1. b = 0 gives 1.
  const auto correction = [step](double beta) {
    return static_cast<float>(-math::Expm1(static_cast<double>(step + 1) * math::Log(beta)));
  };
  for (size_t i = 0; i < betas.size(); ++i) {
    host.corrections[i] = {correction(betas[i].first), correction(betas[i].second)};
  }
  block_->betas = std::move(betas);
  block_->first_sample_given = block_->drew_without_it = block_->needs_first_sample = false;
  block_->root_scaled = block_->root_shared = block_->was_read = false;
  block_->site_uses.clear();
  Upload(0, offsetof(StepValues, loss_scale));
}

void StepState::EnableLossScaling(const LossScaleOptions& options,
                                  const std::optional<LossScale>& from) {
  const auto check = [](const char* what, double value, double low, double high) {
    LS_CHECK(value >= low && value <= high, "loss scaling: ", what, " must be in [", low, ", ",
             high, "], got ", value);
  };
  constexpr double kMost = 0x1p100;
  const LossScale begin = from.value_or(LossScale{.scale = static_cast<float>(options.init)});
  check("init", options.init, 0x1p-100, kMost);
  check("growth", options.growth, 1, kMost);
  check("backoff", options.backoff, 0x1p-100, 1);
  // Anything else would round gradients.
  const auto check_power = [](const char* what, double value) {
    int exponent;
    LS_CHECK(std::frexp(value, &exponent) == 0.5, "loss scaling: ", what,
             " must be a power of two, got ", value, ": use ", std::ldexp(0.5, exponent));
  };
  check_power("init", options.init);
  check_power("growth", options.growth);
  check_power("backoff", options.backoff);
  LS_CHECK(options.growth_interval >= 1, "loss scaling: growth_interval must be at least 1, got ",
           options.growth_interval);
  LS_CHECK(begin.scale > 0 && std::isfinite(begin.scale) && begin.good_steps >= 0,
           "loss scaling: cannot continue with a scale of ", begin.scale, " after ",
           begin.good_steps, " good steps: it is damaged");
  check_power("the scale to continue with", begin.scale);
  block_->loss_scaling = options;
  block_->host.loss_scale = begin;
  Upload(offsetof(StepValues, loss_scale), sizeof(LossScale));
}

const std::optional<LossScaleOptions>& StepState::loss_scaling() const {
  return block_->loss_scaling;
}
void StepState::SetRootScaled() const { block_->root_scaled = true; }
void StepState::SetRootShared() const { block_->root_shared = true; }
bool StepState::root_scaled() const { return block_->root_scaled; }
bool StepState::root_shared() const { return block_->root_shared; }

int StepState::CorrectionIndex(const Betas& betas) const {
  const auto found = std::find(block_->betas.begin(), block_->betas.end(), betas);
  LS_CHECK(found != block_->betas.end(), "the step began without the betas (", betas.first, ", ",
           betas.second, "), so their bias corrections are missing: pass them to Begin");
  return static_cast<int>(found - block_->betas.begin());
}

void StepState::SetFirstSample(int64_t index) {
  block_->host.first_sample = index;
  SetFirstSample(device().is_meta() ? Tensor() : Tensor::FromVector<int64_t>({index}, {1}));
}

void StepState::SetFirstSample(const Tensor& index) {
  block_->first_sample_given = true;
  block_->needs_first_sample = false;
  block_->site_uses.clear();
  if (device().is_meta()) return;
  // Only this field: kernels of the step may already have written the others.
  Tensor::FromStorage(tensor().storage(), DType::kI64, {1},
                      offsetof(StepValues, first_sample) / sizeof(int64_t))
      .CopyFrom(index);
}

void StepState::SetNormLimit(float limit) {
  block_->host.norm_limit = limit;
  Upload(offsetof(StepValues, norm_limit), sizeof(limit));
}

bool StepState::drew_without_first_sample() const { return block_->drew_without_it; }

StepValues StepState::Read() const {
  HostRead read = ReadLater();
  return ToStepValues(read);
}

HostRead StepState::ReadLater() const {
  block_->was_read = true;
  return HostRead(tensor());
}

bool StepState::was_read() const { return block_->was_read; }

StepValues ToStepValues(HostRead& read) {
  StepValues out;
  std::memcpy(&out, read.Get().raw_data(), sizeof(out));
  return out;
}

void StepState::Upload(size_t first, size_t count) {
  if (device().is_meta()) return;
  const auto bytes = std::as_bytes(std::span(&block_->host, 1)).subspan(first, count);
  const auto n = static_cast<int64_t>(count), begin = static_cast<int64_t>(first);
  Tensor::FromStorage(tensor().storage(), DType::kU8, {n}, begin)
      .CopyFrom(Tensor::FromBytes(bytes, {n}, DType::kU8));
}

const StepState* CurrentStepState() { return GradEnabled() ? current_state : nullptr; }
const StepState* StepUnderWay() { return current_state; }

Tensor Evaluated(Tensor y) {
  if (!GradEnabled()) return y;
  Edge edge = y.autograd() ? *y.autograd() : Edge();
  edge.evaluated = true;
  y.set_autograd(std::make_shared<Edge>(std::move(edge)));
  return y;
}

const StepState* RandomState() {
  const StepState* state = CurrentStepState();
  if (state == nullptr) return nullptr;
  StepState::Block& block = *state->block_;
  LS_CHECK(
      !block.needs_first_sample,
      "this micro-batch would repeat the random numbers (dropout) of the previous one: before "
      "its forward, say which samples of the step it holds:\n"
      "  training.SetFirstSample(index of its first sample within the step);\n"
      "where `training` is what BeginStep returned. A forward that evaluates the model within a "
      "step draws none under\n"
      "  const NoGrad no_grad;");
  block.drew_without_it |= !block.first_sample_given;
  Decisions::NoteDraw();
  return state;
}

uint64_t DistinctSite(uint64_t site) {
  const StepState* state = CurrentStepState();
  if (state == nullptr) return site;
  if (const auto first = Decisions::NextSite()) {
    site = *first;
  } else if (const int64_t uses = state->block_->site_uses[site]++; uses > 0) {
    site = HashName(StrCat(site, "#", uses));
  }
  Decisions::NoteSite(site);
  internal::TellOfOp([&](OpObserver& o) { o.OnRandom(state->seed(), site); });
  return site;
}

void ThrowEvaluated() {
  LS_CHECK(current_state != nullptr,
           "the forward ran in evaluation mode, without dropout or with batch norm's running "
           "statistics, since no step is under way. Begin one before the forward of each step:\n"
           "  const auto training = optimizer.BeginStep(state, step, learning_rate);\n"
           "or, without an optimizer,\n"
           "  state.Begin(step, learning_rate);\n"
           "  const TrainingScope training(state);\n"
           "Evaluate under NoGrad. Where the gradients of an evaluation are wanted, write\n"
           "  Backward(loss, {}, {.evaluation = true});");
  throw ArgumentError(
      "the forward ran before BeginStep, in evaluation mode: without dropout, and with batch "
      "norm's running statistics. Call BeginStep before the forward of each step");
}

void EndMicroBatch() {
  if (current_state == nullptr) return;
  current_state->block_->needs_first_sample = true;
  current_state->block_->root_scaled = current_state->block_->root_shared = false;
}

TrainingScope::TrainingScope(const StepState& state) : state_(state), previous_(current_state) {
  current_state = &state_;
}
TrainingScope::~TrainingScope() { current_state = previous_; }

}  // namespace lockstep
