// log.ops: writes what every operation of one step gives (models/report/op_events.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/autograd/op_observer.h"
#include "core/io/safetensors_writer.h"
#include "core/parameter.h"
#include "dist/call_observer.h"
#include "models/options/option_step_range.h"
#include "models/report/op_events.h"
#include "models/train/step/forward_place.h"
#include "models/train/step/step_observer.h"

namespace lockstep::models {

// Of one rank, on which it writes its own file. Within the step, collectives do not overlap with
// anything; the bits are those of any other run.
//
// The event kKeepModules keeps no event's tensors, but what another program can be compared with:
// of micro-batch M "data.M.inputs", "data.M.targets" and "activations.M.PATH", which is what the
// last operation of a module gave, and "weights.NAME", before the update, and "gradients.NAME".
class OpTrace : public StepObserver, public OpObserver, public dist::CallObserver {
 public:
  // `folder`: of the files. `place` and the parameters outlive it.
  OpTrace(TracedOps traced, std::string folder, int64_t rank,
          std::vector<std::shared_ptr<Parameter>> parameters, ForwardPlace& place);

  // Whether the step has been made and written.
  bool done() const { return done_; }

  void BeginStep(int64_t step) override;
  void OnBatch(const data::Batch& batch) override;
  void BeforeUpdate() override;
  void EndStep() override;  // throws IoError
  void OnForward(const Node* node, std::span<const Tensor* const> inputs,
                 std::span<Tensor* const> outputs) override;
  void OnBackward(const Node& node, std::span<const Tensor> of_outputs) override;
  void OnGradients(const Node& node, std::span<const Tensor> of_inputs) override;
  void OnRandom(uint64_t seed, uint64_t site) override;
  void OnCall(const std::string& group, const dist::Collective& call, const std::string& purpose,
              const Tensor& input) override;
  void OnResult(const std::string& group, const dist::Collective& call,
                const Tensor& output) override;

 private:
  bool observes() const { return observe_.has_value(); }
  // The next of this thread's events.
  OpEvent& Add(const char* kind, std::string name, std::string module);
  void AddTensors(OpEvent& event, bool in, std::span<const Tensor* const> tensors);
  void AddTensor(OpEvent& event, bool in, const Tensor& x);
  void Keep(const std::string& name, const Tensor& x);
  void OnModule(const std::string& path);
  // From 1 in the step: a group counts its calls since it was made, and runs that went on from
  // checkpoints have made fewer.
  int64_t NumberOf(const std::string& group, const dist::Collective& call);
  bool keeps_modules() const { return traced_.event == kKeepModules; }

  const TracedOps traced_;
  const std::string folder_;
  const int64_t rank_;
  const std::vector<std::shared_ptr<Parameter>> parameters_;
  const ForwardPlace& place_;
  std::optional<ObserveOps> observe_;  // in the step
  std::optional<dist::ObserveCalls> observe_calls_;
  bool done_ = false;
  std::map<uint64_t, std::string> modules_;  // of nodes, by their numbers
  std::vector<size_t> backwards_;            // events that have begun and not ended
  int64_t micro_batch_ = 0;                  // the one that was read last
  Tensor last_;                              // what the last operation gave, if modules are kept
  std::vector<OpEvent> events_;
  std::atomic<int64_t> count_ = 0;  // of these
  std::mutex mutex_;                // of what follows, which lanes' threads change, too
  std::map<std::string, std::map<int64_t, int64_t>> numbers_;  // of calls, by group and sequence
  std::map<std::string, OpEvent> calls_;
  std::vector<SafetensorsItem> kept_;
};

}  // namespace lockstep::models
