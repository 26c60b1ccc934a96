// metrics.jsonl: one JSON object per line and step, flushed.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "core/file.h"

namespace lockstep::models {

struct StepMetrics {
  int64_t step = 0;      // updates made; 0: before the first, with val_loss alone
  double loss = 0;       // nats per token, before the update
  double grad_norm = 0;  // before clipping
  double lr = 0;
  double ms = 0;  // wall time of the step, without evaluation and checkpoints
  double tokens_per_second = 0;
  std::optional<double> val_loss;  // after the update, where evaluated
};

class MetricsWriter {
 public:
  // Keeps the lines of an earlier run up to and including `first_step` - 1 and appends from there.
  // IoError if the file cannot be written at this point; later failures (a full disk) are only told
  // to `warn`, once.
  MetricsWriter(std::string path, int64_t first_step, std::function<void(const std::string&)> warn);
  void Write(const StepMetrics& metrics);

 private:
  std::string path_;
  std::function<void(const std::string&)> warn_;
  std::optional<FileWriter> out_;  // none: not open yet, or the last write failed
  int64_t good_bytes_ = 0;
  bool warned_ = false;
};

// The line without its end, as Write writes it.
std::string ToJson(const StepMetrics& metrics);

}  // namespace lockstep::models
