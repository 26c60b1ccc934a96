#include "models/report/json_lines.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <utility>

#include "core/error.h"
#include "core/io/json.h"

namespace lockstep::models {

void ForEachLine(const std::string& path, const std::function<void(const std::string&)>& use) {
  if (!PathExists(path)) return;
  std::string line;
  ReadFileInPieces(path, [&](std::span<const std::byte> bytes) {
    std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    for (size_t end; (end = text.find('\n')) != std::string_view::npos;
         text.remove_prefix(end + 1)) {
      line += text.substr(0, end);
      use(line);
      line.clear();
    }
    line += text;
  });
  if (!line.empty()) use(line);
}

std::optional<int64_t> StepOf(const Json& line) {
  if (!line.is_object() || !line.contains("step")) return {};
  try {
    return IntegerOf(line["step"], 0);
  } catch (const InputError&) {
    return {};
  }
}

namespace {

// "2 to 5, 9": which steps are missing among those that it is told of.
class MissingSteps {
 public:
  // The steps from 1 on that come before this one should have been seen.
  void See(int64_t step) {
    if (step > next_ && ++gaps_ <= kMostTold) {
      text_ += text_.empty() ? "" : ", ";
      text_ += step - 1 == next_ ? StrCat(next_) : StrCat(next_, " to ", step - 1);
    }
    Skip(step + 1);
  }
  void Skip(int64_t next) { next_ = std::max(next_, next); }
  std::string text() const { return gaps_ > kMostTold ? text_ + " and more" : text_; }

 private:
  static constexpr int kMostTold = 10;
  int64_t next_ = 1;
  int gaps_ = 0;
  std::string text_;
};

}  // namespace

JsonLinesWriter::JsonLinesWriter(std::string path, std::string what, int64_t first_step,
                                 std::function<void(const std::string&)> warn, Lines lines)
    : path_(std::move(path)), what_(std::move(what)), warn_(std::move(warn)) {
  // The lines of steps before `first_step`, without one that a crash truncated.
  std::string kept;
  MissingSteps missing;
  ForEachLine(path_, [&](const std::string& line) {
    const auto step = StepOf(TryParseJson(line));
    if (!step || *step >= first_step) return;
    // A run that began with another one's checkpoint has no lines of that one's steps.
    if (kept.empty()) missing.Skip(*step);
    missing.See(*step);
    kept += line + "\n";
  });
  if (!kept.empty() || lines == Lines::kEvery) missing.See(first_step);
  if (lines != Lines::kSome && !missing.text().empty()) {
    warn_(StrCat(path_, " has no ", what_, " of step ", missing.text(),
                 ": it was removed or cut since they were written, or its disk was full then. The "
                 "run goes on without them, and its report has a gap"));
  }
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
