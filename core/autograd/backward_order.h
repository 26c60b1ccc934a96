// The order in which backward runs the nodes of a graph and completes its leaves.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/autograd/node.h"
#include "core/tensor.h"

namespace lockstep {

struct BackwardOrder {
  std::vector<std::shared_ptr<Node>> nodes;   // all that the roots depend on, the last one first
  std::vector<std::shared_ptr<Leaf>> leaves;  // in the order of their last use
  std::vector<int64_t> last_use;  // of each leaf: the position of the node that uses it last, or -1
                                  // for a leaf that is a root and no node's input
};
BackwardOrder OrderBackward(std::span<const Tensor> roots);

}  // namespace lockstep
