#include "dist/mesh.h"

#include <algorithm>
#include <cstdint>
#include <set>

#include "core/error.h"

namespace lockstep::dist {
namespace {

constexpr int kBase = 4;  // pp, dp, cp and tp

void CheckSize(const char* axis, int size, int least) {
  LS_CHECK(size >= least, "mesh: ", axis, " is ", size, "; it must be at least ", least);
}

}  // namespace

Mesh::Mesh(const Sizes& sizes, int rank, int world_size) : rank_(rank), world_size_(world_size) {
  const auto [pp, dp_or_rest, cp, tp, shard_or_all, ep] = sizes;
  CheckSize("pp", pp, 1);
  CheckSize("dp", dp_or_rest, 0);
  CheckSize("cp", cp, 1);
  CheckSize("tp", tp, 1);
  CheckSize("shard", shard_or_all, 0);
  CheckSize("ep", ep, 1);
  LS_CHECK(rank >= 0 && rank < world_size, "mesh: there is no rank ", rank, " among ", world_size);
  // At most 2^31 each, so that products of two do not overflow.
  const auto times = [](int64_t a, int64_t b) { return std::min(a * b, int64_t{1} << 31); };
  const int64_t others = times(times(pp, cp), tp);
  const int dp =
      dp_or_rest > 0 ? dp_or_rest : static_cast<int>(std::max<int64_t>(1, world_size / others));
  const int shard = shard_or_all > 0 ? shard_or_all : dp;
  axes_ = {Axis{"pp", pp, 0},   {"dp", dp, 0},       {"cp", cp, 0}, {"tp", tp, 1},
           {"replicate", 0, 0}, {"shard", shard, 0}, {"edp", 0, 0}, {"ep", ep, 0}};
  LS_CHECK(times(others, dp) == world_size, "mesh: ", Describe(), " is for ", times(others, dp),
           " ranks, but there are ", world_size,
           world_size % others == 0 ? StrCat("; dp ", world_size / others, " would fit") : "");
  LS_CHECK(dp % shard == 0, "mesh: shard ", shard, " does not divide dp ", dp,
           ": the data ranks are cut into groups that share the parameters");
  LS_CHECK(dp * cp % ep == 0 && (ep % cp == 0 || cp % ep == 0), "mesh: ep ", ep,
           " does not fit dp ", dp, " x cp ", cp,
           ": it must divide cp, or be cp times a divisor of dp");
  for (int i = kBase - 2; i >= 0; --i) axes_[i].stride = axes_[i + 1].stride * axes_[i + 1].size;
  const int dp_stride = axes_[1].stride, cp_stride = axes_[2].stride;
  axes_[4] = {"replicate", dp / shard, dp_stride * shard};
  axes_[5].stride = dp_stride;
  axes_[6] = {"edp", dp * cp / ep, cp_stride * ep};
  axes_[7].stride = cp_stride;
}

const Mesh::Axis& Mesh::Find(const std::string& name) const {
  std::string known;
  for (const Axis& axis : axes_) {
    if (name == axis.name) return axis;
    known += StrCat(known.empty() ? "" : ", ", axis.name);
  }
  throw ArgumentError(StrCat("mesh: '", name, "' is not an axis; the axes are ", known));
}

std::vector<int> Mesh::RanksAlong(const std::vector<std::string>& axes) const {
  std::set<int> ranks = {rank_};
  for (const std::string& name : axes) {
    const Axis& axis = Find(name);
    for (const int rank : std::set<int>(ranks)) {
      const int first = rank - Coordinate(axis, rank) * axis.stride;
      for (int i = 0; i < axis.size; ++i) ranks.insert(first + i * axis.stride);
    }
  }
  return {ranks.begin(), ranks.end()};
}

std::string Mesh::GroupName(const std::vector<std::string>& axes) const {
  std::string name, others;
  for (const std::string& axis : axes) name += StrCat(name.empty() ? "" : "+", axis);
  const std::vector<int> ranks = RanksAlong(axes);
  for (int i = 0; i < kBase; ++i) {
    std::set<int> coordinates;
    for (const int rank : ranks) coordinates.insert(Coordinate(axes_[i], rank));
    if (std::ssize(coordinates) == axes_[i].size) continue;
    const int first = *coordinates.begin(), last = *coordinates.rbegin();
    others += StrCat(others.empty() ? "" : ",", axes_[i].name, "=", first);
    if (last > first) others += StrCat("-", last);
  }
  return others.empty() ? name : StrCat(name, "[", others, "]");
}

std::string Mesh::Describe() const {
  std::string text;
  for (int i = 0; i < kBase; ++i) {
    if (axes_[i].size == 1) continue;
    text += StrCat(text.empty() ? "" : " x ", axes_[i].name, " ", axes_[i].size);
    if (i == 1 && size("shard") != axes_[1].size) text += StrCat(" (shard ", size("shard"), ")");
  }
  if (size("ep") > 1) text += StrCat(", ep ", size("ep"));
  return text.empty() ? "a single rank" : text;
}

}  // namespace lockstep::dist
