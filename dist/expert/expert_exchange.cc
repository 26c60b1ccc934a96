#include "dist/expert/expert_exchange.h"

#include <algorithm>
#include <vector>

#include "kernels/global_norm/global_norm.h"

namespace lockstep::dist {

void ExpertExchange::Cut(const std::shared_ptr<MeshParts>& parts, Parameter& parameter) {
  const int64_t experts = parameter.logical_shape()[0], size = ranks_->size();
  LS_CHECK(experts % size == 0, "the ", size, " expert-parallel ranks (parallel.ep) must divide ",
           "the ", experts, " experts of '", parameter.name(), "' (model.n_expert)");
  ShardLayout layout;
  layout.cuts.push_back(
      {.axis = "ep", .dim = 0, .parts = size, .part = ranks_->rank(), .segments = {}});
  parameter.SetLayout(std::move(layout), parts);
  cut_.insert(&parameter);
}

Tensor ExpertExchange::Gather(const Parameter& parameter, const Tensor& part) {
  const Tensor whole = Tensor::Empty(parameter.logical_shape(), part.dtype(), part.device());
  const Tensor mine = part.Detach().Contiguous();
  ranks_
      ->AllGather(mine.View({mine.numel()}), whole.View({whole.numel()}),
                  "the whole of a parameter")
      ->Wait();
  return whole;
}

// The chunks are those of the whole gradient, of which some lie across the ends of parts: these are
// brought together, and come from the rank that has their first element.
void ExpertExchange::ForEachRun(const Parameter& parameter, const Tensor& grad, const AddRun& add) {
  constexpr int64_t kChunk = kGradNormChunk;
  const int64_t all = parameter.logical_shape().numel(), own = all / ranks_->size();
  const int64_t begin = ranks_->rank() * own, end = begin + own;
  const Tensor mine = grad.View({own});
  const int64_t first = std::min((begin + kChunk - 1) / kChunk * kChunk, end);
  const int64_t last = end == all ? end : std::max(first, end / kChunk * kChunk);
  if (first < last) add(first / kChunk, mine.Slice(0, first - begin, last - begin));
  std::vector<int64_t> across;  // where such chunks begin
  for (int64_t at = own; at < all; at += own) {
    const int64_t chunk = at / kChunk * kChunk;
    if (chunk < at && (across.empty() || across.back() < chunk)) across.push_back(chunk);
  }
  if (across.empty()) return;
  const Tensor chunks = Tensor::Zeros({std::ssize(across) * kChunk}, grad.dtype(), grad.device());
  const auto place = [&](size_t i, int64_t from, int64_t to) {
    const int64_t shift = static_cast<int64_t>(i) * kChunk - across[i];
    return chunks.Slice(0, from + shift, to + shift);
  };
  for (size_t i = 0; i < across.size(); ++i) {
    const int64_t from = std::max(begin, across[i]), to = std::min(end, across[i] + kChunk);
    if (from < to) place(i, from, to).CopyFrom(mine.Slice(0, from - begin, to - begin));
  }
  ranks_->AllReduce(chunks, ReduceOp::kSum, "chunks of a gradient across ranks")->Wait();
  for (size_t i = 0; i < across.size(); ++i) {
    if (across[i] < begin || across[i] >= end) continue;
    const int64_t to = std::min(all, across[i] + kChunk);
    add(across[i] / kChunk, place(i, across[i], to));
  }
}

}  // namespace lockstep::dist
