#include "models/metrics.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"

namespace lockstep::models {
namespace {

// The lines of steps before `first_step`. A line that a crash cut short is dropped.
std::string KeptLines(const std::string& path, int64_t first_step) {
  std::string kept;
  if (!PathExists(path)) return kept;
  std::istringstream in(ReadFile(path));
  for (std::string line; std::getline(in, line);) {
    const auto j = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (j.is_object() && j.value("step", first_step) < first_step) kept += line + "\n";
  }
  return kept;
}

}  // namespace

std::string ToJson(const StepMetrics& m) {
  nlohmann::ordered_json j;
  if (m.step == 0) {
    j["step"] = 0;
    if (m.val_loss) j["val_loss"] = *m.val_loss;
    return j.dump();
  }
  j = {{"step", m.step}, {"loss", m.loss}, {"grad_norm", m.grad_norm},
       {"lr", m.lr},     {"ms", m.ms},     {"tokens_per_second", m.tokens_per_second}};
  if (m.val_loss) j["val_loss"] = *m.val_loss;
  return j.dump();
}

MetricsWriter::MetricsWriter(std::string path, int64_t first_step,
                             std::function<void(const std::string&)> warn)
    : path_(std::move(path)), warn_(std::move(warn)) {
  const std::string kept = KeptLines(path_, first_step);
  WriteFileAtomically(path_, kept);
  good_bytes_ = static_cast<int64_t>(kept.size());
}

void MetricsWriter::Write(const StepMetrics& metrics) {
  const std::string line = ToJson(metrics) + "\n";
  try {
    if (!out_) {
      // What a failed write left behind is half a line.
      std::error_code ignored;
      std::filesystem::resize_file(path_, static_cast<uintmax_t>(good_bytes_), ignored);
      out_.emplace(path_, FileWriterOptions{.mode = FileWriterOptions::Mode::kAppend});
    }
    out_->Write(line);
    out_->Flush();
    good_bytes_ += static_cast<int64_t>(line.size());
  } catch (const IoError& e) {
    out_.reset();
    if (!std::exchange(warned_, true)) {
      warn_(StrCat("metrics are not recorded: ", e.what(), "; training goes on"));
    }
  }
}

}  // namespace lockstep::models
