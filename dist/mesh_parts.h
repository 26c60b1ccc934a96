// How the ranks of a mesh reach each other's parts of a model's parameters.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/parameter.h"
#include "dist/process_group.h"

namespace lockstep::dist {

// An axis of the mesh along which some or all of a model's parameters are sharded.
class PartsAxis {
 public:
  virtual ~PartsAxis() = default;
  // This rank's group along the axis; null for a single rank.
  virtual ProcessGroup* group() const = 0;
  // Whether the ranks have different elements of the parameter, rather than the same.
  virtual bool Divides(const Parameter& parameter) const = 0;
  // Whether each rank has either all elements of a parameter or none, as the ranks of a pipeline
  // do, and whether this rank has the elements of the parameter.
  virtual bool is_placement() const { return false; }
  virtual bool Holds(const Parameter&) const { return true; }
  // This rank's number among the ranks that have the same elements of the parameter, and how many
  // these are.
  virtual std::pair<int64_t, int64_t> CopyOf(const Parameter& parameter) const;
  // Collective, for a parameter that the axis divides: what this rank would have without the axis.
  virtual Tensor Gather(const Parameter& parameter, const Tensor& part) = 0;
  // Collective: the element-wise sum over the ranks.
  virtual void Sum(const Tensor& values);

  // The parts into which the axis would cut the parameter on the most ranks. This rank has the
  // parts [first, first + own). Chunks of the gradient norm lie within parts.
  struct VirtualParts {
    int64_t all = 1, first = 0, own = 1;
    int64_t numel = 0;  // of the largest part; 0: they are equal
  };
  virtual VirtualParts PartsOf(const Parameter&) const { return {}; }
  // Part first + j of a tensor that is shaped like the parameter without further axes.
  virtual Tensor PartOf(const Parameter&, const Tensor& tensor, int64_t) const { return tensor; }

  // Whether this axis, not MeshParts, makes the runs of ForEachRun for the parameters that it
  // divides, because their parts do not end at chunk boundaries of the norm; and whether it makes
  // them of a range of its part. `virtual_parts`: into how many parts the axes outside this one
  // would cut the parameter, and which of them its ranks hold together.
  using AddRun = PartExchange::AddRun;
  virtual bool MakesRuns() const { return false; }
  virtual bool TakesRanges(const Parameter&, const VirtualParts&) const { return false; }
  // Collective, as far as ForEachRun of MeshParts is. `values`: from element `begin` of the part.
  virtual void ForEachRun(const Parameter&, const VirtualParts&, const Tensor& /*values*/,
                          int64_t /*begin*/, const AddRun&) {}

  // Another parameter is about to take this one's place, on the same ranks.
  virtual void Replace(const Parameter& /*parameter*/, const Parameter& /*by*/) {}
};

// The exchange that all parameters of a model have in common, however they are sharded: each
// parallel mode adds its axis, the outermost first (pp, tp, ep, then the ranges of dp).
class MeshParts : public PartExchange {
 public:
  // The exchange of these parameters; a new one if they have none yet. Throws ArgumentError if they
  // have different ones.
  static std::shared_ptr<MeshParts> Of(std::span<const std::shared_ptr<Parameter>> parameters);

  void Add(std::shared_ptr<PartsAxis> axis) { axes_.push_back(std::move(axis)); }
  // The axis of this kind; null if there is none.
  template <class Axis>
  std::shared_ptr<Axis> Find() const {
    for (const auto& axis : axes_) {
      if (auto found = std::dynamic_pointer_cast<Axis>(axis)) return found;
    }
    return nullptr;
  }

  // This rank's number among the ranks that have the same elements of the parameter, along all
  // axes, and how many these are.
  std::pair<int64_t, int64_t> CopyOf(const Parameter& parameter) const;

  bool Holds(const Parameter& parameter) const override;
  // `by`, perhaps of another shape, takes the place of a parameter that at most pp has placed.
  void Replace(const Parameter& parameter, Parameter& by);
  Tensor Gather(const Parameter& parameter, const Tensor& part) override;
  Tensor GatherHere(const Parameter& parameter, const Tensor& part) override;
  void Sum(const Tensor& values) override;
  int64_t Chunks(const Parameter& parameter) const override;
  // A rank contributes the chunks that it has of a parameter if it is the first of the ranks that
  // have them.
  void ForEachRun(const Parameter& parameter, const Tensor& grad, const AddRun& add) override;

 private:
  // The virtual parts that the chunks of the parameter's norm lie within, and the axis that has
  // them; null if none has.
  std::pair<const PartsAxis*, PartsAxis::VirtualParts> VirtualPartsOf(
      const Parameter& parameter) const;
  // ForEachRun where the axis makes the runs.
  void MakeRuns(PartsAxis& by, const Parameter& parameter, Tensor values, const AddRun& add);

  std::vector<std::shared_ptr<PartsAxis>> axes_;
};

}  // namespace lockstep::dist
