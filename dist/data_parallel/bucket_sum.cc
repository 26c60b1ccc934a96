#include "dist/data_parallel/bucket_sum.h"

#include <algorithm>

#include "core/slots.h"

namespace lockstep::dist {
namespace {

// Memory that grows to the largest bucket and is kept. A copy starts with none, so that copies of a
// hook can serve several ranks in one process.
class Staging {
 public:
  Staging() = default;
  Staging(const Staging&) {}
  Staging& operator=(const Staging&) = delete;

  Tensor Get(const Shape& shape, DType dtype, Device device) {
    int64_t numel = 1;
    for (int i = 0; i < shape.ndim(); ++i) numel *= shape[i];
    if (!memory_.defined() || memory_.numel() < numel || memory_.dtype() != dtype ||
        memory_.device() != device) {
      memory_ = Tensor::Empty({numel}, dtype, device);
    }
    return memory_.Slice(0, 0, numel).View(shape);
  }

 private:
  Tensor memory_;
};

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

// Exchanges terms in rounds: the first of all ranks, then the second of those that have two, ...
std::vector<WorkPtr> SumOrdered(ProcessGroup& group, std::span<const Tensor> terms,
                                const std::string& purpose, const FixedOrderPlan& plan,
                                Staging& staging) {
  const Tensor& sum = terms.back();
  CheckBucket(group, sum);
  const int64_t ranks = group.size(), shard = sum.numel() / ranks;
  const Tensor rows = staging.Get({plan.rows, shard}, sum.dtype(), sum.device());
  std::vector<WorkPtr> works;
  for (int64_t begin = 0; begin < plan.rows;) {
    const size_t round = works.size();
    std::vector<int64_t> take;
    for (const auto& rank : plan.ranks) take.push_back(round < rank.terms.size() ? shard : 0);
    const int64_t end = begin + ranks - std::ranges::count(take, 0);
    const Tensor to = rows.Slice(0, begin, end).View({(end - begin) * shard});
    if (end - begin == ranks) {
      works.push_back(group.AllToAll(terms[round], to, {}, {}, purpose));
    } else {
      const bool mine = round < terms.size();
      const std::vector<int64_t> give(ranks, mine ? shard : 0);
      works.push_back(
          group.AllToAll(mine ? terms[round] : sum.Slice(0, 0, 0), to, give, take, purpose));
    }
    begin = end;
  }
  for (const WorkPtr& work : works) work->Wait();
  AddRows(rows, plan.adds);
  works.push_back(Waited(group.AllGather(Row(rows, plan.sum), sum, purpose)));
  return works;
}

struct Bf16Staging {
  Staging sent, received, parts;
};

std::vector<WorkPtr> SumBf16(ProcessGroup& group, const Tensor& bucket, const std::string& purpose,
                             const std::vector<AddPair>& adds, Bf16Staging& s) {
  CheckBucket(group, bucket);
  const int64_t ranks = group.size(), n = bucket.numel();
  const Device device = bucket.device();
  const Tensor sent = s.sent.Get({n}, DType::kBF16, device);
  const Tensor received = s.received.Get({n}, DType::kBF16, device);
  const Tensor parts = s.parts.Get({ranks, n / ranks}, DType::kF32, device);
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

BucketSum OrderedSum(std::shared_ptr<const FixedOrderPlan> plan) {
  return
      [plan = std::move(plan), staging = Staging()](
          ProcessGroup& group, std::span<const Tensor> terms, const std::string& purpose) mutable {
        return SumOrdered(group, terms, purpose, *plan, staging);
      };
}

}  // namespace lockstep::dist
