// How ranks are arranged: named axes, one per kind of parallelism.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace lockstep::dist {

// A grid of ranks, row by row: the last axis varies fastest, so that its neighbours are neighbours
// on a machine. Pure arithmetic; every rank makes the same one. With axes {dp 2, tp 3}:
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

  // Throws ArgumentError for unknown or repeated names, sizes below 1, and if the sizes do not
  // multiply to world_size, saying what would fit.
  Mesh(std::vector<Axis> axes, int rank, int world_size);
  // One axis, dp.
  static Mesh DataParallel(int rank, int world_size);

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  const std::vector<Axis>& axes() const { return axes_; }

  // Of an axis; 1 and 0 for one that the mesh does not have. ArgumentError for unknown names.
  int size(const std::string& axis) const;
  int coordinate(const std::string& axis) const;
  // The ranks that differ from this one along the axes alone, in the order of their coordinates;
  // this rank is among them. Several axes act as one: gradients are summed over dp and fsdp.
  std::vector<int> RanksAlong(std::span<const std::string> axes) const;
  std::vector<int> RanksAlong(const std::string& axis) const;
  // The name of the group of those ranks: equal on them, different from all other groups of the
  // mesh: "dp[tp=1]".
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
