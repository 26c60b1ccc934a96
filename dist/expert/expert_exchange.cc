#include "dist/expert/expert_exchange.h"

#include <algorithm>
#include <ranges>
#include <vector>

#include "dist/groups/agreement.h"
#include "kernels/global_norm/global_norm.h"

namespace lockstep::dist {
namespace {

constexpr int64_t kChunk = kGradNormChunk;

// Where chunks of the norm lie in what all ranks of the axis have together of a parameter, which
// consists of virtual parts with chunks of their own.
class Chunks {
 public:
  Chunks(const Parameter& parameter, const PartsAxis::VirtualParts& parts)
      : part_(parameter.logical_shape().numel() / parts.all), parts_(parts) {}

  int64_t all() const { return parts_.own * part_; }
  int64_t part() const { return part_; }
  int64_t PartEnd(int64_t at) const { return (at / part_ + 1) * part_; }
  // The bounds of the chunk that contains element `at`.
  int64_t Begin(int64_t at) const { return at - at % part_ % kChunk; }
  int64_t End(int64_t at) const { return std::min(Begin(at) + kChunk, PartEnd(at)); }
  // Its number in the whole parameter.
  int64_t Index(int64_t at) const {
    return (parts_.first + at / part_) * GradNormChunks(part_) + at % part_ / kChunk;
  }

 private:
  const int64_t part_;
  const PartsAxis::VirtualParts parts_;
};

}  // namespace

bool IsOfDistributedExperts(const Parameter& parameter) {
  return std::ranges::any_of(parameter.layout().cuts,
                             [](const ShardCut& cut) { return cut.axis == "ep"; });
}

void ExpertExchange::Cut(const std::shared_ptr<MeshParts>& parts, Parameter& parameter) {
  ShardLayout layout = parameter.layout();
  layout.range.reset();  // of a rank that does not hold it
  const int64_t experts = layout.PartShape(parameter.logical_shape())[0], size = ranks_->size();
  LS_CHECK(experts % size == 0, "the ", size, " expert-parallel ranks (parallel.ep) must divide ",
           "the ", experts, " experts of '", parameter.name(), "'",
           layout.cuts.empty() ? " (model.n_expert)" : " that a tensor-parallel rank has");
  cut_.insert(&parameter);
  if (!parts->Holds(parameter)) return;
  const bool of_sequence = sequence_ && sequence_->size() == size;
  layout.cuts.push_back({.axis = of_sequence ? "cp" : "ep",
                         .dim = 0,
                         .parts = size,
                         .part = ranks_->rank(),
                         .segments = {}});
  parameter.SetLayout(std::move(layout), parts);
}

std::pair<int64_t, int64_t> ExpertExchange::CopyOf(const Parameter& parameter) const {
  if (!joins_ranges_) return PartsAxis::CopyOf(parameter);
  if (Divides(parameter) || !sequence_) return {0, 1};
  return {sequence_->rank(), sequence_->size()};
}

void ExpertExchange::Sum(const Tensor& values) {
  if (!joins_ranges_) return PartsAxis::Sum(values);
  if (!sequence_) return;
  sequence_->AllReduce(values, ReduceOp::kSum, "the sums of a gradient norm")->Wait();
}

Tensor ExpertExchange::Gather(const Parameter&, const Tensor& part) {
  Shape shape = part.shape();
  shape[0] *= ranks_->size();
  return GatherTensors(*ranks_, part, "the whole of a parameter").View(shape);
}

// Ranges begin where the rank's part has chunks: there the parameter must have them, too.
bool ExpertExchange::TakesRanges(const Parameter& parameter, const VirtualParts& parts) const {
  const Chunks chunks(parameter, parts);
  const int64_t own = chunks.all() / ranks_->size();
  return own % kChunk == 0 && chunks.part() % own == 0;
}

// Some chunks lie across the ends of ranks' parts: these are brought together, and come from the
// rank that has their first element.
void ExpertExchange::ForEachRun(const Parameter& parameter, const VirtualParts& parts,
                                const Tensor& values, int64_t from, const AddRun& add) {
  const Chunks chunks(parameter, parts);
  const int64_t all = chunks.all(), own = all / ranks_->size();
  const int64_t begin = ranks_->rank() * own + from, end = begin + values.numel();
  const Tensor mine = values.View({values.numel()});
  std::vector<int64_t> across;  // where such chunks begin; there are none if `values` is a range
  for (int64_t at = own; at < all; at += own) {
    const int64_t chunk = chunks.Begin(at);
    if (chunk < at && (across.empty() || across.back() < chunk)) across.push_back(chunk);
  }
  int64_t first = begin, last = end;
  if (!across.empty() && chunks.Begin(begin) < begin) first = std::min(chunks.End(begin), end);
  if (!across.empty() && end < all) last = std::max(first, chunks.Begin(end));
  while (first < last) {
    const int64_t to = std::min(chunks.PartEnd(first), last);
    add(chunks.Index(first), mine.Slice(0, first - begin, to - begin));
    first = to;
  }
  if (across.empty()) return;
  const Tensor together =
      Tensor::Zeros({std::ssize(across) * kChunk}, values.dtype(), values.device());
  const auto place = [&](size_t i, int64_t to, int64_t until) {
    const int64_t shift = static_cast<int64_t>(i) * kChunk - across[i];
    return together.Slice(0, to + shift, until + shift);
  };
  for (size_t i = 0; i < across.size(); ++i) {
    const int64_t to = std::max(begin, across[i]), until = std::min(end, chunks.End(across[i]));
    if (to < until) place(i, to, until).CopyFrom(mine.Slice(0, to - begin, until - begin));
  }
  ranks_->AllReduce(together, ReduceOp::kSum, "chunks of a gradient across ranks")->Wait();
  for (size_t i = 0; i < across.size(); ++i) {
    if (across[i] < begin || across[i] >= end) continue;
    add(chunks.Index(across[i]), place(i, across[i], chunks.End(across[i])));
  }
}

}  // namespace lockstep::dist
