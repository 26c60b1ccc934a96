#include "core/autograd/recompute.h"

#include <algorithm>
#include <any>
#include <unordered_map>
#include <utility>

#include "core/autograd/engine.h"
#include "core/autograd/recomputable_ops.h"
#include "core/error.h"

namespace lockstep {
namespace {

std::any PackNothing(const Tensor&, const char*) { return {}; }

// For a scope whose tensors nobody unpacks.
Tensor NeverUnpacked(const std::any&) {
  throw Error("the graph of a recomputed forward is never run");
}

}  // namespace

thread_local RecomputeScope* RecomputeScope::innermost = nullptr;
thread_local RecomputeScope::Rerun* RecomputeScope::rerun = nullptr;

bool Recomputing() { return RecomputeScope::rerun != nullptr; }

// ---- What runs again. ----

// Something that nodes saved.
struct RecomputeScope::Slot {
  bool kept = false;  // older than the segment, and so alive anyway
  SavedTensor value;  // undefined until it has been recomputed
  Shape shape;
  DType dtype;
  const char* what;
};

// What a node has of it.
struct RecomputeScope::Place {
  std::shared_ptr<Segment> segment;
  std::shared_ptr<Slot> slot;
};

// Thrown through a forward that has recomputed all that is needed.
struct RecomputeScope::Finished {};

// A segment runs again within its lifetime, with its decisions and outside of the scopes of others.
struct RecomputeScope::Rerun {
  explicit Rerun(const Segment* of);
  ~Rerun();

  const Segment* of;
  size_t next_site = 0, next_choice = 0;
  // What this thread was in before.
  Rerun* outer;
  RecomputeScope* scope;
  const StepState* step;
};

struct RecomputeScope::Segment : std::enable_shared_from_this<Segment> {
  Segment(Again forward, bool early) : again(std::move(forward)), stops_early(early) {}

  Again again;
  bool stops_early;
  uint64_t first_serial = Storage::NextSerial();
  std::vector<SavedTensor> inputs;
  std::vector<bool> requires_grad;
  const void* of = nullptr;
  bool has_start = false;
  Decisions decisions;
  std::vector<std::weak_ptr<Slot>> slots;  // in the order in which it saves them
  const uint64_t first_sequence = NextSequence();
  std::shared_ptr<const BackwardRange> range;

  void SetInputs(std::span<const Tensor> given) {
    inputs.clear();
    requires_grad.clear();
    for (const Tensor& input : given) {
      inputs.emplace_back(input, "an input of a module that is recomputed");
      requires_grad.push_back(input.requires_grad());
    }
  }

  std::shared_ptr<Slot> Save(const Tensor& t, const char* what) {
    auto slot = std::make_shared<Slot>(
        Slot{t.storage().serial() < first_serial, {}, t.shape(), t.dtype(), what});
    if (slot->kept) slot->value = SavedTensor(t, what);
    slots.push_back(slot);
    return slot;
  }

  // A backward that retains the graph drops what it recomputed, once all that was recorded since
  // the segment began has run.
  void AddOutput(const Tensor& output) {
    const auto& edge = output.autograd();
    if (!edge || !edge->node) return;
    if (!range) {
      const auto forget = [weak = weak_from_this()] {
        const auto segment = weak.lock();
        if (segment && GraphIsRetained()) segment->Forget();
      };
      range = std::make_shared<const BackwardRange>(BackwardRange{first_sequence, nullptr, forget});
    }
    edge->node->AddRange(range);
  }

  // How many of its first saves must run again.
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

RecomputeScope::Rerun::Rerun(const Segment* segment)
    : of(segment),
      outer(std::exchange(rerun, this)),
      scope(std::exchange(innermost, nullptr)),
      step(std::exchange(StepState::OfThread(),
                         segment->decisions.step_ ? &*segment->decisions.step_ : nullptr)) {}
RecomputeScope::Rerun::~Rerun() {
  rerun = outer;
  innermost = scope;
  StepState::OfThread() = step;
}

// ---- Whole forwards. ----

RecomputeScope::RecomputeScope(const void* of, std::span<const Tensor> inputs, Again again,
                               bool stops_early)
    : segment_(std::make_shared<Segment>(std::move(again), stops_early)),
      hooks_(
          [segment = segment_](const Tensor& t, const char* what) {
            return std::any(Place{segment, segment->Save(t, what)});
          },
          [](const std::any& packed) {
            const auto& [segment, slot] = std::any_cast<const Place&>(packed);
            if (!slot->value.defined()) segment->Recompute();
            return slot->value.Unpack();
          }),
      previous_(innermost) {
  segment_->of = of;
  {
    const SavedTensorHooks::Pause pause(hooks_);
    segment_->SetInputs(inputs);
  }
  innermost = this;
}

RecomputeScope::~RecomputeScope() { innermost = previous_; }

void RecomputeScope::AddOutput(const Tensor& output) { segment_->AddOutput(output); }

RecomputeScope::Start::Start(const void* of) {
  if (const RecomputeScope* scope = innermost) {
    if (!scope->segment_ || scope->segment_->of != of || !scope->hooks_.innermost()) return;
    segment_ = scope->segment_;
    segment_->has_start = true;
    pause_.emplace(scope->hooks_);
  } else if (rerun != nullptr && rerun->of->of == of && rerun->of->has_start) {
    ignore_.emplace(PackNothing, NeverUnpacked);
  }
}
RecomputeScope::Start::~Start() = default;

void RecomputeScope::Start::Replace(std::span<const Tensor> by) {
  if (!segment_) return;
  LS_CHECK(by.size() == segment_->inputs.size(), "RecomputeScope::Start: ", by.size(),
           " tensors for ", segment_->inputs.size(), " inputs");
  segment_->SetInputs(by);
}

// ---- Single operations. ----

// One whose result is computed anew for each node that needs it, and is not kept between.
struct RecomputeScope::Operation {
  std::vector<SavedTensor> from;
  std::function<Tensor(std::span<const Tensor>)> again;

  Tensor Run() const {
    std::vector<Tensor> inputs;
    for (const SavedTensor& saved : from) inputs.push_back(saved.Unpack());
    return again(inputs);
  }
};

struct RecomputeScope::Operations {
  struct Result {
    std::shared_ptr<const Operation> of;
    int64_t numel;
    uint64_t version;
  };
  // What a node has of a result.
  struct Saved {
    std::shared_ptr<const Operation> of;
    Shape shape;
  };
  std::vector<std::string> names;
  std::unordered_map<uint64_t, Result> results;  // by the serial of their storage

  // Packs all elements of a result that is as it was made.
  std::any Pack(const Tensor& t, const char* what) const {
    const auto it = results.find(t.storage().serial());
    const bool is_result = it != results.end() && it->second.version == t.storage().version() &&
                           t.is_contiguous() && t.numel() == it->second.numel;
    if (!is_result) return SavedTensor(t, what);
    return Saved{it->second.of, t.shape()};
  }
  static Tensor Unpack(const std::any& packed) {
    if (const auto* const saved = std::any_cast<Saved>(&packed)) {
      return saved->of->Run().View(saved->shape);
    }
    return std::any_cast<const SavedTensor&>(packed).Unpack();
  }
};

RecomputeScope::RecomputeScope(std::vector<std::string> ops)
    : operations_(std::make_shared<Operations>(Operations{std::move(ops), {}})),
      hooks_([operations = operations_.get()](
                 const Tensor& t, const char* what) { return operations->Pack(t, what); },
             Operations::Unpack),
      previous_(innermost) {
  CheckRecomputable(operations_->names);
  innermost = this;
}

RecomputeScope* RecomputeScope::Recomputes(std::string_view op) {
  if (innermost == nullptr || !innermost->operations_ || !innermost->hooks_.innermost()) {
    return nullptr;
  }
  const auto& names = innermost->operations_->names;
  return std::ranges::find(names, op) != names.end() ? innermost : nullptr;
}

void RecomputeScope::Offer(const Tensor& result, std::initializer_list<Kept> from,
                           std::function<Tensor(std::span<const Tensor>)> again) {
  auto operation = std::make_shared<Operation>();
  for (const auto& [tensor, what] : from) operation->from.emplace_back(tensor, what);
  operation->again = std::move(again);
  operations_->results[result.storage().serial()] = {std::move(operation), result.numel(),
                                                     result.storage().version()};
}

// ---- What is not decided again. ----

Decisions::Decisions() {
  if (const StepState* state = CurrentStepState()) step_ = *state;
}

// Calls f with those of the forwards that this thread is in.
template <class F>
void Decisions::ForEach(const F& f) {
  for (auto* scope = RecomputeScope::innermost; scope != nullptr; scope = scope->previous_) {
    if (scope->segment_) f(scope->segment_->decisions);
  }
}

void Decisions::NoteDraw() {
  ForEach([](Decisions& d) {
    if (!std::exchange(d.copied_, true)) d.step_ = StepState::OfThread()->Copy();
  });
}

void Decisions::NoteSite(uint64_t site) {
  ForEach([&](Decisions& d) { d.sites_.push_back(site); });
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
  Decisions::ForEach([&](Decisions& d) { d.choices_.push_back(choice); });
  return choice;
}

}  // namespace lockstep
