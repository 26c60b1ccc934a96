#include "dist/data_parallel/bucket_sum.h"

#include <algorithm>

#include "core/meta_memory.h"
#include "core/slots.h"

namespace lockstep::dist {
namespace {

// `memory`, grown to hold the shape: for memory that is kept, of the size of the largest bucket.
Tensor Grown(Tensor& memory, const Shape& shape, DType dtype, Device device) {
  const int64_t numel = shape.numel();
  if (!memory.defined() || memory.numel() < numel || memory.dtype() != dtype ||
      memory.device() != device) {
    const MetaMemoryLabel label("buckets");
    memory = Tensor::Empty({numel}, dtype, device);
  }
  return memory.Slice(0, 0, numel).View(shape);
}

Tensor Row(const Tensor& rows, int64_t r) { return rows.Slice(0, r, r + 1).View({rows.dim(1)}); }

void AddRows(const Tensor& rows, const std::vector<AddPair>& adds) {
  const Stream stream = CurrentStream(rows.device());
  for (const auto& [to, from] : adds) accumulate_slot(stream, Row(rows, from), Row(rows, to));
}

void CheckBucket(const ProcessGroup& group, const Tensor& bucket) {
  LS_INVARIANT(bucket.ndim() == 1 && bucket.is_contiguous() && bucket.numel() % group.size() == 0,
               "the bucket ", bucket.Describe(), " does not divide among ", group.size(), " ranks");
}

// Orders subsequent work after the operation, and returns it.
WorkPtr Waited(WorkPtr work) {
  work->Wait();
  return work;
}

// A copy starts without memory, so that copies of a hook can serve several ranks in one process.
struct Bf16Staging {
  Bf16Staging() = default;
  Bf16Staging(const Bf16Staging&) {}
  Bf16Staging& operator=(const Bf16Staging&) = delete;
  Tensor sent, received, parts;
};

std::vector<WorkPtr> SumBf16(ProcessGroup& group, const Tensor& bucket, const std::string& purpose,
                             const std::vector<AddPair>& adds, Bf16Staging& s) {
  CheckBucket(group, bucket);
  const int64_t ranks = group.size(), n = bucket.numel();
  const Device device = bucket.device();
  const Tensor sent = Grown(s.sent, {n}, DType::kBF16, device);
  const Tensor received = Grown(s.received, {n}, DType::kBF16, device);
  const Tensor parts = Grown(s.parts, {ranks, n / ranks}, DType::kF32, device);
  sent.CopyFrom(bucket);
  const WorkPtr exchange = Waited(group.AllToAll(sent, received, {}, {}, purpose));
  parts.CopyFrom(received.View(parts.shape()));
  AddRows(parts, adds);
  const Tensor mine = received.Slice(0, 0, n / ranks);
  mine.CopyFrom(Row(parts, 0));
  const WorkPtr gather = Waited(group.AllGather(mine, sent, purpose));
  bucket.CopyFrom(sent);
  return {exchange, gather};
}

}  // namespace

BucketHook LibrarySum() {
  return [](ProcessGroup& group, const Tensor& bucket, const std::string& purpose) {
    return std::vector{Waited(group.AllReduce(bucket, ReduceOp::kSum, purpose))};
  };
}

BucketHook Bf16Sum() {
  return [staging = Bf16Staging()](ProcessGroup& group, const Tensor& bucket,
                                   const std::string& purpose) mutable {
    if (bucket.dtype() != DType::kF32)
      return std::vector{Waited(group.AllReduce(bucket, ReduceOp::kSum, purpose))};
    return SumBf16(group, bucket, purpose, FixedOrderAdds(group.size()), staging);
  };
}

// Exchanges terms in rounds: the first of all ranks, then the second of those that have two, ...
Tensor OrderedScatter::operator()(ProcessGroup& group, std::span<const Tensor> terms,
                                  const std::string& purpose, std::vector<WorkPtr>& works) {
  const Tensor& last = terms.back();
  CheckBucket(group, last);
  const FixedOrderPlan& plan = *plan_;
  const int64_t ranks = group.size(), shard = last.numel() / ranks;
  const Tensor rows = Grown(staging_, {plan.rows, shard}, last.dtype(), last.device());
  std::vector<WorkPtr> exchanges;
  for (int64_t begin = 0; begin < plan.rows;) {
    const size_t round = exchanges.size();
    std::vector<int64_t> take;
    for (const auto& rank : plan.ranks) take.push_back(round < rank.terms.size() ? shard : 0);
    const int64_t end = begin + ranks - std::ranges::count(take, 0);
    const Tensor to = rows.Slice(0, begin, end).View({(end - begin) * shard});
    if (end - begin == ranks) {
      exchanges.push_back(group.AllToAll(terms[round], to, {}, {}, purpose));
    } else {
      const bool mine = round < terms.size();
      const std::vector<int64_t> give(ranks, mine ? shard : 0);
      exchanges.push_back(
          group.AllToAll(mine ? terms[round] : last.Slice(0, 0, 0), to, give, take, purpose));
    }
    begin = end;
  }
  for (const WorkPtr& work : exchanges) work->Wait();
  works.insert(works.end(), exchanges.begin(), exchanges.end());
  AddRows(rows, plan.adds);
  return Row(rows, plan.sum);
}

BucketSum OrderedSum(std::shared_ptr<const FixedOrderPlan> plan) {
  return
      [scatter = OrderedScatter(std::move(plan))](
          ProcessGroup& group, std::span<const Tensor> terms, const std::string& purpose) mutable {
        std::vector<WorkPtr> works;
        const Tensor shard = scatter(group, terms, purpose, works);
        works.push_back(Waited(group.AllGather(shard, terms.back(), purpose)));
        return works;
      };
}

}  // namespace lockstep::dist
