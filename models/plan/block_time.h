// How long a block, and a model's embedding and head, take for a micro-batch on one rank.
#pragma once

#include "models/plan/step_time.h"

namespace lockstep::models {

// Seconds; backward is what gives the gradient of the input, and that of the weights.
struct PassTimes {
  double forward = 0, input_grad = 0, weight_grad = 0;
  double backward() const { return input_grad + weight_grad; }
};

struct BlockTime {
  PassTimes products, attention, other, host, tensor, context, experts;
  double norms = 0, activations = 0;  // parts of 1 of `other`
  Recomputed recomputed;              // by backward, before the gradients
  double kept_bytes = 0;              // for backward, roughly: what an offload copies
  double stream_bytes = 0;            // what passes to the next block

  double forward() const { return Sum(&PassTimes::forward); }
  double input_grad() const { return Sum(&PassTimes::input_grad); }
  double weight_grad() const { return Sum(&PassTimes::weight_grad); }
  double backward() const { return input_grad() + weight_grad() + recomputed.total(); }

 private:
  double Sum(double PassTimes::*pass) const {
    return products.*pass + attention.*pass + other.*pass + host.*pass + tensor.*pass +
           context.*pass + experts.*pass;
  }
};

// Of a block, at the mean of those with and without a window, or experts.
BlockTime BlockTimeOf(const PlannedModel& model, const Layout& layout, const Cluster& cluster);
// Of the embedding and the head, with the loss.
BlockTime HeadTimeOf(const PlannedModel& model, const Layout& layout, const Cluster& cluster);

}  // namespace lockstep::models
