// Blocks whose weights wait in host memory until they are used.
#pragma once

#include <memory>
#include <vector>

#include "core/module.h"

namespace lockstep::nn {

namespace internal {
void OffloadWeights(const std::vector<Module*>& blocks);
}

// Keeps the weights of the blocks in page-locked memory of the host. `blocks` are in the order in
// which they run. Before a block's forward, and before its backward, its weights are copied to the
// device on a separate stream, while the block before it computes; afterwards they are released. So
// a device has the weights of two blocks at a time, and the bits are those without offload.
//   nn::OffloadWeights(blocks);           // before or after Materialize
//   optim::AdamW adamw(...);              // after it
//
// - Between forwards Parameter::value() is the tensor on the host: to be loaded, saved and changed
//   as ever. A parameter is read only within its own block's forward and backward, and in no other
//   block. Parameters that a module outside has, too (tied weights), must stay on the device: they
//   belong to no block.
// - Gradients are on the device, where observers, clipping and norms read them, from backward until
//   ZeroGrad.
// - Optimizers bring each weight to the device for its update, and back (optim/optimizer.h,
//   StateOffload says in pieces of which size), and keep their state on the device unless
//   told otherwise.
// - Give it the outermost module of each block: that of nn::Recompute or nn::Offload.
// - With dist::FullyShard each rank keeps its own part on the host, and FullyShard brings it.
//
// On the CPU it does nothing. Throws ArgumentError for null blocks, and for a parameter in two of
// them. The hooks cannot be removed.
template <class M>
void OffloadWeights(const std::vector<std::shared_ptr<M>>& blocks) {
  std::vector<Module*> modules;
  for (const auto& block : blocks) modules.push_back(block.get());
  internal::OffloadWeights(modules);
}

}  // namespace lockstep::nn
