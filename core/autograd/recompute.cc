#include "core/autograd/recompute.h"

#include <algorithm>
#include <any>
#include <unordered_map>
#include <utility>

#include "core/autograd/engine.h"
#include "core/error.h"

namespace lockstep {
namespace {

thread_local RedoScope* redo_scope = nullptr;

std::any PackNothing(const Tensor&, const char*) { return {}; }
// For a scope whose tensors nobody unpacks.
Tensor NeverUnpacked(const std::any&) {
  throw Error("the graph of a recomputed forward is never run");
}

}  // namespace

thread_local RecomputeScope* RecomputeScope::innermost = nullptr;
thread_local RecomputeScope::Rerun* RecomputeScope::rerun = nullptr;

bool Recomputing() { return RecomputeScope::rerun != nullptr; }

// ---- Whole forwards. ----

// Something that a node saved.
struct RecomputeScope::Slot {
  bool kept = false;  // older than the forward, and so alive anyway
  SavedTensor value;  // undefined until it has been recomputed
  Shape shape;
  DType dtype;
  const char* what;
};

// What a node has of it.
struct RecomputeScope::Saved {
  std::shared_ptr<State> state;
  std::shared_ptr<Slot> slot;
};

// Thrown through a forward that has recomputed all that is needed.
struct RecomputeScope::Finished {};

// A forward runs again within its lifetime, with its decisions and outside of the scopes of others.
struct RecomputeScope::Rerun {
  explicit Rerun(const State* of);
  ~Rerun();

  const State* of;
  size_t next_site = 0, next_choice = 0;
  // What this thread was in before.
  Rerun* outer;
  RecomputeScope* scope;
  const StepState* step;
};

struct RecomputeScope::State {
  uint64_t first_serial = Storage::NextSerial();
  std::vector<SavedTensor> inputs;
  std::vector<bool> requires_grad;
  const void* of = nullptr;
  bool has_start = false;  // a RecomputeStart
  Again again;
  bool stops_early = false;
  Decisions decisions;
  std::vector<std::weak_ptr<Slot>> slots;  // in the order in which the forward saved them

  std::shared_ptr<Slot> Save(const Tensor& t, const char* what) {
    auto slot = std::make_shared<Slot>(
        Slot{t.storage().serial() < first_serial, {}, t.shape(), t.dtype(), what});
    if (slot->kept) slot->value = SavedTensor(t, what);
    slots.push_back(slot);
    return slot;
  }

  // How many of the forward's first saves must run again.
  size_t Awaited() const {
    size_t end = 0;
    for (size_t i = 0; i < slots.size(); ++i) {
      const auto slot = slots[i].lock();
      if (!slot) continue;
      if (slot->kept) slot->value.Unpack();  // throws now if it has been overwritten
      if (!slot->value.defined()) end = i + 1;
    }
    return end;
  }

  std::vector<Tensor> Leaves() const {
    std::vector<Tensor> leaves;
    for (size_t i = 0; i < inputs.size(); ++i) {
      leaves.push_back(inputs[i].Unpack().Detach());
      if (requires_grad[i]) leaves.back().SetRequiresGrad();
    }
    return leaves;
  }

  void Fill(size_t i, const Tensor& t) const {
    const auto slot = slots[i].lock();
    if (!slot || slot->value.defined()) return;
    LS_CHECK(t.shape() == slot->shape && t.dtype() == slot->dtype,
             "a module that is recomputed saved ", slot->what, " as ", slot->dtype, slot->shape,
             " in forward, and the second time ", t.Describe(),
             ": it must compute the same each time");
    slot->value = SavedTensor(t, slot->what);
  }

  void SetInputs(std::span<const Tensor> given) {
    inputs.clear();
    requires_grad.clear();
    for (const Tensor& input : given) {
      inputs.emplace_back(input, "an input of a module that is recomputed");
      requires_grad.push_back(input.requires_grad());
    }
  }

  void Recompute() {
    const size_t end = Awaited();
    std::vector<Tensor> leaves = Leaves();
    Rerun running(this);
    const GradMode record(true);
    size_t next = 0;
    const SavedTensorHooks hooks(
        [&](const Tensor& t, const char*) {
          if (next < end) Fill(next, t);
          if (++next == end && stops_early) throw Finished();
          return std::any();
        },
        NeverUnpacked);
    try {
      again(std::move(leaves));
    } catch (const Finished&) {
    }
    if (next >= end) return;
    throw Error(StrCat("a module that is recomputed saved ", slots.size(),
                       " tensors for backward, and ", next,
                       " the second time: it must compute the same each time it runs"));
  }

  void Forget() const {
    for (const auto& weak : slots) {
      const auto slot = weak.lock();
      if (slot && !slot->kept) slot->value.Reset();
    }
  }
};

RecomputeScope::Rerun::Rerun(const State* state)
    : of(state),
      outer(std::exchange(rerun, this)),
      scope(std::exchange(innermost, nullptr)),
      step(std::exchange(StepState::OfThread(),
                         state->decisions.step_ ? &*state->decisions.step_ : nullptr)) {}
RecomputeScope::Rerun::~Rerun() {
  rerun = outer;
  innermost = scope;
  StepState::OfThread() = step;
}

std::shared_ptr<RecomputeScope::State> RecomputeScope::Begin(const void* of,
                                                             std::span<const Tensor> inputs,
                                                             Again again, bool stops_early) {
  auto state = std::make_shared<State>();
  state->of = of;
  state->SetInputs(inputs);
  state->again = std::move(again);
  state->stops_early = stops_early;
  return state;
}

RecomputeScope::RecomputeScope(const void* of, std::span<const Tensor> inputs, Again again,
                               bool stops_early)
    : state_(Begin(of, inputs, std::move(again), stops_early)),
      hooks_(
          [state = state_](const Tensor& t, const char* what) {
            return std::any(Saved{state, state->Save(t, what)});
          },
          [](const std::any& packed) {
            const auto& [state, slot] = std::any_cast<const Saved&>(packed);
            if (!slot->value.defined()) state->Recompute();
            return slot->value.Unpack();
          }),
      range_(std::make_shared<const BackwardRange>(BackwardRange{NextSequence(), nullptr,
                                                                 [weak = std::weak_ptr(state_)] {
                                                                   const auto state = weak.lock();
                                                                   if (state && GraphIsRetained())
                                                                     state->Forget();
                                                                 }})),
      previous_(std::exchange(innermost, this)) {}

RecomputeScope::~RecomputeScope() { innermost = previous_; }

Decisions::Decisions() {
  if (const StepState* state = CurrentStepState()) step_ = *state;
}

void Decisions::NoteDraw() {
  for (auto* scope = RecomputeScope::innermost; scope != nullptr; scope = scope->previous_) {
    Decisions& d = scope->state_->decisions;
    if (!std::exchange(d.copied_, true)) d.step_ = StepState::OfThread()->Copy();
  }
}

void Decisions::NoteSite(uint64_t site) {
  for (auto* scope = RecomputeScope::innermost; scope != nullptr; scope = scope->previous_) {
    scope->state_->decisions.sites_.push_back(site);
  }
}

std::optional<uint64_t> Decisions::NextSite() {
  RecomputeScope::Rerun* const rerun = RecomputeScope::rerun;
  if (rerun == nullptr) return std::nullopt;
  const auto& sites = rerun->of->decisions.sites_;
  LS_CHECK(rerun->next_site < sites.size(), "a module that is recomputed draws random numbers ",
           sites.size() + 1, " times, but in forward it did so ", sites.size(),
           " times: it must do the same each time");
  return sites[rerun->next_site++];
}

Tensor KeepChoice(const std::function<Tensor()>& make) {
  Tensor choice;
  if (RecomputeScope::Rerun* const rerun = RecomputeScope::rerun) {
    const auto& choices = rerun->of->decisions.choices_;
    LS_CHECK(rerun->next_choice < choices.size(), "a module that is recomputed chooses ",
             choices.size() + 1, " times, but in forward it did so ", choices.size(),
             " times: it must do the same each time");
    choice = choices[rerun->next_choice++];
  } else {
    choice = make();
  }
  for (auto* scope = RecomputeScope::innermost; scope != nullptr; scope = scope->previous_) {
    scope->state_->decisions.choices_.push_back(choice);
  }
  return choice;
}

void RecomputeScope::AddOutput(const Tensor& output) {
  const auto& meta = output.autograd();
  if (meta && meta->node) meta->node->AddRange(range_);
}

RecomputeStart::RecomputeStart(const void* of) {
  if (const RecomputeScope* scope = RecomputeScope::innermost) {
    if (scope->state_->of != of || !scope->hooks_.innermost()) return;
    state_ = scope->state_;
    state_->has_start = true;
    pause_.emplace(scope->hooks_);
  } else if (const auto* rerun = RecomputeScope::rerun) {
    if (rerun->of->of == of && rerun->of->has_start) ignore_.emplace(PackNothing, NeverUnpacked);
  }
}
RecomputeStart::~RecomputeStart() = default;

void RecomputeStart::Replace(std::span<const Tensor> by) {
  if (!state_) return;
  LS_CHECK(by.size() == state_->inputs.size(), "RecomputeStart: ", by.size(), " tensors for ",
           state_->inputs.size(), " inputs");
  state_->SetInputs(by);
}

// ---- Single results. ----

struct RedoScope::State {
  struct Offer {
    uint64_t version;
    Shape shape;
    std::shared_ptr<const std::function<Tensor()>> redo;
  };
  std::vector<std::string> ops;
  std::unordered_map<uint64_t, Offer> offers;  // by the serial of the result's storage

  // The offer for these elements, or null.
  const Offer* Find(const Tensor& t) const {
    const auto it = offers.find(t.storage().serial());
    if (it == offers.end() || it->second.version != t.storage().version()) return nullptr;
    const bool all = t.is_contiguous() && t.numel() == it->second.shape.numel();
    return all ? &it->second : nullptr;
  }
};

namespace {

struct Redone {
  std::shared_ptr<const std::function<Tensor()>> redo;
  Shape shape;
};

Tensor UnpackRedone(const std::any& packed) {
  if (const auto* redone = std::any_cast<Redone>(&packed)) {
    return (*redone->redo)().View(redone->shape);
  }
  return std::any_cast<const SavedTensor&>(packed).Unpack();
}

}  // namespace

RedoScope::RedoScope(const std::vector<std::string>& ops)
    : state_(std::make_shared<State>(State{ops, {}})),
      hooks_(
          [state = state_.get()](const Tensor& t, const char* what) {
            const State::Offer* offer = state->Find(t);
            return offer ? std::any(Redone{offer->redo, t.shape()})
                         : std::any(SavedTensor(t, what));
          },
          UnpackRedone),
      previous_(std::exchange(redo_scope, this)) {}
RedoScope::~RedoScope() { redo_scope = previous_; }

bool MayRedo(std::string_view op) {
  if (redo_scope == nullptr || !redo_scope->hooks_.innermost()) return false;
  const auto& ops = redo_scope->state_->ops;
  return std::find(ops.begin(), ops.end(), op) != ops.end();
}

void OfferRedo(const Tensor& result, std::function<Tensor()> redo) {
  redo_scope->state_->offers[result.storage().serial()] = {
      result.storage().version(), result.shape(),
      std::make_shared<const std::function<Tensor()>>(std::move(redo))};
}

}  // namespace lockstep
