// Brings the parts of tensor-parallel parameters together outside of forward and backward.
#pragma once

#include <unordered_map>

#include "core/parameter.h"
#include "dist/mesh_parts.h"
#include "dist/tensor/tensor_ranks.h"

namespace lockstep::dist {

class TensorExchange : public PartsAxis {
 public:
  explicit TensorExchange(TensorRanksPtr ranks) : ranks_(std::move(ranks)) {}

  // Cuts the parameter along a dimension, whose `segments` (empty: all of it) are each cut. The
  // second time, for a tied weight, it must be the same cut. `parts` has this axis. A parameter
  // that this rank does not hold is only noted. Throws ArgumentError unless the parts of the
  // sums, TensorRanks::parts(), divide the segments.
  void Cut(const std::shared_ptr<MeshParts>& parts, Parameter& parameter, int dim,
           const std::vector<int64_t>& segments);
  // Cuts the rows of a vocabulary (TensorRanks::VocabularyPart). Throws ArgumentError where a part
  // would have none.
  void CutVocabulary(const std::shared_ptr<MeshParts>& parts, Parameter& parameter);

  ProcessGroup* group() const override { return ranks_->group(); }
  bool Divides(const Parameter& parameter) const override {
    return ranks_->size() > 1 && places_.contains(&parameter);
  }
  Tensor Gather(const Parameter& parameter, const Tensor& part) override;
  void Sum(const Tensor& values) override;
  VirtualParts PartsOf(const Parameter& parameter) const override;
  Tensor PartOf(const Parameter& parameter, const Tensor& tensor, int64_t j) const override;

 private:
  struct Place {
    int dim;
    std::vector<int64_t> segments;  // of the whole
    int64_t part_size = 0;          // ShardCut::part_size, of each of parts()
    bool operator==(const Place&) const = default;
  };

  // Whether it is new; throws ArgumentError if it was another.
  bool Note(const Parameter& parameter, Place place);
  // `cut`: but for the axis and the ranks.
  void SetLayout(const std::shared_ptr<MeshParts>& parts, Parameter& parameter, ShardCut cut) const;

  const TensorRanksPtr ranks_;
  std::unordered_map<const Parameter*, Place> places_;
};

}  // namespace lockstep::dist
