// Choices of a forward that a recomputed one must not make again.
#pragma once

#include <functional>

#include "core/tensor.h"

namespace lockstep {

// Returns make(), a tensor that is not written to afterwards. Where this thread runs a forward
// again to recompute what it saved, returns what the first run made instead: the experts of a
// token, for one, are kept, so that gradients belong to the experts that ran. The forward calls it
// the same number of times each time it runs; throws Error if not.
Tensor KeepChoice(const std::function<Tensor()>& make);

}  // namespace lockstep
