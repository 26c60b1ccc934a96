// Files with one JSON object per line, flushed line by line, for what a run records.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "core/io/file.h"
#include "core/io/json.h"

namespace lockstep::models {

// Calls use(line) for each line of the file, without its end, of which only one is in memory at a
// time. Does nothing if there is no such file. IoError.
void ForEachLine(const std::string& path, const std::function<void(const std::string&)>& use);

// The "step" of a line, an integer from 0 on; nothing if the line is not an object with one.
std::optional<int64_t> StepOf(const Json& line);

// Every object has a "step"; steps ascend.
class JsonLinesWriter {
 public:
  // Which steps must have a line: no particular ones; all from the first line's on, where there
  // must be one, or may be none yet.
  enum class Lines { kSome, kEvery, kEveryFromFirst };

  // Keeps the lines of an earlier run up to and including `first_step` - 1 and appends to them.
  // `what` names the lines in warnings ("metrics"): `warn` is told which are missing. IoError if
  // the file cannot be written now; later failures (a full disk) are only reported to `warn`, once.
  JsonLinesWriter(std::string path, std::string what, int64_t first_step,
                  std::function<void(const std::string&)> warn, Lines lines = Lines::kSome);
  // `object` has no newline at its end.
  void Write(std::string_view object);

 private:
  std::string path_, what_;
  std::function<void(const std::string&)> warn_;
  std::optional<FileWriter> out_;  // none: not open yet, or the last write failed
  int64_t good_bytes_ = 0;
  bool warned_ = false;
};

}  // namespace lockstep::models
