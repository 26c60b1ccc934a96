// The training step as CUDA graphs: launched as a whole instead of kernel by kernel.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/cuda/graph_space.h"
#include "core/host_read.h"
#include "core/parameter.h"
#include "core/step_state.h"
#include "data/batch.h"
#include "models/train/step/step_work.h"
#include "nn/documents.h"

namespace lockstep::models {

// Forward and backward of one micro-batch, ids and targets i32 [B, T] on the device; returns the
// sum of the losses, an f32 scalar, whose gradient is `root`. Runs in a scope of the batch's
// documents.
using MicroStep =
    std::function<Tensor(const Tensor& ids, const Tensor& targets, const Tensor& root)>;

// There are two graphs, the gradients of all micro-batches and the update, because between them the
// host checks that the previous update was good. The first step runs eagerly (and with it all that
// happens once), the second is captured, later ones replay it, with the same bits: what changes
// from step to step is in the StepState and in the tensors of the batch.
//
// If graphs can't be used (batches of several shapes, leaves with hooks, or with observers as in
// distributed training, no caching allocator), steps are eager from then on, and `say` is told why.
// When parameters have moved, the step is captured again.
class StepGraphs {
 public:
  struct Options {
    int64_t micro_steps = 1;
    MicroStep micro_step;
    std::function<void()> update;                 // clipping and the optimizer
    std::function<void(const std::string&)> say;  // may be empty
  };

  // `state` and the parameters' leaves outlive it.
  StepGraphs(StepState& state, std::vector<std::shared_ptr<Parameter>> parameters,
             const Options& options);

  // The next step's micro-batch `i`; all are loaded before Gradients.
  void Load(int64_t i, const data::Batch& batch);

  // Computes the step's gradients, times root_gradient, and starts to read each micro-batch's loss.
  // The state's Begin was called, and the leaves are empty. `eager`: never by a graph (a trace
  // needs to see the kernels).
  std::vector<HostRead> Gradients(double root_gradient, bool eager = false);
  // The same of all micro-batches of a step; eagerly where its backwards are observed.
  std::vector<HostRead> Gradients(StepWork& work);
  // Makes the update, by a graph if the gradients were.
  void Update();

  // How many steps were replayed, for tests and reports.
  int64_t replays() const { return replays_; }

 private:
  void RunMicroSteps();
  void Capture();
  bool Ready(bool eager);
  bool ParametersMoved() const;
  void GiveUp(const std::string& why);

  StepState& state_;
  std::vector<std::shared_ptr<Parameter>> parameters_;
  Options options_;
  // What a step reads and writes; of one shape while graphs are used.
  std::vector<Tensor> ids_, targets_;
  std::vector<nn::Documents> documents_;
  std::vector<int64_t> first_sample_of_;
  Tensor first_samples_;  // the same on the device
  Tensor root_, losses_;  // [], [micro_steps]
  bool warm_ = false;     // a step has run eagerly
  bool given_up_ = false;
  bool replaying_ = false;  // the current step
  int64_t replays_ = 0;
  // What was captured: the addresses of the parameters, and the gradients that the graph writes.
  std::vector<const void*> values_;
  std::vector<Tensor> grads_;
  std::optional<cuda::GraphSpace> space_;
  cuda::Graph gradients_, update_;  // destroyed before the space
};

}  // namespace lockstep::models
