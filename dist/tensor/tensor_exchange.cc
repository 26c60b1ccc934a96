#include "dist/tensor/tensor_exchange.h"

namespace lockstep::dist {

void TensorExchange::Cut(const std::shared_ptr<MeshParts>& parts, Parameter& parameter, int dim,
                         const std::vector<int64_t>& segments) {
  const std::vector<int64_t> sizes =
      segments.empty() ? std::vector{parameter.logical_shape()[dim]} : segments;
  const auto [place, is_new] = places_.try_emplace(&parameter, dim, sizes);
  if (!is_new) {
    LS_CHECK(place->second.dim == dim && place->second.segments == sizes, "the parameter '",
             parameter.name(), "' is used by two layers that would cut it differently");
    return;
  }
  for (const int64_t size : sizes) {
    LS_CHECK(size % ranks_->parts() == 0, "tensor parallelism: dimension ", dim,
             " of the parameter '", parameter.name(), "', ", parameter.logical_shape(), ", has ",
             sizes.size() == 1 ? "" : "a segment of ", size,
             " elements, which do not divide into the ", ranks_->parts(),
             " parts of virtual.tp: use a multiple of it (",
             (size / ranks_->parts() + 1) * ranks_->parts(), "), or fewer parts");
  }
  if (!parts->Holds(parameter)) return;
  ShardLayout layout;
  if (ranks_->size() > 1) {
    layout.cuts.push_back({.axis = "tp",
                           .dim = dim,
                           .parts = ranks_->size(),
                           .part = ranks_->rank(),
                           .segments = segments});
  }
  parameter.SetLayout(std::move(layout), parts);
}

Tensor TensorExchange::Gather(const Parameter& parameter, const Tensor& part) {
  const auto& [dim, segments] = places_.at(&parameter);
  const Tensor all = ranks_->Gather(part, "the whole of a parameter");
  const Tensor whole = Tensor::Empty(parameter.logical_shape(), part.dtype(), part.device());
  for (int64_t r = 0; r < ranks_->size(); ++r) {
    const Tensor from = all.Slice(0, r, r + 1).View(part.shape());
    int64_t begin = 0, at = 0;
    for (const int64_t size : segments) {
      const int64_t own = size / ranks_->size();
      whole.Slice(dim, begin + r * own, begin + (r + 1) * own)
          .CopyFrom(from.Slice(dim, at, at + own));
      begin += size;
      at += own;
    }
  }
  return whole;
}

void TensorExchange::Sum(const Tensor& values) {
  if (ranks_->size() == 1) return;
  PartsAxis::Sum(values);
  ranks_->group()->CheckInStep();  // a norm is computed once a step, before the update
}

PartsAxis::VirtualParts TensorExchange::PartsOf(const Parameter& parameter) const {
  if (!places_.contains(&parameter)) return {};
  return {.all = ranks_->parts(), .first = ranks_->first(), .own = ranks_->own()};
}

Tensor TensorExchange::PartOf(const Parameter& parameter, const Tensor& tensor, int64_t j) const {
  const auto& [dim, segments] = places_.at(&parameter);
  std::vector<int64_t> own;  // of the segments, this rank's
  for (const int64_t size : segments) own.push_back(size / ranks_->size());
  return PartAlong(tensor, dim, own, ranks_->own(), j).Contiguous();
}

}  // namespace lockstep::dist
