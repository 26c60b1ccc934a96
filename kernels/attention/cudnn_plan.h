// Attention as a graph of cuDNN's operations, and the plan for it. A file of its own because
// cudnn_attention.h must not need cuDNN's declarations.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kernels/attention/cudnn_attention.h"
#include "kernels/attention/cudnn_graph.h"

namespace lockstep::cuda {

struct CudnnAttentionPlan {
  struct Description {
    CudnnGraph graph;
    std::vector<CudnnGraph::Value> values;
  };

  // Throws Error with cuDNN's reason if it has no plan.
  CudnnAttentionPlan(const CudnnAttentionProblem& problem, const CudnnTarget& target);

  // The values whose addresses Run needs, in this order. Forward: q, k, v, y, log_sum_exp, the
  // scale, minus infinity. Backward: q, k, v, y, log_sum_exp, dy, dq, dk, dv, an f32 [B, H, T] as
  // scratch, the scale, minus infinity, one. The numbers are f32 on the host.
  std::vector<CudnnGraph::Value> values;
  CudnnPlan plan;

 private:
  CudnnAttentionPlan(Description description, const CudnnTarget& target)
      : values(std::move(description.values)), plan(std::move(description.graph), target) {}
};

}  // namespace lockstep::cuda
