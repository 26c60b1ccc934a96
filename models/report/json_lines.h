// Files of one JSON object per line, flushed line by line: what a run records as it goes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "core/io/file.h"

namespace lockstep::models {

// Every object has a "step", ascending.
class JsonLinesWriter {
 public:
  // Keeps the lines of an earlier run up to and including `first_step` - 1 and appends from there.
  // `what` names the lines in warnings ("metrics"). IoError if the file cannot be written at this
  // point; later failures (a full disk) are only told to `warn`, once.
  JsonLinesWriter(std::string path, std::string what, int64_t first_step,
                  std::function<void(const std::string&)> warn);
  // The object without the end of its line.
  void Write(std::string_view object);

 private:
  std::string path_, what_;
  std::function<void(const std::string&)> warn_;
  std::optional<FileWriter> out_;  // none: not open yet, or the last write failed
  int64_t good_bytes_ = 0;
  bool warned_ = false;
};

}  // namespace lockstep::models
