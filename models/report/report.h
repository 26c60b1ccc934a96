// report.html: a run on one page. One file, no network, light and dark.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dist/pipeline/schedule.h"
#include "models/options/config.h"
#include "models/report/ledger.h"
#include "models/report/run_health.h"
#include "models/report/run_history.h"

namespace lockstep::models {

// How the model continued the prompt after `step` updates.
struct TextSample {
  int64_t step = 0;
  std::string prompt, text;
};

// samples.jsonl: a line per sample.
std::string ToJson(const TextSample& sample);
// The last `most` samples of a samples.jsonl, oldest first; none if there is no file. Lines that
// are not samples are skipped. IoError.
std::vector<TextSample> ReadSamples(const std::string& path, size_t most);

struct ReportInput {
  std::string name;      // of the run: its folder
  double unix_time = 0;  // when the report is made, in seconds
  RunPlan plan;
  std::vector<std::pair<std::string, std::string>> facts;  // what is trained, on what: "model", ...
  RunConfig config;
  std::vector<TextSample> samples;                   // oldest first
  std::optional<dist::PipelineSchedule> pipeline{};  // what a step goes through
  LedgerInput ledger{};
};

// The whole file, with all texts escaped.
std::string RenderReport(const RunHistory& history, const ReportInput& input);

}  // namespace lockstep::models
