// The schedule of a pipeline: who computes what in which order, as data.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::dist {

// A model cut into stages, each on one rank, and a step cut into micro-batches, which go through
// the stages one after the other. With p ranks, m micro-batches, and times F, I and W of a rank's
// forward, input gradient and weight gradient of one micro-batch:
enum class PipelineKind {
  // Narayanan et al., "PipeDream" (2019): forwards and backwards in turn. Idle for
  // (p - 1)(F + I + W).
  k1F1B,
  // Narayanan et al., "Efficient large-scale language model training on GPU clusters" (2021):
  // v stages per rank, r, r + p, ...; idle for (p - 1)(F + I + W) / v, for v times the transfers.
  kInterleaved,
  // Qi et al., "Zero bubble pipeline parallelism" (2023): the memory of 1F1B's first rank on every
  // rank, idle for (p - 1)(F + I - W).
  kZeroBubbleH1,
  // Qi et al., "Pipeline parallelism with controllable memory" (2024): stages r and 2p - 1 - r, so
  // rank 0 has the first and the last; idle for (p - 1) / 2 where F = I = W = 1.
  kZeroBubbleV,
};
// "1f1b", "interleaved", "zb_h1", "zbv"; throws ArgumentError that lists them for another name.
PipelineKind ParsePipelineKind(std::string_view name);
std::string_view Name(PipelineKind kind);

enum class PipelineOp {
  kForward,
  kBackward,  // both gradients
  kInputGrad,
  kWeightGrad,
  kSendForward,      // the stage's output, to the next stage's rank
  kReceiveForward,   // the stage's input
  kSendBackward,     // the gradient of the stage's input, to the previous stage's rank
  kReceiveBackward,  // the gradient of the stage's output
};

struct PipelineAction {
  int stage = 0;
  PipelineOp op = PipelineOp::kForward;
  int micro = 0;
  bool operator==(const PipelineAction&) const = default;

  bool is_send() const;
  bool is_receive() const;
  bool is_transfer() const { return is_send() || is_receive(); }
};
// As PyTorch writes them: "2F0", "2B0", "2I0", "2W0", "2SEND_F0", "2RECV_F0", "2SEND_B0",
// "2RECV_B0".
std::string ToString(const PipelineAction& action);
// The other rank's action of a transfer: the receive of a send, the send of a receive. Its stage
// may not exist.
PipelineAction OtherEnd(const PipelineAction& transfer);

struct PipelineSchedule {
  int micro_batches = 0;
  std::vector<int> rank_of;                          // of each stage
  std::vector<std::vector<PipelineAction>> actions;  // of each rank, in order
  // The most stage inputs that each rank keeps at the same time, from a forward to the (weight)
  // gradient of its micro-batch; empty: no limit is known.
  std::vector<int> in_flight{};

  int ranks() const { return static_cast<int>(actions.size()); }
  int stages() const { return static_cast<int>(rank_of.size()); }
  // Whether the stages' neighbours are on other ranks, so that something has to be sent.
  bool crosses(int stage, int next) const { return rank_of[stage] != rank_of[next]; }
  std::vector<int> StagesOf(int rank) const;  // ascending
  // For tables with an entry for each stage and micro-batch.
  size_t cells() const { return CellOf(stages(), 0); }
  size_t CellOf(int stage, int micro) const {
    return static_cast<size_t>(stage) * static_cast<size_t>(micro_batches) +
           static_cast<size_t>(micro);
  }
};

// The number of stages per rank: 2 for zbv, `chunks` for interleaved, else 1.
int ChunksOf(PipelineKind kind, int chunks);

// Without transfers. A pure function of its arguments. Throws ArgumentError for sizes below 1 and,
// for interleaved, micro-batches that do not fill rounds of equal length.
PipelineSchedule MakeSchedule(PipelineKind kind, int ranks, int micro_batches, int chunks = 2);

// Only forwards, for evaluation, of stages that are on these ranks: each rank runs the latest stage
// for which something is there. Without transfers.
PipelineSchedule ForwardSchedule(const std::vector<int>& rank_of, int micro_batches);

// Adds the sends and receives between stages on different ranks. Each rank's transfers are in the
// order of one common list of all transfers, so that they cannot wait for each other in a circle,
// even where a send waits for its receive. Throws ArgumentError if the schedule cannot be carried
// out (schedule_check.h says why).
PipelineSchedule AddTransfers(const PipelineSchedule& schedule);

}  // namespace lockstep::dist
