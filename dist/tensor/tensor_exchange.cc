#include "dist/tensor/tensor_exchange.h"

namespace lockstep::dist {

bool TensorExchange::Note(const Parameter& parameter, Place place) {
  const auto [noted, is_new] = places_.try_emplace(&parameter, place);
  LS_CHECK(noted->second == place, "the parameter '", parameter.name(),
           "' is used by two layers that would cut it differently");
  return is_new;
}

void TensorExchange::SetLayout(const std::shared_ptr<MeshParts>& parts, Parameter& parameter,
                               ShardCut cut) const {
  if (!parts->Holds(parameter)) return;
  ShardLayout layout;
  if (ranks_->size() > 1) {
    cut.axis = "tp";
    cut.parts = ranks_->size();
    cut.part = ranks_->rank();
    layout.cuts.push_back(std::move(cut));
  }
  parameter.SetLayout(std::move(layout), parts);
}

void TensorExchange::Cut(const std::shared_ptr<MeshParts>& parts, Parameter& parameter, int dim,
                         const std::vector<int64_t>& segments) {
  const std::vector<int64_t> sizes =
      segments.empty() ? std::vector{parameter.logical_shape()[dim]} : segments;
  if (!Note(parameter, {dim, sizes})) return;
  for (const int64_t size : sizes) {
    LS_CHECK(size % ranks_->parts() == 0, "tensor parallelism: dimension ", dim,
             " of the parameter '", parameter.name(), "', ", parameter.logical_shape(), ", has ",
             sizes.size() == 1 ? "" : "a segment of ", size,
             " elements, which do not divide into the ", ranks_->parts(),
             " parts of virtual.tp: use a multiple of it (",
             (size / ranks_->parts() + 1) * ranks_->parts(), "), or fewer parts");
  }
  SetLayout(parts, parameter, {.dim = dim, .segments = segments});
}

void TensorExchange::CutVocabulary(const std::shared_ptr<MeshParts>& parts, Parameter& parameter) {
  const int64_t rows = parameter.logical_shape()[0], most = ranks_->VocabularyPart(rows);
  if (!Note(parameter, {0, {rows}, most})) return;
  LS_CHECK(most * (ranks_->parts() - 1) < rows, "tensor parallelism: the ", rows, " rows of '",
           parameter.name(), "' are too few for the ", ranks_->parts(),
           " parts of virtual.tp: with ", most,
           " rows each, the last ones would have none; use fewer parts");
  SetLayout(parts, parameter, {.dim = 0, .part_size = ranks_->own() * most});
}

Tensor TensorExchange::Gather(const Parameter& parameter, const Tensor& part) {
  const auto& [dim, segments, part_size] = places_.at(&parameter);
  if (part_size > 0) {
    return ranks_->GatherVocabulary(part, parameter.logical_shape()[0], "the whole of a parameter");
  }
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
  const auto place = places_.find(&parameter);
  if (place == places_.end()) return {};
  const Shape& shape = parameter.logical_shape();
  return {.all = ranks_->parts(),
          .first = ranks_->first(),
          .own = ranks_->own(),
          .numel = place->second.part_size * (shape.numel() / shape[place->second.dim])};
}

Tensor TensorExchange::PartOf(const Parameter& parameter, const Tensor& tensor, int64_t j) const {
  const auto& [dim, segments, part_size] = places_.at(&parameter);
  if (part_size > 0) return VocabularyRowsOf(tensor, part_size, j).Contiguous();
  std::vector<int64_t> own;  // of the segments, this rank's
  for (const int64_t size : segments) own.push_back(size / ranks_->size());
  return PartAlong(tensor, dim, own, ranks_->own(), j).Contiguous();
}

}  // namespace lockstep::dist
