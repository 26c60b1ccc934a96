// How the losses of elements or rows become the result.
#pragma once

namespace lockstep {

enum class Reduction {
  kNone,  // they are the result
  kSum,
  // Over all elements; of rows with a class as their target, over those whose target is not
  // ignored: 0, without gradient, if there is none.
  kMean,
};

}  // namespace lockstep
