#include "dist/expert/expert_parallel.h"

#include <algorithm>

#include "dist/expert/expert_exchange.h"
#include "dist/groups/agreement.h"
#include "dist/user_call.h"
#include "nn/state.h"

namespace lockstep::dist {
namespace {

// Those of one of the two kinds.
Parameters Only(bool experts, Parameters parameters) {
  std::erase_if(parameters,
                [experts](const auto& p) { return IsOfDistributedExperts(*p) != experts; });
  return parameters;
}

// The weights of one of the two kinds; what is no parameter is whole.
NamedTensors StateOf(const Module& module, bool experts) {
  NamedTensors some;
  for (const auto& [name, p] : module.NamedParameters()) {
    if (IsOfDistributedExperts(*p) == experts) some.emplace_back(name, p->value().Detach());
  }
  if (experts) return some;
  for (const auto& [name, buffer] : module.NamedBuffers()) some.emplace_back(name, buffer);
  return some;
}

void CopyFirst(ProcessGroup& group, const NamedTensors& state) {
  std::vector<Tensor> tensors;
  for (const auto& [name, tensor] : state) tensors.push_back(tensor);
  BroadcastTensors(group, tensors);
}

// Returns the group after the checks and copies, which must precede the reducers.
ProcessGroup* Aligned(ProcessGroup* data, ProcessGroup* copies, const Module& module) {
  LS_CHECK(data != nullptr && data->size() % SizeOf(copies) == 0,
           "ExpertParallel needs the group of all data ranks, of which `copies` is a part");
  const int64_t experts = data->size() / SizeOf(copies);
  LS_CHECK(!copies || copies->rank() == data->rank() / experts, "ExpertParallel: rank ",
           data->rank(), " of ", data->size(), " must be rank ", data->rank() / experts,
           " of those that have the same experts, and is ", RankIn(copies),
           ": ranks that split the experts must be neighbours");
  for (const auto& p : Only(/*experts=*/true, module.Parameters())) {
    // Ranks that compute a sequence together have neighbouring parts.
    const ShardCut& cut = p->layout().cuts.back();
    const int64_t of_sequence = cut.parts / experts;
    LS_CHECK(of_sequence * experts == cut.parts && cut.part / of_sequence == data->rank() % experts,
             "ExpertParallel: '", p->name(), "' is part ", cut.part, " of ", cut.parts,
             ", and rank ", data->rank(), " of ", data->size(), " with ", SizeOf(copies),
             " copies needs part ", data->rank() % experts, " of ", experts,
             ": give ShareExperts the axis ep of the mesh");
  }
  LS_CHECK(!Only(true, module.Parameters()).empty(),
           "ExpertParallel: no experts are split across ranks: call ShareExperts before, or use "
           "DataParallel");
  CheckSameShape(*data, module);
  CopyFirst(*data, StateOf(module, false));
  if (copies) CopyFirst(*copies, StateOf(module, true));
  return data;
}

ReducerOptions OptionsOf(ReducerOptions options, const ProcessGroup& data,
                         const ProcessGroup* copies, bool experts) {
  const int64_t groups = SizeOf(copies), size = data.size() / groups;
  if (options.micro_batches == 0) options.micro_batches = data.size();
  options.assignment = AssignForExperts(options.micro_batches, data.size(), size,
                                        options.sum == GradientSum::kOrdered);
  options.is_part = true;  // either half may be frozen
  if (!experts) return options;
  if (options.on_span) {
    options.on_span = [on_span = std::move(options.on_span)](CommunicationSpan span) {
      span.of_experts = true;
      on_span(span);
    };
  }
  options.micro_batches /= size;
  options.assignment.clear();  // the sum's own
  return options;
}

}  // namespace

Assignment AssignForExperts(int64_t micro_batches, int64_t ranks, int64_t experts, bool ordered) {
  LS_CHECK(experts >= 1 && ranks % experts == 0 && micro_batches % ranks == 0, "a step of ",
           micro_batches, " micro-batches on ", ranks, " ranks, of which ", experts,
           " split the experts, gives ranks different numbers of them: use multiples "
           "(train.grad_accum, or train.global_batch_size)");
  const int64_t stride = micro_batches / experts;
  const auto assign = ordered ? AssignSubtrees : AssignInTurn;
  Assignment all;
  for (const std::vector<int64_t>& of_group : assign(stride, ranks / experts)) {
    for (int64_t s = 0; s < experts; ++s) {
      std::vector<int64_t>& mine = all.emplace_back(of_group);
      for (int64_t& m : mine) m += s * stride;
    }
  }
  return all;
}

ExpertParallel::ExpertParallel(ProcessGroup* data, ProcessGroup* copies, Module& module,
                               ReducerOptions options, std::shared_ptr<ProcessGroup> control)
    : DataRanks(Aligned(data, copies, module), std::move(control)),
      copies_(copies),
      module_(module),
      whole_(MakeWhole(*data, copies, module, options)),
      experts_(copies, Only(true, module.Parameters()), OptionsOf(options, *data, copies, true)) {}

Reducer ExpertParallel::MakeWhole(ProcessGroup& data, ProcessGroup* copies, Module& module,
                                  ReducerOptions options) {
  const int64_t micro_batches = std::max<int64_t>(options.micro_batches, data.size());
  options.tied = TiedApart(module, options.sum, micro_batches);
  return Reducer(&data, Only(false, GradientParameters(module)),
                 OptionsOf(std::move(options), data, copies, false));
}

BackwardObserver* ExpertParallel::ObserveOnlyGiven() {
  StopObserving(&whole_, GradientParameters(module_));
  StopObserving(&experts_, module_.Parameters());
  return this;
}

void ExpertParallel::OnBegin(const BackwardPlan& plan) {
  whole_.OnBegin(plan);
  experts_.OnBegin(plan);
}

void ExpertParallel::OnLeafReady(Leaf& leaf) {
  whole_.OnLeafReady(leaf);
  experts_.OnLeafReady(leaf);
}

void ExpertParallel::OnEnd() {
  whole_.OnEnd();
  experts_.OnEnd();
}

void ExpertParallel::OnError() noexcept {
  whole_.OnError();
  experts_.OnError();
}

void ExpertParallel::BeginMicroBatch(bool last) {
  whole_no_sync_.reset();
  experts_no_sync_.reset();
  if (last) return;
  whole_no_sync_.emplace(whole_);
  experts_no_sync_.emplace(experts_);
}

const CommunicationTimes& ExpertParallel::times() const {
  times_ = whole_.times();
  const CommunicationTimes& of_experts = experts_.times();
  times_.communication_ms += of_experts.communication_ms;
  times_.overlapped_ms += of_experts.overlapped_ms;
  times_.exposed_ms += of_experts.exposed_ms;
  times_.receiving_ms += of_experts.receiving_ms;
  return times_;
}

std::string ExpertParallel::LocateNonFinite(int64_t ago) {
  const std::string of_whole = whole_.LocateNonFinite(ago);
  const std::string of_experts = experts_.LocateNonFinite(ago, *whole_.group());
  return StrCat(of_whole, of_whole.empty() || of_experts.empty() ? "" : ", ", of_experts);
}

void ExpertParallel::CheckWeights(const std::string& when) {
  const UserCall call("CheckWeights");
  CheckSameBits(*control(), "the weights " + when, StateOf(module_, false));
  if (copies_) CheckSameBits(*copies_, "the weights of experts " + when, StateOf(module_, true));
}

}  // namespace lockstep::dist
