// How ranks are arranged: named axes, one per kind of parallelism.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace lockstep::dist {

// A grid of ranks, row by row: the last axis varies fastest, so that its neighbours are neighbours
// on a machine. Pure arithmetic, so every rank builds the same mesh. With axes {dp 2, tp 3}:
//
//           tp 0  1  2
//   dp 0       0  1  2     rank 4 has the coordinates dp 1, tp 1; its ranks along dp are
//   dp 1       3  4  5     {1, 4} and along tp {3, 4, 5}.
class Mesh {
 public:
  struct Axis {
    std::string name;  // "pp", "dp", "fsdp", "cp", "ep" or "tp"
    int size;
    bool operator==(const Axis&) const = default;
  };

  // Throws ArgumentError for unknown or repeated names, for sizes below 1, and for sizes whose
  // product is not world_size, in which case it suggests one that fits.
  Mesh(std::vector<Axis> axes, int rank, int world_size);
  // One axis, dp.
  static Mesh DataParallel(int rank, int world_size);

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  const std::vector<Axis>& axes() const { return axes_; }

  // An axis that the mesh does not have has size 1 and coordinate 0. Throws ArgumentError for
  // unknown names.
  int size(const std::string& axis) const;
  int coordinate(const std::string& axis) const;
  // The ranks that differ from this one only along the given axes, in the order of their
  // coordinates and including this rank. Several axes act as one: gradients are summed over dp and
  // fsdp.
  std::vector<int> RanksAlong(std::span<const std::string> axes) const;
  std::vector<int> RanksAlong(const std::string& axis) const;
  // The name of the group of those ranks, such as "dp[tp=1]": the same on each of them, and unique
  // within the mesh.
  std::string GroupName(std::span<const std::string> axes) const;

  // "dp 2 x tp 3"
  std::string Describe() const;

 private:
  struct Place {
    int index, stride;  // index: in axes_, or -1
  };
  Place Find(const std::string& axis) const;

  std::vector<Axis> axes_;
  int rank_, world_size_;
};

}  // namespace lockstep::dist
