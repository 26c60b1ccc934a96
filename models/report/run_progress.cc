#include "models/report/run_progress.h"

#include <errno.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <ranges>

#include "core/error.h"
#include "core/system/shell_word.h"
#include "models/evaluate/task_results.h"
#include "models/options/invocation.h"
#include "models/report/format.h"
#include "models/report/run_summary.h"
#include "models/train/run_tasks.h"

namespace lockstep::models {
namespace {

// Of all updates, that a run skips; a scale that is much too high at first is halved once a step.
constexpr double kManySkips = 0.1;

std::atomic<bool> output_is_closed{false};

// "linear_backward 41%, linear_forward 22%, ...": the five that took longest.
std::string LongestKernels(const std::map<std::string, double>& kernel_ms) {
  std::vector<std::pair<double, std::string>> rows;
  double all = 0;
  for (const auto& [name, ms] : kernel_ms) {
    rows.emplace_back(ms, name);
    all += ms;
  }
  std::ranges::sort(rows, std::greater());
  std::string text;
  for (const auto& [ms, name] : rows | std::views::take(5)) {
    text += fmt::format("{}{} {:.0f}%", text.empty() ? "" : ", ", name, 100 * ms / all);
  }
  return text;
}

std::string Describe(const std::optional<PreferenceMetrics>& preference) {
  if (!preference) return "";
  return fmt::format(" | margin {:.3f} | accuracy {:.0f}%", preference->margin(),
                     100 * preference->accuracy);
}

}  // namespace

void Print(const std::string& line) {
  const bool written = std::fputs((line + "\n").c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  if (!written && errno == EPIPE) output_is_closed = true;
}

void Warn(const std::string& message) {
  std::fputs(StrCat("warning: ", message, "\n").c_str(), stderr);
}

bool OutputIsClosed() { return output_is_closed; }

void PrintSetup(const RunSetup& setup, const Gpt& model, const MemoryPlan& memory) {
  for (const auto& [name, text] : DescribeRun(setup, model, memory)) {
    Print(fmt::format("  {:<11}{}", name, text));
  }
}

void RunProgress::Add(const StepMetrics& m) {
  ++steps_;
  if (m.skipped) ++skipped_;
  if (m.spike) ++spikes_;
  tokens_ += std::llround(m.tokens_per_second * m.ms * 1e-3);
  seconds_ += m.ms / 1e3;
  for (const auto& [name, ms] : m.kernel_ms) kernel_ms_[name] += ms;
}

void RunProgress::PrintStep(const StepMetrics& m, const std::optional<Outlook>& outlook) {
  const double seconds_per_step = seconds_ / static_cast<double>(steps_);
  const double per_second = static_cast<double>(tokens_) / seconds_;
  const std::string share = utilization_.Describe(per_second);
  const std::string norm = m.skipped ? "infinite" : fmt::format("{:.2f}", m.grad_norm);
  const std::string skipped = skipped_ + spikes_ > 0 ? fmt::format(" | {} of {} updates skipped",
                                                                   skipped_ + spikes_, steps_)
                                                     : "";
  const int64_t steps = outlook ? outlook->steps : setup_.steps();
  const std::string of = steps == 0 ? "" : StrCat(setup_.config.train.is_open() ? "~" : "", steps);
  const std::string eta =
      !outlook     ? FormatDuration(seconds_per_step * static_cast<double>(steps - m.step))
      : steps == 0 ? "unknown"
                   : FormatDuration(outlook->seconds);
  Print(fmt::format(
      "step {:>{}}{}{} | loss {:.4f}{} | norm {}{} | lr {:.1e} | {:.1f} ms | {} tok/s{}{} | eta "
      "{}{}",
      m.step, of.size(), of.empty() ? "" : "/", of, m.loss, Describe(m.preference), norm, skipped,
      m.lr, seconds_per_step * 1e3, FormatCount(per_second), share.empty() ? "" : " | ", share, eta,
      outlook ? fmt::format(" of {}", FormatDuration(std::max(0.0, outlook->left))) : ""));
  total_tokens_ += tokens_;
  total_seconds_ += seconds_;
  total_steps_ += steps_;
  total_skipped_ += skipped_;
  total_spikes_ += spikes_;
  steps_ = tokens_ = skipped_ = spikes_ = 0;
  seconds_ = 0;
}

void RunProgress::PrintEvaluation(const StepMetrics& m, bool best, int64_t tokens, double seconds) {
  const double loss = *m.val_loss;
  if (evaluations_++ == 0) first_val_loss_ = loss;
  last_val_loss_ = loss;
  Print(fmt::format("step {} | validation loss {:.4f}{}{}{}{} | {} tokens in {:.1f}s", m.step, loss,
                    best && m.step > 0 ? " (best)" : "",
                    m.val_loss_ema ? fmt::format(", of averages {:.4f}", *m.val_loss_ema) : "",
                    Describe(m.val_preference),
                    m.val_bpb ? fmt::format(" | {:.4f} bits per byte", *m.val_bpb) : "",
                    FormatCount(static_cast<double>(tokens)), seconds));
  for (const SourceLoss& of : m.val_sources) {
    Print(fmt::format("  {}: {:.4f}{}", of.name, of.loss,
                      of.bpb ? fmt::format(" | {:.4f} bits per byte", *of.bpb) : ""));
  }
}

void RunProgress::PrintTasks(int64_t step, const std::vector<TaskResult>& results,
                             double seconds) const {
  if (setup_.start.evaluates) return Print(Table(results));
  std::string figures;
  for (const auto& [name, value] : NamedFigures(results)) {
    figures += fmt::format("{} {:.4g} | ", name, value);
  }
  Print(fmt::format("step {} | {}{:.1f}s", step, figures, seconds));
}

void RunProgress::PrintSample(const std::string& prompt, const std::string& text) const {
  Print("---- sample ----\n" + (prompt == "\n" ? "" : prompt) + text + "\n----------------");
}

void RunProgress::PrintInterrupted(int64_t step, bool on_one_machine) const {
  const std::string& folder = setup_.config.out_dir;
  const ParallelOptions& parallel = setup_.config.parallel;
  const int64_t processes = setup_.data_ranks * parallel.pp * parallel.cp * parallel.tp;
  std::string how = " on all machines";
  if (on_one_machine) {
    how = fmt::format(", or:\n  {} {} --out_dir={}{}", CommandOf("//models:train_gpt"),
                      ShellWord(folder + "/config.toml"), ShellWord(folder),
                      processes > 1 ? fmt::format(" --nproc={}", processes) : "");
  }
  Print(fmt::format(
      "interrupted after step {}; checkpoint saved. To continue, run the same command again{}",
      step, how));
}

void RunProgress::PrintEnd(const End& end) const {
  if (total_seconds_ > 0) {
    const double per_second = static_cast<double>(total_tokens_) / total_seconds_;
    const std::string share = utilization_.Describe(per_second);
    Print(fmt::format(
        "trained to step {} in {}: {} tok/s, {:.1f} GFLOP/s of the model{}{}, peak memory {}{}",
        end.step, FormatDuration(end.seconds), FormatCount(per_second),
        per_second * utilization_.flops_per_token * 1e-9, share.empty() ? "" : ", ", share,
        FormatBytes(static_cast<double>(end.peak_bytes)),
        end.resident_bytes > 0 ? fmt::format(" of tensors, {} of the process",
                                             FormatBytes(static_cast<double>(end.resident_bytes)))
                               : ""));
  }
  if (!kernel_ms_.empty()) Print("longest in it: " + LongestKernels(kernel_ms_));
  if (total_skipped_ > 0) {
    const bool many =
        static_cast<double>(total_skipped_) >= kManySkips * static_cast<double>(total_steps_);
    const std::string text = fmt::format(
        "{} of {} updates were skipped, since a gradient times the loss scale was infinite",
        total_skipped_, total_steps_);
    many ? Warn(text +
                ": those steps learnt nothing; use train.precision=bf16, or a lower "
                "train.loss_scale")
         : Print(text);
  }
  if (total_spikes_ > 0) {
    Print(
        fmt::format("{} of {} updates were skipped, since the loss or the gradient norm was far "
                    "above its recent range",
                    total_spikes_, total_steps_));
  }
  if (evaluations_ > 0) {
    // A resumed run may evaluate only once.
    const std::string first = evaluations_ > 1 ? fmt::format("{:.4f} -> ", first_val_loss_) : "";
    Print(
        fmt::format("validation loss {}{:.4f}{}", first, last_val_loss_,
                    end.best_val_loss != 0 ? fmt::format(", best {:.4f}", end.best_val_loss) : ""));
  }
  if (!end.report.empty()) Print("report " + end.report);
  const std::string& folder = setup_.config.out_dir;
  Print(
      fmt::format("checkpoint {}/latest; to sample from it:\n"
                  "  {} --checkpoint={}/latest{}",
                  folder, CommandOf("//models:sample_gpt"), ShellWord(folder),
                  setup_.conversations || setup_.prefers() ? " --chat" : ""));
  if (end.best_checkpoint >= 0 && end.best_checkpoint != end.step)
    Print(fmt::format("the best checkpoint is that of step {}: {}/best", end.best_checkpoint,
                      folder));
}

}  // namespace lockstep::models
