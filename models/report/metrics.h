// metrics.jsonl: one JSON object per line and step, flushed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/preference/preference_metrics.h"

namespace lockstep::models {

// Where the wall time of a step went, in milliseconds. The parts add up to all of it.
struct StepTimes {
  double data_ms = 0;      // waiting for batches and making tensors from them
  double forward_ms = 0;   // up to the loss
  double backward_ms = 0;  // gradients, and reading the loss
  double exposed_ms = 0;   // after backward: waiting for gradients to be summed over the ranks
  double update_ms = 0;    // learning rate, clipping, optimizer, clearing the gradients
  double total() const { return data_ms + forward_ms + backward_ms + exposed_ms + update_ms; }
};

// Wall time since the previous line that was not training, in milliseconds.
struct PauseTimes {
  double eval_ms = 0, sample_ms = 0, checkpoint_ms = 0, report_ms = 0;
  double total() const { return eval_ms + sample_ms + checkpoint_ms + report_ms; }
};

// The validation loss of a source of a mixture, or of a file of data.val_path.
struct SourceLoss {
  std::string name;
  double loss = 0;
  std::optional<double> bpb{};
};

inline constexpr char kBetweenKernels[] = "between kernels";

struct StepMetrics {
  int64_t step = 0;      // updates made; 0: before the first, with only val_loss
  double loss = 0;       // nats per token, before the update
  double grad_norm = 0;  // before clipping, without the loss scale
  double lr = 0;
  double ms = 0;  // wall time of the step, without evaluation and checkpoints: times.total()
  double tokens_per_second = 0;
  double mfu = 0, gemm_share = 0;  // models/train/utilization.h; 0: not known
  StepTimes times;
  // Several ranks: how long gradients were being summed, and how much of that during backward; the
  // rest is in times.exposed_ms, with the wait for slower ranks.
  double communication_ms = 0, overlapped_ms = 0;
  double arrival_ms = 0, receiving_ms = 0;  // dist::CommunicationTimes; not written
  // The rank that came latest to the sums of the steps since the last line that has one, and by how
  // much in each step; -1: nobody compared ranks here. `late`: "rank 1 on node7 (computing)", if it
  // is late enough to be named (dist::SlowRanks).
  int64_t late_rank = -1;
  double late_ms = 0;
  std::string late;
  PauseTimes pauses;
  // Of the steps since the last line that has it: what each kernel took, by its slot's name, and
  // what forward, backward and update took besides (kBetweenKernels). Empty on a GPU.
  std::vector<std::pair<std::string, double>> kernel_ms;
  double slow_kernels = 0;   // so far, on the first rank: problems for which a faster kernel exists
  int64_t memory_bytes = 0;  // peak of tensors on the device during the step
  double unix_time = 0;      // seconds, when the line was written
  double loss_scale = 0;     // after the step; 0: there is none
  // The largest and the smallest load of an expert in the step, over the mean of its layer, in the
  // worst layer; expert_most 0: there are no experts.
  double expert_most = 0, expert_least = 0;
  bool skipped = false;  // there was no update, since a gradient times the loss scale was infinite
  bool spike = false;    // there was no update, since the loss or the norm was one (train.spike)
  std::optional<double> val_loss;       // after the update, if evaluated
  std::optional<double> val_bpb;        // the same in bits per byte of text, where that is known
  std::optional<double> val_loss_ema;   // the same of the averages of the weights (optim.ema)
  std::vector<SourceLoss> val_sources;  // with val_loss, if there are several
  // Figures of eval.tasks, after the update, if evaluated: {"hellaswag acc", 0.28}.
  std::vector<std::pair<std::string, double>> tasks;
  // With preference tuning, whose losses are nats per pair: those of the step's pairs, and of the
  // pairs held out.
  std::optional<PreferenceMetrics> preference, val_preference;
};

// The line without its newline. Numbers that are not finite become null.
std::string ToJson(const StepMetrics& metrics);
// Parses what ToJson wrote in this version, or in an earlier one with fewer fields; null is NaN.
// Nothing for anything else.
std::optional<StepMetrics> ParseMetrics(std::string_view line);

}  // namespace lockstep::models
