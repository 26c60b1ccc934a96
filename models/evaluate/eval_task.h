// A task that is ready to be run, and what running it gives.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/evaluate/request_encoder.h"
#include "models/evaluate/score.h"

namespace lockstep::models {

struct Figure {
  std::string metric;           // "acc"
  std::string filter = "none";  // how an answer was read: "strict-match"
  double value = 0;
  std::optional<double> error;  // standard error; NaN if a single row leaves it open
};

struct TaskResult {
  std::string task;
  int64_t shots = 0, rows = 0;
  std::vector<Figure> figures;
  std::string part_of = {};  // the task of whose figures these are a part
};

struct TaskOptions {
  std::string folder;  // of all tasks' files
  int64_t shots = -1;  // examples before each question; -1: as many as the task has by itself
  int64_t limit = 0;   // questions of each task or group of one; 0: all
  // Whether standard errors that take long (of perplexities) are computed.
  bool all_errors = true;
};

class EvalTask {
 public:
  virtual ~EvalTask() = default;
  // Collective, as ScoreRequests. The whole task, then its parts, if it has any.
  virtual std::vector<TaskResult> Run(Gpt& model, const ScoreOptions& options) const = 0;
};

// The names that MakeTask knows: those of HarnessTasks, "core", "core_" and one of CoreTasks,
// "hellaswag_llmc".
std::vector<std::string> TaskNames();
// Names with commas between them. InputError for any that is unknown, with the nearest one.
std::vector<std::string> ParseTasks(const std::string& names);

// Of one of TaskNames: reads and encodes all that it asks, so that bad files are told before a
// model runs. The encoder outlives it. InputError as ReadRows and RequestEncoder.
std::unique_ptr<EvalTask> MakeTask(const std::string& name, const RequestEncoder& encoder,
                                   const TaskOptions& options);

// Perplexity of texts, by RequestEncoder::Rolling: per word, byte and token, and bits per byte.
// Words and bytes are those of the texts. A file is one text, and one of JSONL a text a row
// ("text"), also compressed (data/text/text_files.h says what a path may name).
std::unique_ptr<EvalTask> MakeTextTask(const std::vector<std::string>& paths,
                                       const RequestEncoder& encoder);

// The kinds of tasks behind MakeTask.
struct HarnessTask;
std::unique_ptr<EvalTask> MakeChoiceTask(const HarnessTask& task, const RequestEncoder& encoder,
                                         const TaskOptions& options);
std::unique_ptr<EvalTask> MakeLastWordTask(const HarnessTask& task, const RequestEncoder& encoder,
                                           const TaskOptions& options);
std::unique_ptr<EvalTask> MakeAnswerTask(const HarnessTask& task, const RequestEncoder& encoder,
                                         const TaskOptions& options);
// DCLM's CORE (core_tasks.h): all of its tasks and their mean, or one of them.
std::unique_ptr<EvalTask> MakeCoreTask(std::string_view one, const RequestEncoder& encoder,
                                       const TaskOptions& options);
// llm.c's hellaswag_val.bin, of GPT-2's tokens (llmc_task.cc).
std::unique_ptr<EvalTask> MakeLlmcTask(const RequestEncoder& encoder, const TaskOptions& options);

}  // namespace lockstep::models
