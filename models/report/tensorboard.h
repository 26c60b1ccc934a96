// tensorboard/: the curves and samples of a run for TensorBoard.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "core/io/file.h"
#include "models/report/event_file.h"
#include "models/report/metrics.h"
#include "models/report/report.h"

namespace lockstep::models {

// Each run, and each time that it is resumed, adds a file to the folder. Steps from `first_step` on
// are cut off from earlier files, so that no step is recorded twice. As with the other records,
// IoError if the folder cannot be written at the start; later failures are reported to `warn` once
// and end the records.
//
// Tags: train/loss, train/grad_norm, train/learning_rate, train/tokens_per_second, train/step_ms,
// train/mfu, train/gemm_share, train/memory_bytes, validation/loss; text: sample.
class TensorBoardWriter {
 public:
  TensorBoardWriter(std::string folder, int64_t first_step,
                    std::function<void(const std::string&)> warn);
  ~TensorBoardWriter();

  // Buffered until Flush.
  void Write(const StepMetrics& metrics);
  void Write(const TextSample& sample, double unix_time);
  void Flush();

  const std::string& path() const { return path_; }  // of this run's file

 private:
  void Write(const std::string& event);
  template <class F>
  void Try(F&& f);

  std::function<void(const std::string&)> warn_;
  std::string path_;
  std::optional<FileWriter> out_;  // none after a failure
};

}  // namespace lockstep::models
