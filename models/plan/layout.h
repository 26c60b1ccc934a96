// What a plan chooses: how a step is divided among devices, and what is computed or kept instead.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace lockstep::models {

struct RunSetup;

// The sizes of a mesh; dp counts all data ranks.
struct MeshSizes {
  int64_t dp = 1, tp = 1, pp = 1, cp = 1, ep = 1;
  int64_t ranks() const { return dp * tp * pp * cp; }
  auto operator<=>(const MeshSizes&) const = default;
};

struct Layout {
  MeshSizes mesh;
  std::string shard = "none";     // parallel.shard
  int64_t shard_ranks = 0;        // parallel.shard_ranks; 0: all data ranks
  std::string schedule = "1f1b";  // parallel.schedule
  std::string recompute = "none", offload = "none";
  int64_t batch = 1;       // sequences of a micro-batch
  int64_t grad_accum = 1;  // micro-batches of a data rank
  // Stages of a rank with schedule=interleaved. Lockstep has two; published runs had more.
  int64_t chunks = 2;

  // How many ranks share what parallel.shard names; 1: none.
  int64_t shards() const { return shard == "none" ? 1 : shard_ranks > 0 ? shard_ranks : mesh.dp; }
  int64_t stages_of_rank() const {
    return schedule == "interleaved" ? chunks : schedule == "zbv" ? 2 : 1;
  }
  bool operator==(const Layout&) const = default;
};

// Changes the run to this layout, at equal samples in a step.
void Apply(const Layout& layout, RunSetup& setup);
// That of the run.
Layout LayoutOf(const RunSetup& setup);

// "dp=8 tp=8 pp=16 zbv, shard=gradients, batch 1 x 16, recompute=block".
std::string Describe(const Layout& layout);
// Of so many layers, the share whose blocks are computed again: with recompute=block all, with
// block:3 three of them, else none.
double BlockShare(const Layout& layout, double layers);

}  // namespace lockstep::models
