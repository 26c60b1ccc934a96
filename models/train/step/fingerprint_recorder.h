// log.fingerprints: writes what chosen steps compute (models/report/fingerprints.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/autograd/op_observer.h"
#include "dist/tensor/tensor_ranks.h"
#include "models/gpt/gpt.h"
#include "models/report/fingerprints.h"
#include "models/report/json_lines.h"
#include "models/train/run_ranks.h"
#include "models/train/run_setup.h"
#include "models/train/step/forward_place.h"
#include "models/train/step/step_observer.h"

namespace lockstep::models {

// Each rank computes the fingerprints of what only it has, and a share of what several have, in one
// pass over the bytes; they are added over the ranks once per chosen step. On a GPU the tensors are
// copied to the host first.
//
// Activations are those of the residual stream, [B, T, C], of which ranks have parts by sample,
// position and stage: what attention, the layers after it and the last norm give. A module gives
// what its last operation does. Runs whose steps may be CUDA graphs have none.
class FingerprintRecorder : public StepObserver, public OpObserver {
 public:
  // Collective. Everything outlives it. `graphs`: whether steps may be CUDA graphs.
  FingerprintRecorder(const RunSetup& setup, const RunRanks& ranks, const Gpt& model,
                      ForwardPlace& place, bool graphs);

  void BeginStep(int64_t step) override;
  void OnBatch(const data::Batch& batch) override;
  void BeforeUpdate() override;
  void EndStep() override;  // collective
  void OnForward(const Node* node, std::span<const Tensor* const> inputs,
                 std::span<Tensor* const> outputs) override;

 private:
  // Elements [begin, end) of this rank's part of a parameter, of which others may have copies.
  struct Share {
    std::shared_ptr<Parameter> parameter;
    int64_t begin = 0, end = 0;
  };
  bool chosen() const { return observe_.has_value(); }
  void OnModule(const std::string& path);
  uint64_t OfActivation(const Tensor& x) const;
  void AddUp(StepFingerprints* of_step) const;

  const RunSetup& setup_;
  const RunRanks& ranks_;
  const dist::TensorRanksPtr parts_;  // of the residual stream
  const bool counts_data_;            // no rank before this one reads the same micro-batches
  FingerprintNames names_;
  std::map<std::string, size_t> activations_;  // by path
  std::vector<Share> shares_;
  std::unique_ptr<JsonLinesWriter> file_;  // on the main rank
  StepFingerprints sums_;                  // of this rank, in a chosen step
  std::optional<ObserveOps> observe_;      // in a chosen step
  Tensor last_;                            // what the last operation gave
};

}  // namespace lockstep::models
