// How ranks are arranged: an axis for each kind of parallelism.
#pragma once

#include <array>
#include <string>
#include <vector>

namespace lockstep::dist {

// A grid of ranks with the axes pp, dp, cp and tp. The last varies fastest, so that its neighbours
// are neighbours on a machine. Pure arithmetic: every rank makes the same mesh. With {.dp = 2, .tp
// = 3}:
//
//           tp 0  1  2
//   dp 0       0  1  2     rank 4 has the coordinates dp 1, tp 1; its ranks along dp are
//   dp 1       3  4  5     {1, 4}, and along tp {3, 4, 5}.
//
// Four more axes are other views of the same ranks: dp counts all data ranks, and is replicate
// times shard (hybrid sharding); dp and cp together are edp times ep (experts). shard and ep vary
// fastest.
class Mesh {
 public:
  struct Sizes {
    int pp = 1;     // pipeline stages
    int dp = 0;     // data; 0: the ranks that the other axes leave
    int cp = 1;     // parts of the sequence
    int tp = 1;     // parts of the layers
    int shard = 0;  // of dp, how many ranks share the parameters among them; 0: all
    int ep = 1;     // of dp and cp, how many share the experts among them
  };

  // Throws ArgumentError, and suggests a size that fits, for sizes below 1 or whose product is not
  // world_size; if shard does not divide dp; or if the groups of ep would not be whole ones of cp,
  // or equal parts of these.
  Mesh(const Sizes& sizes, int rank, int world_size);

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }

  // `axis`: pp, dp, cp, tp, replicate, shard, edp or ep. Throws ArgumentError for other names.
  int size(const std::string& axis) const { return Find(axis).size; }
  int coordinate(const std::string& axis) const { return Coordinate(Find(axis), rank_); }
  // The ranks that differ from this one only along the given axes, ascending and including this
  // rank. Several axes act as one: gradients are summed over dp and cp.
  std::vector<int> RanksAlong(const std::vector<std::string>& axes) const;
  // The name of the group of those ranks, such as "tp[dp=1]": the same on each of them, and unique
  // within the mesh.
  std::string GroupName(const std::vector<std::string>& axes) const;

  // "dp 2 x tp 3"; "dp 4 (shard 2) x tp 3"
  std::string Describe() const;

 private:
  // Each axis is a digit of the rank.
  struct Axis {
    const char* name;
    int size, stride;
  };
  const Axis& Find(const std::string& axis) const;
  static int Coordinate(const Axis& axis, int rank) { return rank / axis.stride % axis.size; }

  int rank_, world_size_;
  std::array<Axis, 8> axes_;  // the first four are pp, dp, cp and tp
};

}  // namespace lockstep::dist
