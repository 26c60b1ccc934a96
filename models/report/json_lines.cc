#include "models/report/json_lines.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "core/error.h"
#include "core/io/json.h"

namespace lockstep::models {
namespace {

// The lines of steps before `first_step`, without one that a crash truncated.
std::string KeptLines(const std::string& path, int64_t first_step) {
  std::string kept;
  if (!PathExists(path)) return kept;
  std::istringstream in(ReadFile(path));
  for (std::string line; std::getline(in, line);) {
    const auto step = StepOf(TryParseJson(line));
    if (step && *step < first_step) kept += line + "\n";
  }
  return kept;
}

}  // namespace

std::optional<int64_t> StepOf(const nlohmann::json& line) {
  if (!line.is_object() || !line.contains("step")) return {};
  try {
    return IntegerOf(line["step"], 0);
  } catch (const InputError&) {
    return {};
  }
}

JsonLinesWriter::JsonLinesWriter(std::string path, std::string what, int64_t first_step,
                                 std::function<void(const std::string&)> warn)
    : path_(std::move(path)), what_(std::move(what)), warn_(std::move(warn)) {
  const std::string kept = KeptLines(path_, first_step);
  WriteFileAtomically(path_, kept);
  good_bytes_ = static_cast<int64_t>(kept.size());
}

void JsonLinesWriter::Write(std::string_view object) {
  const std::string line = StrCat(object, "\n");
  try {
    if (!out_) {
      // A failed write may have left half a line.
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
      warn_(StrCat(what_, " are not recorded: ", e.what(), "; training continues"));
    }
  }
}

}  // namespace lockstep::models
