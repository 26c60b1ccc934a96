#include "dist/mesh_parts.h"

#include <algorithm>
#include <ranges>

#include "core/error.h"
#include "dist/user_call.h"
#include "kernels/global_norm/global_norm.h"

namespace lockstep::dist {
namespace {

// This rank's number among the ranks of the axis, and their number: all have the same elements.
std::pair<int64_t, int64_t> Everyone(const PartsAxis& axis) {
  if (!axis.group()) return {0, 1};
  return {axis.group()->rank(), axis.group()->size()};
}

}  // namespace

std::pair<int64_t, int64_t> PartsAxis::CopyOf(const Parameter& parameter) const {
  return Divides(parameter) ? std::pair<int64_t, int64_t>{0, 1} : Everyone(*this);
}

void PartsAxis::Sum(const Tensor& values) {
  if (ProcessGroup* ranks = group()) {
    ranks->AllReduce(values, ReduceOp::kSum, "the sums of a gradient norm")->Wait();
  }
}

std::shared_ptr<MeshParts> MeshParts::Of(std::span<const std::shared_ptr<Parameter>> parameters) {
  std::shared_ptr<MeshParts> parts;
  for (const auto& p : parameters) {
    if (!p->exchange()) continue;
    auto own = std::dynamic_pointer_cast<MeshParts>(p->exchange());
    LS_CHECK(own && (!parts || parts == own), "the parameter '", p->name(),
             "' is sharded apart from others of its model: shard the whole model at once");
    parts = std::move(own);
  }
  return parts ? parts : std::make_shared<MeshParts>();
}

bool MeshParts::Holds(const Parameter& parameter) const {
  return std::ranges::all_of(axes_, [&](const auto& axis) { return axis->Holds(parameter); });
}

std::pair<int64_t, int64_t> MeshParts::CopyOf(const Parameter& parameter) const {
  int64_t index = 0, count = 1;
  for (const auto& axis : axes_) {
    const auto [number, copies] = axis->CopyOf(parameter);
    index = index * copies + number;
    count *= copies;
  }
  return {index, count};
}

void MeshParts::Replace(const Parameter& parameter, Parameter& by) {
  for (const auto& axis : axes_) axis->Replace(parameter, by);
  by.SetLayout(parameter.layout(), parameter.exchange());
}

// Ranks that have none of the parameter only take part where they get it as a whole.
Tensor MeshParts::Gather(const Parameter& parameter, const Tensor& part) {
  Tensor whole = Holds(parameter) ? GatherHere(parameter, part) : part;
  for (const auto& axis : axes_ | std::views::reverse) {
    if (axis->is_placement() && axis->Divides(parameter)) whole = axis->Gather(parameter, whole);
  }
  return whole;
}

Tensor MeshParts::GatherHere(const Parameter& parameter, const Tensor& part) {
  Tensor whole = part;
  for (const auto& axis : axes_ | std::views::reverse) {
    if (!axis->is_placement() && axis->Divides(parameter)) whole = axis->Gather(parameter, whole);
  }
  return whole;
}

// Exact: at most one rank has a value other than 0.
void MeshParts::Sum(const Tensor& values) {
  const UserCall call("ClipGradNorm");
  for (const auto& axis : axes_) axis->Sum(values);
}

std::pair<const PartsAxis*, PartsAxis::VirtualParts> MeshParts::VirtualPartsOf(
    const Parameter& parameter) const {
  for (const auto& axis : axes_) {
    const PartsAxis::VirtualParts parts = axis->PartsOf(parameter);
    if (parts.all > 1) return {axis.get(), parts};
  }
  return {nullptr, {}};
}

int64_t MeshParts::Chunks(const Parameter& parameter) const {
  const PartsAxis::VirtualParts parts = VirtualPartsOf(parameter).second;
  const int64_t equal = parameter.logical_shape().numel() / parts.all;
  return parts.all * GradNormChunks(std::max(parts.numel, equal));
}

void MeshParts::MakeRuns(PartsAxis& by, const Parameter& parameter, Tensor values,
                         const AddRun& add) {
  const PartsAxis::VirtualParts parts = VirtualPartsOf(parameter).second;
  const auto& range = parameter.layout().range;
  if (!range || by.TakesRanges(parameter, parts)) {
    return by.ForEachRun(parameter, parts, values, range ? range->begin : 0, add);
  }
  for (const auto& axis : axes_ | std::views::reverse) {
    if (axis.get() == &by) break;
    if (axis->Divides(parameter)) values = axis->Gather(parameter, values);
  }
  // All of them have all now; the one with the first element contributes it.
  const bool contributes = range->begin == 0 && range->end > 0;
  by.ForEachRun(parameter, parts, values, 0, [&](int64_t first, const Tensor& run) {
    if (contributes) add(first, run);
  });
}

void MeshParts::ForEachRun(const Parameter& parameter, const Tensor& grad, const AddRun& add) {
  if (!Holds(parameter)) return;
  for (const auto& axis : axes_) {
    if (!axis->MakesRuns() || !axis->Divides(parameter)) continue;
    return MakeRuns(*axis, parameter, grad.Detach().Contiguous(), add);
  }
  const auto [virtual_axis, parts] = VirtualPartsOf(parameter);
  const auto& range = parameter.layout().range;
  Tensor values = grad.Detach().Contiguous();
  int64_t begin = range ? range->begin : 0;  // of the values, within the part
  // Chunks of several parts do not end where ranges do: the ranks of the ranges all have all.
  const bool joins = range && parts.own > 1;
  if (joins) begin = 0;
  bool contributes = true;
  for (const auto& axis : axes_ | std::views::reverse) {
    auto copy = axis->CopyOf(parameter);
    if (joins && axis->Divides(parameter) && axis.get() != virtual_axis && !axis->is_placement()) {
      values = axis->Gather(parameter, values);
      copy = Everyone(*axis);
    }
    contributes &= copy.first == 0;
  }
  if (!contributes || values.numel() == 0) return;
  LS_CHECK(begin % kGradNormChunk == 0, "the range of '", parameter.name(), "' begins at ", begin,
           ", within a chunk of the gradient norm");
  const int64_t chunks = Chunks(parameter) / parts.all, first = begin / kGradNormChunk;
  if (parts.own == 1) return add(parts.first * chunks + first, values);
  for (int64_t j = 0; j < parts.own; ++j) {
    add((parts.first + j) * chunks, virtual_axis->PartOf(parameter, values, j).Contiguous());
  }
}

}  // namespace lockstep::dist
