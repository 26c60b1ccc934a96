#include "dist/process_group.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

#include "dist/call_observer.h"
#include "dist/content_hash.h"
#include "dist/control/control_plane.h"
#include "dist/user_call.h"

namespace lockstep::dist {
namespace {

int64_t Sum(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

}  // namespace

ProcessGroup::ProcessGroup(std::vector<int> members, GroupOptions options,
                           std::shared_ptr<ControlPlane> control)
    : members_(std::move(members)),
      rank_(IndexOf(members_, control->rank())),
      options_(std::move(options)),
      control_(std::move(control)) {
  LS_CHECK(rank_ >= 0 && members_.back() < control_->size(), "group '", options_.name, "' of ",
           ListRanks(members_), ": it must have rank ", control_->rank(), " of ", control_->size());
  LS_CHECK(options_.timeout.count() > 0, "group '", options_.name,
           "': the timeout must be positive, got ", options_.timeout.count(), " ms");
}

ProcessGroup::ProcessGroup(int size, int rank, GroupOptions options)
    : members_(AllRanks(size)), rank_(rank), options_(std::move(options)), control_(nullptr) {
  LS_CHECK(rank >= 0 && rank < size, "there is no rank ", rank, " of ", size);
}

void ProcessGroup::CheckTensor(const char* what, const char* argument, const Tensor& t) const {
  LS_CHECK(t.defined(), what, " in group '", name(), "': ", argument, " is undefined");
  LS_CHECK(t.device() == device(), what, " in group '", name(), "': ", argument, " is ",
           t.Describe(), ", but this group works on ", device());
  LS_CHECK(t.is_contiguous(), what, " in group '", name(), "': ", argument, ", ", t.Describe(),
           ", is not contiguous; pass Contiguous()");
  LS_CHECK(!t.requires_grad(), what, " in group '", name(), "': ", argument, ", ", t.Describe(),
           ", requires a gradient, which would be lost; pass Detach()");
}

void ProcessGroup::CheckReduction(const char* what, const Tensor& t) const {
  const DType d = t.dtype();
  LS_CHECK(d != DType::kF8E4M3 && d != DType::kF8E5M2 && d != DType::kBool, what, " in group '",
           name(), "': ", d, " cannot be reduced; convert it to f32, bf16 or u8");
}

void ProcessGroup::CheckRank(const char* what, const char* argument, int rank) const {
  LS_CHECK(rank >= 0 && rank < size(), what, " in group '", name(), "': ", argument, " is rank ",
           rank, ", but there are ", size(), " ranks");
}

WorkPtr ProcessGroup::SubmitCollective(Call call, const std::string& purpose) {
  call.collective.sequence = NextSequence();
  const bool leaves = call.collective.kind == CollectiveKind::kLeave;
  call.purpose = leaves ? purpose : WithUserCall(purpose);
  CallObserver* const observer = ObserveCalls::observer();
  if (observer == nullptr || !call.output.defined()) return Submit(std::move(call));
  const Collective collective = call.collective;
  const Tensor input = call.input, output = call.output;
  const std::string of = call.purpose;
  observer->OnCall(name(), collective, of, input.defined() ? input : output);
  const WorkPtr work = Submit(std::move(call));
  work->Synchronize();
  observer->OnResult(name(), collective, output);
  return work;
}

WorkPtr ProcessGroup::Leave() {
  Call call;
  call.collective.kind = CollectiveKind::kLeave;
  return SubmitCollective(std::move(call));
}

WorkPtr ProcessGroup::AllReduce(const Tensor& tensor, ReduceOp op, const std::string& purpose) {
  CheckTensor("all_reduce", "the tensor", tensor);
  CheckReduction("all_reduce", tensor);
  Call call;
  call.collective = {CollectiveKind::kAllReduce, op, tensor.dtype(), 0, tensor.numel()};
  call.output = tensor;
  return SubmitCollective(std::move(call), purpose);
}

WorkPtr ProcessGroup::ReduceScatter(const Tensor& input, const Tensor& output, ReduceOp op,
                                    const std::string& purpose) {
  CheckTensor("reduce_scatter", "input", input);
  CheckTensor("reduce_scatter", "output", output);
  CheckReduction("reduce_scatter", input);
  LS_CHECK(input.dtype() == output.dtype() && input.numel() == output.numel() * size(),
           "reduce_scatter in group '", name(), "': input must have ", size(),
           " times the elements of output and its dtype; input is ", input.Describe(),
           ", output is ", output.Describe());
  Call call;
  call.collective = {CollectiveKind::kReduceScatter, op, input.dtype(), 0, output.numel()};
  call.input = input;
  call.output = output;
  return SubmitCollective(std::move(call), purpose);
}

WorkPtr ProcessGroup::AllGather(const Tensor& input, const Tensor& output,
                                const std::string& purpose) {
  CheckTensor("all_gather", "input", input);
  CheckTensor("all_gather", "output", output);
  LS_CHECK(input.dtype() == output.dtype() && output.numel() == input.numel() * size(),
           "all_gather in group '", name(), "': output must have ", size(),
           " times the elements of input and its dtype; input is ", input.Describe(),
           ", output is ", output.Describe());
  Call call;
  call.collective = {CollectiveKind::kAllGather, ReduceOp::kSum, input.dtype(), 0, input.numel()};
  call.input = input;
  call.output = output;
  return SubmitCollective(std::move(call), purpose);
}

void ProcessGroup::BumpVersions(const Call& call) const {
  const bool only_read = call.collective.kind == CollectiveKind::kBroadcast && call.root == rank();
  if (call.output.defined() && !only_read) call.output.storage().BumpVersion();
  for (const Transfer& t : call.transfers) {
    if (t.direction == Transfer::Direction::kReceive) t.tensor.storage().BumpVersion();
  }
}

WorkPtr ProcessGroup::Broadcast(const Tensor& tensor, int root, const std::string& purpose) {
  CheckTensor("broadcast", "the tensor", tensor);
  CheckRank("broadcast", "the root", root);
  Call call;
  call.collective = {CollectiveKind::kBroadcast, ReduceOp::kSum, tensor.dtype(),
                     members_[static_cast<size_t>(root)], tensor.numel()};
  call.root = root;
  call.output = tensor;
  return SubmitCollective(std::move(call), purpose);
}

WorkPtr ProcessGroup::AllToAll(const Tensor& input, const Tensor& output,
                               std::span<const int64_t> input_counts,
                               std::span<const int64_t> output_counts, const std::string& purpose) {
  CheckTensor("all_to_all", "input", input);
  CheckTensor("all_to_all", "output", output);
  LS_CHECK(input.dtype() == output.dtype(), "all_to_all in group '", name(), "': input is ",
           input.Describe(), " and output ", output.Describe(), "; their dtypes must be equal");
  Call call;
  call.collective = {CollectiveKind::kAllToAll, ReduceOp::kSum, input.dtype(), 0, -1};
  call.input = input;
  call.output = output;
  if (input_counts.empty() && output_counts.empty()) {
    LS_CHECK(input.numel() == output.numel() && input.numel() % size() == 0,
             "all_to_all in group '", name(), "': input and output must have the same multiple of ",
             size(), " elements, got ", input.numel(), " and ", output.numel(),
             "; pass counts for parts that differ");
    call.collective.count = input.numel() / size();
    call.input_counts.assign(static_cast<size_t>(size()), call.collective.count);
    call.output_counts = call.input_counts;
  } else {
    call.input_counts.assign(input_counts.begin(), input_counts.end());
    call.output_counts.assign(output_counts.begin(), output_counts.end());
    for (const auto* counts : {&call.input_counts, &call.output_counts}) {
      LS_CHECK(static_cast<int>(counts->size()) == size(), "all_to_all in group '", name(),
               "': there must be ", size(), " counts for input and for output, got ",
               input_counts.size(), " and ", output_counts.size());
      for (const int64_t n : *counts) {
        LS_CHECK(n >= 0, "all_to_all in group '", name(), "': a count is negative: ", n);
      }
    }
    LS_CHECK(Sum(call.input_counts) == input.numel() && Sum(call.output_counts) == output.numel(),
             "all_to_all in group '", name(), "': the counts add up to ", Sum(call.input_counts),
             " and ", Sum(call.output_counts), ", but input has ", input.numel(),
             " elements and output ", output.numel());
    const auto self = static_cast<size_t>(rank_);
    LS_CHECK(call.input_counts[self] == call.output_counts[self], "all_to_all in group '", name(),
             "': rank ", rank_, " sends ", call.input_counts[self],
             " elements to itself and takes ", call.output_counts[self]);
  }
  return SubmitCollective(std::move(call), purpose);
}

WorkPtr ProcessGroup::Exchange(std::vector<Transfer> transfers, const std::string& purpose) {
  for (const Transfer& t : transfers) {
    CheckTensor("exchange",
                t.direction == Transfer::Direction::kSend ? "what is sent" : "what is received",
                t.tensor);
    CheckRank("exchange", "the peer", t.peer);
    LS_CHECK(t.peer != rank_, "exchange in group '", name(), "': rank ", rank_,
             " cannot send to, or receive from, itself; copy the tensor");
  }
  Call call;
  call.collective.kind = CollectiveKind::kExchange;
  // Other ranks may have different transfers, or none, so exchanges have their own numbers.
  call.collective.sequence = ++exchanges_;
  call.transfers = std::move(transfers);
  call.purpose = purpose;
  return Submit(std::move(call));
}

WorkPtr ProcessGroup::Send(const Tensor& tensor, int peer, const std::string& purpose) {
  return Exchange({{Transfer::Direction::kSend, tensor, peer}}, purpose);
}

WorkPtr ProcessGroup::Receive(const Tensor& tensor, int peer, const std::string& purpose) {
  return Exchange({{Transfer::Direction::kReceive, tensor, peer}}, purpose);
}

WorkPtr ProcessGroup::Barrier() { return SubmitCollective({}); }

std::shared_ptr<ProcessGroup> ProcessGroup::Split(const std::string& name,
                                                  const std::vector<int>& ranks, int most_blocks) {
  LS_CHECK(std::is_sorted(ranks.begin(), ranks.end(), std::less_equal<int>()) &&
               IndexOf(ranks, rank_) >= 0 && ranks.front() >= 0 && ranks.back() < size(),
           "splitting group '", this->name(), "' into '", name, "': ", ListRanks(ranks),
           " must be some of its ", size(), " ranks, ascending, with rank ", rank_, " among them");
  std::vector<int> members;
  for (const int r : ranks) members.push_back(members_[static_cast<size_t>(r)]);
  const auto hash = static_cast<int64_t>(HashBytes(std::as_bytes(std::span(members))));
  // Also ends the operations in progress, as NCCL's split needs.
  const Tensor mine = Tensor::FromVector<int64_t>({hash, std::ssize(members)}, {2}).To(device());
  const Tensor all = Tensor::Zeros({size(), 2}, DType::kI64, device());
  AllGather(mine, all, "a split of the group")->Synchronize();
  const std::vector<int64_t> values = all.ToVector<int64_t>();
  std::map<int64_t, int64_t> count;  // of the ranks that name the same part
  for (size_t r = 0; r < members_.size(); ++r) ++count[values[2 * r]];
  std::vector<int> wrong;
  for (size_t r = 0; r < members_.size(); ++r) {
    if (count[values[2 * r]] != values[2 * r + 1]) wrong.push_back(members_[r]);
  }
  if (!wrong.empty()) {
    try {
      Barrier()->Synchronize();  // all ranks throw, once all have found out
    } catch (const Error&) {
    }
    throw ArgumentError(StrCat("splitting group '", this->name(), "': ", ListRanks(wrong),
                               " name parts that some of their own ranks do not name"));
  }
  GroupOptions options = options_;
  options.name = name;
  options.most_blocks = most_blocks;
  return MakePart(std::move(members), options);
}

std::shared_ptr<ProcessGroup> ProcessGroup::Duplicate(const std::string& name) {
  return Split(name, AllRanks(size()));
}

std::vector<int> EveryNth(const ProcessGroup& group, int64_t step) {
  std::vector<int> ranks;
  for (int64_t r = group.rank() % step; r < group.size(); r += step) {
    ranks.push_back(static_cast<int>(r));
  }
  return ranks;
}

}  // namespace lockstep::dist
