#include "dist/tensor/partial_sums.h"

#include <bit>

#include "core/slots.h"
#include "dist/groups/agreement.h"

namespace lockstep::dist {
namespace {

Tensor AddInPairs(int64_t begin, int64_t n, const std::function<Tensor(int64_t i)>& tensor) {
  if (n == 1) return tensor(begin);
  const auto half = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(n - 1)));
  Tensor sum = AddInPairs(begin, half, tensor);
  const Tensor other = AddInPairs(begin + half, n - half, tensor);
  sum.storage().BumpVersion();
  if (sum.numel() > 0) accumulate_slot(CurrentStream(sum.device()), other, sum);
  return sum;
}

// A rank's part of the sequence.
Shape PartOf(Shape whole, int64_t size) {
  LS_CHECK(whole[1] % size == 0, "tensor parallelism: a sequence of ", whole[1],
           " tokens does not divide into ", size, " parts");
  whole[1] /= size;
  return whole;
}

// Row r of x [size, ...], in a part's shape.
Tensor RowOf(const Tensor& x, int64_t r, const Shape& part) {
  return x.Slice(0, r, r + 1).View(part);
}

// The parts of the sequence one after the other, [size, elements of a part].
Tensor ByRank(const Tensor& sum, int64_t size, const Shape& part, DType dtype) {
  const Tensor parts = Tensor::Empty({size, part.numel()}, dtype, sum.device());
  for (int64_t r = 0; r < size; ++r) {
    RowOf(parts, r, part).CopyFrom(sum.Slice(1, r * part[1], (r + 1) * part[1]));
  }
  return parts;
}

class OrderedSums : public PartialSums {
 public:
  explicit OrderedSums(ProcessGroup* group) : group_(group), size_(SizeOf(group)) {}

  DType TypeOf(DType dtype) const override { return AccumulationDType(dtype); }

  Tensor Scatter(const Tensor& sum, DType dtype) const override {
    const Shape part = PartOf(sum.shape(), size_);
    const Tensor send = ByRank(sum, size_, part, sum.dtype()), got = Tensor::EmptyLike(send);
    group_->AllToAll(send, got, {}, {}, "partial sums")->Wait();
    return Added(got, part, dtype);
  }

  Tensor All(const Tensor& sum, DType dtype) const override {
    constexpr int64_t kLarge = 1 << 15;
    if (sum.numel() < kLarge) {
      return Added(GatherTensors(*group_, sum, "partial sums"), sum.shape(), dtype);
    }
    // Each rank adds a shard, as many bytes as a ring would send: the last ones may be padding.
    const int64_t n = sum.numel(), shard = (n + size_ - 1) / size_;
    const Tensor mine = Tensor::Empty({size_ * shard}, sum.dtype(), sum.device());
    const Tensor got = Tensor::Empty({size_, shard}, sum.dtype(), sum.device());
    mine.Slice(0, 0, n).CopyFrom(sum.Contiguous().View({n}));
    mine.Slice(0, n, mine.numel()).Fill(0);
    group_->AllToAll(mine, got, {}, {}, "partial sums")->Wait();
    group_->AllGather(Added(got, {shard}, sum.dtype()), mine, "sums")->Wait();
    return Rounded(mine.Slice(0, 0, n).View(sum.shape()), dtype);
  }

 private:
  static Tensor Rounded(const Tensor& sum, DType dtype) {
    return sum.dtype() == dtype ? sum.Clone() : sum.To(dtype);
  }
  // Of the rows of `got` [size, ...].
  Tensor Added(const Tensor& got, const Shape& shape, DType dtype) const {
    return Rounded(dist::AddInPairs(size_, [&](int64_t r) { return RowOf(got, r, shape); }), dtype);
  }

  ProcessGroup* const group_;
  const int64_t size_;
};

class LibrarySums : public PartialSums {
 public:
  explicit LibrarySums(ProcessGroup* group) : group_(group), size_(SizeOf(group)) {}

  DType TypeOf(DType dtype) const override {
    return dtype == DType::kF16 ? AccumulationDType(dtype) : dtype;
  }

  Tensor Scatter(const Tensor& sum, DType dtype) const override {
    const Shape part = PartOf(sum.shape(), size_);
    const Tensor mine = Tensor::Empty(part, TypeOf(dtype), sum.device());
    const Tensor parts = ByRank(sum, size_, part, mine.dtype());
    group_->ReduceScatter(parts, mine, ReduceOp::kSum, "partial sums")->Wait();
    return mine.To(dtype);
  }

  Tensor All(const Tensor& sum, DType dtype) const override {
    const Tensor mine = Tensor::Empty(sum.shape(), TypeOf(dtype), sum.device());
    mine.CopyFrom(sum);
    group_->AllReduce(mine, ReduceOp::kSum, "partial sums")->Wait();
    return mine.To(dtype);
  }

 private:
  ProcessGroup* const group_;
  const int64_t size_;
};

}  // namespace

std::unique_ptr<const PartialSums> MakeOrderedSums(ProcessGroup* group) {
  return std::make_unique<OrderedSums>(group);
}

std::unique_ptr<const PartialSums> MakeLibrarySums(ProcessGroup* group) {
  return std::make_unique<LibrarySums>(group);
}

Tensor AddInPairs(int64_t n, const std::function<Tensor(int64_t i)>& tensor) {
  return AddInPairs(0, n, tensor);
}

}  // namespace lockstep::dist
