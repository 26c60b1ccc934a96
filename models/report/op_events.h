// ops-STEP.rank-N.jsonl: what every operation of a step gave, on one rank.
//
//   {"key":"17","kind":"op","name":"gelu","module":"h.0.mlp","at":17,
//    "of":"f32[4, 64, 512]","in":["0f3c..."],"out":["91ab..."]}
//
// Runs of one plan have the same events in the same order, but for collectives, which several
// threads may call: these have the key "group#number", counted in the step, the same on all
// ranks of the group, and `at` says how many other events came before. That of a backward is where
// it ends.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::models {

struct OpEvent {
  // start     a weight before the step: out
  // data      a micro-batch's inputs and targets: out
  // random    random numbers: in, their seed and site
  // op        an operation: the tensors that it was given, and gave; its name says if it has no
  // backward,
  //           as those of frozen weights
  // backward  a node's backward: the gradients of its outputs, and of its inputs as far as they are
  //           added up
  // collective  what this rank gave, and got
  // gradient  a gradient, summed over micro-batches and ranks: out
  // update    a weight's gradient; and the weight after the update
  std::string kind;
  std::string key, name, module;  // name: of the operation, the parameter, or what the call is for
  std::string of;                 // the first tensor that it gave: "f32[4, 64, 512]"
  int64_t at = 0;
  std::vector<std::string> in, out;  // fingerprints, of this rank's parts
};

std::string OpEventsFile(int64_t step, int64_t rank);
// The tensors of the event that log.ops names: "in.0", "out.0" and so on.
std::string OpTensorsFile(int64_t step, int64_t rank);

std::string ToJson(const OpEvent& event);
// InputError if the file is not there, or damaged.
std::vector<OpEvent> ReadOpEvents(const std::string& path);

}  // namespace lockstep::models
