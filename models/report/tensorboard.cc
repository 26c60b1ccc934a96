#include "models/report/tensorboard.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "core/error.h"
#include "core/system/unix_time.h"

namespace lockstep::models {
namespace {

constexpr std::string_view kPrefix = "events.out.tfevents.";

bool IsEventFile(const std::string& name) {
  return name.starts_with(kPrefix) && name.ends_with(".lockstep");
}

// The seconds in a file's name, by which TensorBoard orders them.
int64_t SecondsOf(const std::string& name) {
  int64_t seconds = 0;
  std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), seconds);
  return seconds;
}

// Cuts off the records from `first_step` on and damaged ones; removes a file that has no others.
void CutOff(const std::string& path, int64_t first_step) {
  const std::string file = ReadFile(path);
  int64_t good = 0, kept = 0;
  bool any = false;
  for (const Event& e : ParseEventFile(file, &good)) {
    if (!e.values.empty() && e.step >= first_step) break;
    kept = e.end;
    any = any || !e.values.empty();
  }
  if (!any) {
    RemoveTree(path);
  } else if (kept < static_cast<int64_t>(file.size())) {
    WriteFileAtomically(path, std::string_view(file).substr(0, static_cast<size_t>(kept)));
  }
}

// TensorBoard shows Markdown, which leaves indented text unchanged.
std::string AsMarkdown(const std::string& text) {
  std::string out = "    ";
  for (const char c : text) {
    out += c;
    if (c == '\n') out += "    ";
  }
  return out;
}

}  // namespace

template <class F>
void TensorBoardWriter::Try(F&& f) {
  if (!out_) return;
  try {
    f();
  } catch (const IoError& e) {
    out_.reset();
    warn_(StrCat("TensorBoard's events are not recorded: ", e.what(), "; training continues"));
  }
}

TensorBoardWriter::TensorBoardWriter(std::string folder, int64_t first_step,
                                     std::function<void(const std::string&)> warn)
    : warn_(std::move(warn)) {
  MakeDirectories(folder);
  auto seconds = static_cast<int64_t>(UnixTime());
  for (const std::string& name : ListDirectory(folder)) {
    if (!IsEventFile(name)) continue;
    CutOff(JoinPath(folder, name), first_step);
    seconds = std::max(seconds, SecondsOf(name) + 1);
  }
  path_ = JoinPath(folder, StrCat(kPrefix, seconds, ".", getpid(), ".lockstep"));
  out_.emplace(path_);
  Write(VersionEvent(UnixTime()));
  Flush();
}

TensorBoardWriter::~TensorBoardWriter() { Flush(); }

void TensorBoardWriter::Write(const std::string& event) {
  Try([&] { out_->Write(Record(event)); });
}

void TensorBoardWriter::Write(const StepMetrics& m) {
  std::vector<SummaryValue> values;
  const auto scalar = [&](const std::string& tag, double value) {
    values.push_back({tag, static_cast<float>(value), {}});
  };
  if (m.step > 0) {
    scalar("train/loss", m.loss);
    scalar("train/grad_norm", m.grad_norm);
    scalar("train/learning_rate", m.lr);
    scalar("train/tokens_per_second", m.tokens_per_second);
    scalar("train/step_ms", m.ms);
    if (m.loss_scale > 0) scalar("train/loss_scale", m.loss_scale);
    if (m.mfu > 0) scalar("train/mfu", m.mfu);
    if (m.gemm_share > 0) scalar("train/gemm_share", m.gemm_share);
    if (m.memory_bytes > 0) scalar("train/memory_bytes", static_cast<double>(m.memory_bytes));
  }
  if (m.val_loss) scalar("validation/loss", *m.val_loss);
  if (m.val_bpb) scalar("validation/bits_per_byte", *m.val_bpb);
  if (m.val_loss_ema) scalar("validation/loss of averages", *m.val_loss_ema);
  for (const SourceLoss& of : m.val_sources) {
    scalar("validation/loss of " + of.name, of.loss);
    if (of.bpb) scalar("validation/bits_per_byte of " + of.name, *of.bpb);
  }
  for (const auto& [name, value] : m.tasks) scalar("tasks/" + name, value);
  if (!values.empty()) Write(SummaryEvent(m.unix_time, m.step, values));
}

void TensorBoardWriter::Write(const TextSample& sample, double unix_time) {
  Write(SummaryEvent(unix_time, sample.step,
                     {{"sample", 0, AsMarkdown(sample.prompt + sample.text), true}}));
}

void TensorBoardWriter::Flush() {
  Try([&] { out_->Flush(); });
}

}  // namespace lockstep::models
