#include "dist/process_group.h"

#include <numeric>
#include <utility>

#include "dist/control/control_plane.h"

namespace lockstep::dist {
namespace {

int64_t Sum(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

}  // namespace

ProcessGroup::ProcessGroup(int rank, int size, GroupOptions options,
                           std::shared_ptr<ControlPlane> control)
    : rank_(rank), size_(size), options_(std::move(options)), control_(std::move(control)) {
  LS_CHECK(size >= 1 && rank >= 0 && rank < size, "group '", options_.name, "': there is no rank ",
           rank, " among ", size);
  LS_CHECK(options_.timeout.count() > 0, "group '", options_.name,
           "': the timeout must be positive, got ", options_.timeout.count(), " ms");
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
  LS_CHECK(rank >= 0 && rank < size_, what, " in group '", name(), "': ", argument, " is rank ",
           rank, ", but there are ", size_, " ranks");
}

WorkPtr ProcessGroup::SubmitCollective(Call call, const std::string& purpose) {
  call.collective.sequence = NextSequence();
  call.purpose = purpose;
  return Submit(std::move(call));
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
  LS_CHECK(input.dtype() == output.dtype() && input.numel() == output.numel() * size_,
           "reduce_scatter in group '", name(), "': input must have ", size_,
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
  LS_CHECK(input.dtype() == output.dtype() && output.numel() == input.numel() * size_,
           "all_gather in group '", name(), "': output must have ", size_,
           " times the elements of input and its dtype; input is ", input.Describe(),
           ", output is ", output.Describe());
  Call call;
  call.collective = {CollectiveKind::kAllGather, ReduceOp::kSum, input.dtype(), 0, input.numel()};
  call.input = input;
  call.output = output;
  return SubmitCollective(std::move(call), purpose);
}

WorkPtr ProcessGroup::Broadcast(const Tensor& tensor, int root, const std::string& purpose) {
  CheckTensor("broadcast", "the tensor", tensor);
  CheckRank("broadcast", "the root", root);
  Call call;
  call.collective = {CollectiveKind::kBroadcast, ReduceOp::kSum, tensor.dtype(), root,
                     tensor.numel()};
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
    LS_CHECK(input.numel() == output.numel() && input.numel() % size_ == 0, "all_to_all in group '",
             name(), "': input and output must have the same multiple of ", size_,
             " elements, got ", input.numel(), " and ", output.numel(),
             "; pass counts for parts that differ");
    call.collective.count = input.numel() / size_;
    call.input_counts.assign(static_cast<size_t>(size_), call.collective.count);
    call.output_counts = call.input_counts;
  } else {
    call.input_counts.assign(input_counts.begin(), input_counts.end());
    call.output_counts.assign(output_counts.begin(), output_counts.end());
    for (const auto* counts : {&call.input_counts, &call.output_counts}) {
      LS_CHECK(static_cast<int>(counts->size()) == size_, "all_to_all in group '", name(),
               "': there must be ", size_, " counts for input and for output, got ",
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

}  // namespace lockstep::dist
