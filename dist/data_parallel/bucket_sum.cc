#include "dist/data_parallel/bucket_sum.h"

#include "core/slots.h"

namespace lockstep::dist {
namespace {

// Memory that grows to the largest bucket, and stays. Copies have their own, so that copies of a
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
               "a bucket ", bucket.Describe(), " for ", group.size(), " ranks");
}

// The operation, ordered before what follows.
WorkPtr Waited(WorkPtr work) {
  work->Wait();
  return work;
}

std::vector<WorkPtr> SumOrdered(ProcessGroup& group, const Tensor& bucket,
                                const std::vector<AddPair>& adds, Staging& staging) {
  CheckBucket(group, bucket);
  const int64_t ranks = group.size();
  const Tensor parts =
      staging.Get({ranks, bucket.numel() / ranks}, bucket.dtype(), bucket.device());
  const WorkPtr exchange = Waited(group.AllToAll(bucket, parts.View({bucket.numel()})));
  AddRows(parts, adds);
  return {exchange, Waited(group.AllGather(Row(parts, 0), bucket))};
}

struct Bf16Staging {
  Staging sent, received, parts;
};

std::vector<WorkPtr> SumBf16(ProcessGroup& group, const Tensor& bucket,
                             const std::vector<AddPair>& adds, Bf16Staging& s) {
  CheckBucket(group, bucket);
  const int64_t ranks = group.size(), n = bucket.numel();
  const Device device = bucket.device();
  const Tensor sent = s.sent.Get({n}, DType::kBF16, device);
  const Tensor received = s.received.Get({n}, DType::kBF16, device);
  const Tensor parts = s.parts.Get({ranks, n / ranks}, DType::kF32, device);
  sent.CopyFrom(bucket);
  const WorkPtr exchange = Waited(group.AllToAll(sent, received));
  parts.CopyFrom(received.View(parts.shape()));
  AddRows(parts, adds);
  const Tensor mine = received.Slice(0, 0, n / ranks);
  mine.CopyFrom(Row(parts, 0));
  const WorkPtr gather = Waited(group.AllGather(mine, sent));
  bucket.CopyFrom(sent);
  return {exchange, gather};
}

}  // namespace

BucketHook LibrarySum() {
  return [](ProcessGroup& group, const Tensor& bucket) {
    return std::vector{Waited(group.AllReduce(bucket))};
  };
}

BucketHook OrderedSum(const FixedOrder& order) {
  return [adds = order.rank_adds(), staging = Staging()](ProcessGroup& group,
                                                         const Tensor& bucket) mutable {
    return SumOrdered(group, bucket, adds, staging);
  };
}

BucketHook Bf16Sum() {
  return [staging = Bf16Staging()](ProcessGroup& group, const Tensor& bucket) mutable {
    if (bucket.dtype() != DType::kF32) return std::vector{Waited(group.AllReduce(bucket))};
    return SumBf16(group, bucket, FixedOrderAdds(group.size()), staging);
  };
}

}  // namespace lockstep::dist
