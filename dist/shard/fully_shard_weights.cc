// FullyShard's weights: gathered before a module's forward and backward, and released after them.
#include <algorithm>
#include <limits>
#include <utility>

#include "core/autograd/engine.h"
#include "dist/groups/agreement.h"
#include "dist/shard/fully_shard.h"
#include "dist/user_call.h"

namespace lockstep::dist {
namespace {

// Instead of a module: FullyShard::Whole shows the units.
constexpr size_t kWhole = std::numeric_limits<size_t>::max();

bool Contains(const std::vector<size_t>& list, size_t i) {
  return std::ranges::find(list, i) != list.end();
}

}  // namespace

void FullyShard::StartGather(size_t use) {
  if (use >= uses_.size()) return;
  for (const size_t u : uses_[use].units) StartGather(units_[u]);
}

void FullyShard::StartGather(Unit& unit) {
  const UserCall call(InBackward() ? "Backward" : "a forward");
  WorkPtr work = unit.memory->StartGather(GatherGroup(unit));
  if (!options_.on_gather) return;
  if (work) started_.push_back({std::move(work), &unit});
  ReportGathers();
}

void FullyShard::GatherUnit(Unit& unit) {
  StartGather(unit);
  unit.memory->Await();
}

// Those that have ended; a GPU may be far behind.
void FullyShard::ReportGathers() {
  for (; !started_.empty() && started_.front().work->Done(); started_.pop_front()) {
    const auto& [work, unit] = started_.front();
    const auto span = work->span();
    if (!span) continue;
    options_.on_gather({.module = uses_[unit->uses.front()].module->path(),
                        .bytes = unit->memory->weight_bytes(),
                        .begin = span->begin,
                        .end = span->end});
  }
}

void FullyShard::PreForward(size_t use) {
  if (!broken_.empty()) throw Error(broken_);
  StartGather(use);
  for (const size_t u : uses_[use].units) {
    GatherUnit(units_[u]);
    units_[u].memory->Show(use);
  }
  if (!InBackward()) StartGather(use + 1);
}

// Between its uses, and from the last module's forward to its backward, a unit is kept.
bool FullyShard::KeepsAfterForward(const Unit& unit, size_t use) const {
  if (InBackward() || options_.reshard == Reshard::kAfterStep || use != unit.uses.back()) {
    return true;
  }
  if (!GradEnabled()) return false;
  return options_.reshard != Reshard::kAfterForward || use + 1 == uses_.size() ||
         uses_[use].encloses;
}

void FullyShard::PostForward(size_t use) {
  for (const size_t u : uses_[use].units) {
    units_[u].memory->Hide(use);
    if (!KeepsAfterForward(units_[u], use)) units_[u].memory->Release();
  }
}

void FullyShard::PreBackward(size_t use) {
  for (const size_t u : uses_[use].units) {
    Unit& unit = units_[u];
    GatherUnit(unit);
    unit.memory->Show(use);  // to forwards that run again
    if (unit.pending == 0 || !Contains(unit.makers, use)) continue;
    if (summed_ == &unit) Settle();  // the previous micro-batch's
    unit.memory->TakeGradients();
  }
  if (use > 0) StartGather(use - 1);
}

void FullyShard::PostBackward(size_t use) {
  for (const size_t u : uses_[use].units) {
    units_[u].memory->Hide(use);
    const bool last = use == units_[u].uses.front();
    if (last && options_.reshard != Reshard::kAfterStep) units_[u].memory->Release();
  }
}

FullyShard::Whole::Whole(FullyShard& sharded) : sharded_(sharded) {
  const UserCall call("FullyShard::Whole");
  try {
    for (Unit& unit : sharded_.units_) {
      sharded_.GatherUnit(unit);
      unit.memory->Show(kWhole);
    }
  } catch (...) {
    for (Unit& unit : sharded_.units_) unit.memory->Hide(kWhole);
    throw;
  }
}

void FullyShard::Whole::Keep() {
  for (Unit& unit : sharded_.units_) unit.memory->KeepWritten();
}

FullyShard::Whole::~Whole() {
  for (Unit& unit : sharded_.units_) unit.memory->Hide(kWhole);
  try {
    Keep();
    for (Unit& unit : sharded_.units_) unit.memory->Release();
  } catch (const std::exception& e) {
    sharded_.GiveUp(StrCat("what was written to the whole weights is lost: ", e.what()));
  }
}

void FullyShard::GiveUp(const std::string& reason) noexcept {
  broken_ = reason;
  if (gather_) gather_->Abort(reason);
}

void FullyShard::CheckWeights(const std::string& when) {
  const UserCall call("CheckWeights");
  if (const NamedTensors buffers = module_.NamedBuffers(); control() && !buffers.empty()) {
    CheckSameBits(*control(), "the buffers " + when, buffers);
  }
  if (!replicate_) return;
  NamedTensors parts;
  for (const auto& p : parameters_) parts.emplace_back(p->name(), p->value().Detach());
  CheckSameBits(*replicate_, "the weights " + when, parts);
}

std::string FullyShard::LocateNonFinite(int64_t ago) {
  if (!control()) return "";
  const UserCall call("LocateNonFinite");
  int64_t bad = -1;
  for (int64_t p = 0; p < std::ssize(parameters_) && bad < 0; ++p) {
    for (const Unit& unit : units_) {
      if (unit.memory->WasNonFinite(*parameters_[p], ago)) bad = p;
    }
  }
  return NameByRank(*control(), bad, parameters_);
}

}  // namespace lockstep::dist
