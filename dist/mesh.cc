#include "dist/mesh.h"

#include <algorithm>
#include <array>

#include "core/error.h"

namespace lockstep::dist {
namespace {

constexpr std::array<const char*, 6> kNames = {"pp", "dp", "fsdp", "cp", "ep", "tp"};

void CheckName(const std::string& axis) {
  if (std::find(kNames.begin(), kNames.end(), axis) != kNames.end()) return;
  std::string known;
  for (const char* const name : kNames) known += StrCat(known.empty() ? "" : ", ", name);
  throw ArgumentError(StrCat("mesh: '", axis, "' is not an axis; the axes are ", known));
}

}  // namespace

Mesh::Mesh(std::vector<Axis> axes, int rank, int world_size)
    : axes_(std::move(axes)), rank_(rank), world_size_(world_size) {
  int64_t product = 1;
  for (size_t i = 0; i < axes_.size(); ++i) {
    CheckName(axes_[i].name);
    LS_CHECK(axes_[i].size >= 1, "mesh: axis ", axes_[i].name, " has size ", axes_[i].size,
             "; it must be at least 1");
    for (size_t j = 0; j < i; ++j) {
      LS_CHECK(axes_[i].name != axes_[j].name, "mesh: axis ", axes_[i].name, " occurs twice");
    }
    // Larger than any world, and safe from overflow.
    product = std::min<int64_t>(product * axes_[i].size, int64_t{1} << 31);
  }
  LS_CHECK(product == world_size, "mesh: ", Describe(), " is for ", product,
           " ranks, but there are ", world_size,
           product > 0 && world_size % product == 0
               ? StrCat("; with dp ", world_size / product, " times as large it would fit")
               : "");
  LS_CHECK(rank >= 0 && rank < world_size, "mesh: there is no rank ", rank, " among ", world_size);
}

Mesh Mesh::DataParallel(int rank, int world_size) {
  return Mesh({{"dp", world_size}}, rank, world_size);
}

Mesh::Place Mesh::Find(const std::string& axis) const {
  int stride = 1;
  for (int i = static_cast<int>(axes_.size()) - 1; i >= 0; --i) {
    if (axes_[static_cast<size_t>(i)].name == axis) return {i, stride};
    stride *= axes_[static_cast<size_t>(i)].size;
  }
  CheckName(axis);
  return {-1, 1};
}

int Mesh::size(const std::string& axis) const {
  const Place place = Find(axis);
  return place.index < 0 ? 1 : axes_[static_cast<size_t>(place.index)].size;
}

int Mesh::coordinate(const std::string& axis) const {
  const Place place = Find(axis);
  return place.index < 0 ? 0 : rank_ / place.stride % size(axis);
}

std::vector<int> Mesh::RanksAlong(std::span<const std::string> axes) const {
  // Every rank that shares this one's other coordinates; ranks ascend with their coordinates.
  std::vector<int> ranks;
  for (int r = 0; r < world_size_; ++r) {
    const Mesh other(axes_, r, world_size_);
    const bool same = std::all_of(axes_.begin(), axes_.end(), [&](const Axis& axis) {
      return std::find(axes.begin(), axes.end(), axis.name) != axes.end() ||
             other.coordinate(axis.name) == coordinate(axis.name);
    });
    if (same) ranks.push_back(r);
  }
  for (const std::string& axis : axes) CheckName(axis);
  return ranks;
}

std::vector<int> Mesh::RanksAlong(const std::string& axis) const {
  return RanksAlong(std::span<const std::string>(&axis, 1));
}

std::string Mesh::GroupName(std::span<const std::string> axes) const {
  std::string name, others;
  for (const std::string& axis : axes) {
    CheckName(axis);
    name += StrCat(name.empty() ? "" : "+", axis);
  }
  for (const Axis& axis : axes_) {
    if (axis.size == 1 || std::find(axes.begin(), axes.end(), axis.name) != axes.end()) continue;
    others += StrCat(others.empty() ? "" : ",", axis.name, "=", coordinate(axis.name));
  }
  return others.empty() ? name : StrCat(name, "[", others, "]");
}

std::string Mesh::Describe() const {
  std::string text;
  for (const Axis& axis : axes_) {
    text += StrCat(text.empty() ? "" : " x ", axis.name, " ", axis.size);
  }
  return text.empty() ? "a single rank" : text;
}

}  // namespace lockstep::dist
