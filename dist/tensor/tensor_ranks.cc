#include "dist/tensor/tensor_ranks.h"

#include <algorithm>
#include <bit>

#include "dist/groups/agreement.h"
#include "kernels/concat/concat.h"

namespace lockstep::dist {

TensorRanks::TensorRanks(ProcessGroup* group, int64_t parts,
                         std::unique_ptr<const PartialSums> sums)
    : group_(group),
      size_(SizeOf(group)),
      rank_(RankIn(group)),
      parts_(parts),
      sums_(sums ? std::move(sums) : MakeOrderedSums(group)) {
  LS_CHECK(parts >= 1 && parts % size_ == 0, "tensor parallelism: the ", size_,
           " ranks must divide the ", parts,
           " parts in which sums are made (virtual.tp): use a multiple of the ranks");
  LS_CHECK(
      size_ == 1 || std::has_single_bit(static_cast<uint64_t>(own())),
      "tensor parallelism: a rank's parts are added before those of other ranks, so there must "
      "be a power of two of them: got virtual.tp = ",
      parts, " parts on ", size_, " ranks");
}

Shape TensorRanks::PartShape(Shape stream) const {
  const int64_t within_parts = within() ? within()->parts() : 1;
  LS_CHECK(stream[1] % (sequence_parts() * within_parts) == 0, "a sequence of ", stream[1],
           " tokens does not divide into the ", sequence_parts() * within_parts,
           " parts of virtual.tp or virtual.cp");
  stream[1] /= sequence_parts() * (within() ? within()->size() : 1);
  stream[part_dim()] *= own();
  return stream;
}

int64_t TensorRanks::CopyStride(const Parameter& parameter) const {
  return parameter.layout().cuts.empty() ? 1 : size();
}

Tensor TensorRanks::SumOwn(const std::function<Tensor(int64_t j)>& part) const {
  return AddInPairs(own(), part);
}

Tensor TensorRanks::Gather(const Tensor& mine, const char* what) const {
  if (size_ > 1) return GatherTensors(*group_, mine, what);
  Shape shape = {1};
  for (const int64_t size : mine.shape()) shape.push_back(size);
  return mine.Detach().Contiguous().View(shape);
}

Tensor TensorRanks::GatherVocabulary(const Tensor& rows, int64_t size, const char* what) const {
  const int64_t most = own() * VocabularyPart(size);
  Tensor padded = rows;
  if (rows.dim(0) < most) {
    Shape shape = rows.shape();
    shape[0] = most;
    padded = Tensor::Empty(shape, rows.dtype(), rows.device());
    padded.Slice(0, 0, rows.dim(0)).CopyFrom(rows.Detach());
    padded.Slice(0, rows.dim(0), most).Fill(0);
  }
  Shape shape = padded.shape();
  shape[0] *= size_;
  return Gather(padded, what).View(shape).Slice(0, 0, size);
}

Tensor TensorRanks::GatherSequence(const Tensor& part) const {
  if (size_ == 1) return part.Detach();
  const Tensor all = Gather(part, "the parts of a sequence");  // [size, B, T / size, ...]
  Shape shape = part.shape();
  shape[1] *= size_;
  return (part.dim(0) == 1 ? all : all.Transpose(0, 1).Contiguous()).View(shape);
}

DType TensorRanks::PartialDType(DType dtype) const {
  return own() == 1 && size_ > 1 ? sums_->TypeOf(dtype) : AccumulationDType(dtype);
}

Tensor TensorRanks::ScatterSum(const Tensor& sum, DType dtype) const {
  return size_ == 1 ? sum.To(dtype) : sums_->Scatter(sum, dtype);
}

Tensor TensorRanks::Sum(const Tensor& sum, DType dtype) const {
  return size_ == 1 ? sum.To(dtype) : sums_->All(sum, dtype);
}

Tensor PartAlong(const Tensor& x, int dim, std::span<const int64_t> segments, int64_t parts,
                 int64_t part) {
  const Tensor all = x.Detach();
  if (parts == 1) return all;
  const auto slice = [&](int64_t begin, int64_t size) {
    const int64_t own = size / parts;
    return all.Slice(dim, begin + part * own, begin + (part + 1) * own);
  };
  if (segments.empty()) return slice(0, x.dim(dim)).Contiguous();
  std::vector<Tensor> slices;
  int64_t begin = 0;
  for (const int64_t size : segments) {
    slices.push_back(slice(begin, size));
    begin += size;
  }
  return ops::Concat(slices, dim);
}

Tensor VocabularyRowsOf(const Tensor& rows, int64_t most, int64_t j) {
  return rows.Detach().Slice(0, j * most, std::min(rows.dim(0), (j + 1) * most));
}

}  // namespace lockstep::dist
