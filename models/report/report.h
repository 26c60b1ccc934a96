// report.html: a run on one page, for people. One file, no network, light and dark.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "models/options/config.h"
#include "models/report/run_history.h"
#include "models/report/verdict.h"

namespace lockstep::models {

// Text that the model wrote after `step` updates, going on from the prompt.
struct TextSample {
  int64_t step = 0;
  std::string prompt, text;
};

// samples.jsonl: a line per sample.
std::string ToJson(const TextSample& sample);
// The last `most` of a samples.jsonl, oldest first; none where there is no file. Lines that are no
// samples are passed over. IoError.
std::vector<TextSample> ReadSamples(const std::string& path, size_t most);

struct ReportInput {
  std::string name;      // of the run: its folder
  double unix_time = 0;  // when the report is made; seconds
  RunPlan plan;
  std::vector<std::pair<std::string, std::string>> facts;  // what is trained, on what: "model", ...
  RunConfig config;
  std::vector<TextSample> samples;  // oldest first
};

// The whole file. Whatever text is in it is escaped.
std::string RenderReport(const RunHistory& history, const ReportInput& input);

}  // namespace lockstep::models
