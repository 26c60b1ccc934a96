// How likely a model finds texts.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "models/evaluate/request_encoder.h"
#include "models/gpt/gpt.h"

namespace lockstep::models {

struct Score {
  double log_probability = 0;  // of the scored tokens, in nats: the sum
  bool greedy = false;         // each of them is the likeliest one where it stands
  bool operator==(const Score&) const = default;
};

// The ranks that divide batches among them, each with a model that computes by itself, or with
// others that have the same `own`.
struct Evaluators {
  int64_t count = 1, own = 0;
  // Collective: element-wise sums over all of them. Null for one.
  std::function<void(std::vector<double>*)> sum = nullptr;
  // Whether a rank's forwards need those of the other evaluators (sharded weights), so that all
  // must make equally many.
  bool meet_in_forward = false;
};

struct ScoreOptions {
  int64_t batch_size = 16;  // sequences at once
  Evaluators evaluators;
  // Told how many batches of how many are done.
  std::function<void(int64_t done, int64_t all)> progress = nullptr;
  // Asked every few batches, at the same ones on all ranks, where it must say the same; true ends
  // the work by an EvaluationStopped.
  std::function<bool()> stop = nullptr;
};

class EvaluationStopped : public Error {
 public:
  EvaluationStopped() : Error("a signal ended the evaluation") {}
};

// The scores of the requests, in their order. Collective. They are sorted by length, longest first,
// and each batch goes to one evaluator: so a score has the same bits however many there are. In a
// pipeline each batch is a micro-batch, which a stage computes while the next one has the batch
// before; the rank of the last stage has the scores, which Evaluators::sum brings to the others.
// The logits of at most 2^24 numbers are in memory at once, and only of positions that are scored;
// requests that differ in their last token are computed once. Another batch_size may change the
// last bits, since products of at most kFewRows rows (kernels/linear) are summed in another order.
// Log-softmax in f32, sums in f64. No gradient is recorded.
std::vector<Score> ScoreRequests(Gpt& model, std::span<const ScoreRequest> requests,
                                 const ScoreOptions& options);

}  // namespace lockstep::models
