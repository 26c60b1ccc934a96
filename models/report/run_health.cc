#include "models/report/run_health.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/report/format.h"

namespace lockstep::models {
namespace {

constexpr int64_t kEarlySteps = 20;  // fewer say nothing
constexpr double kManySkips = 0.02;  // a loss scale that doubles every 2000 steps skips 0.05%

// What the learning curves say, in numbers.
struct Learning {
  double first = 0, lowest = 0, now = 0;  // training loss, smoothed
  int64_t lowest_step = 0;
  bool has_val = false;
  double val_first = 0, val_now = 0, val_best = 0, val_bpb = 0;
  int64_t val_best_step = 0;
  double fall = 0;  // share by which the validation, else training, loss fell over the last third
  double gap() const { return val_now - now; }
};

// How many steps are smoothed over.
int64_t Window(const RunHistory& h) { return std::max<int64_t>(h.last_step() / 20, 10); }

double ValidationAt(const std::vector<RunHistory::Point>& points, int64_t step) {
  double value = points.front().value;
  for (const RunHistory::Point& p : points) {
    if (p.step <= step) value = p.value;
  }
  return value;
}

Learning Study(const RunHistory& h) {
  Learning s;
  const int64_t window = Window(h), last = h.last_step(), first = h.first_step();
  s.first = h.loss.Mean(first, first + window / 2);
  s.now = h.loss.Mean(last - window + 1, last);
  s.lowest = s.now;
  s.lowest_step = last;
  for (const Curve::Bucket& b : h.loss.buckets()) {
    if (b.last - first < window) continue;
    const double mean = h.loss.Mean(b.last - window + 1, b.last);
    if (mean < s.lowest) {
      s.lowest = mean;
      s.lowest_step = b.last;
    }
  }
  const int64_t third = first + (last - first) * 2 / 3;
  const double before = h.loss.Mean(third - window / 2, third + window / 2);
  s.fall = before > 0 ? (before - s.now) / before : 0;
  if (h.val_loss.empty()) return s;
  s.has_val = true;
  s.val_first = h.val_loss.front().value;
  s.val_now = h.val_loss.back().value;
  s.val_bpb = std::isfinite(h.val_bpb) ? h.val_bpb : 0;
  s.val_best = s.val_first;
  s.val_best_step = h.val_loss.front().step;
  for (const RunHistory::Point& p : h.val_loss) {
    if (p.value > s.val_best) continue;
    s.val_best = p.value;
    s.val_best_step = p.step;
  }
  if (h.val_loss.size() >= 3) {
    const double val_before = ValidationAt(h.val_loss, third);
    s.fall = (val_before - s.val_now) / val_before;
  }
  return s;
}

bool NotFinite(const RunHistory& h) {
  return h.loss.non_finite() > 0 || h.non_finite_val_losses > 0;
}

bool Diverging(const Learning& s) {
  return s.now - s.lowest > std::max(0.25 * (s.first - s.lowest), 0.1);
}

bool Overfitting(const RunHistory& h, const Learning& s) {
  if (!s.has_val || s.val_now < 1.01 * s.val_best) return false;
  const int64_t window = Window(h);
  return s.now < h.loss.Mean(s.val_best_step - window / 2, s.val_best_step + window / 2);
}

std::string Percent(double share) {
  const double percent = 100 * share;
  return std::abs(percent) < 0.05   ? "0%"
         : std::abs(percent) < 9.95 ? fmt::format("{:.1f}%", percent)
                                    : fmt::format("{:.0f}%", percent);
}

std::string BestCheckpoint(const RunPlan& plan, const Learning& s) {
  if (plan.best_checkpoint == s.val_best_step) return "That checkpoint is kept as best";
  if (plan.best_checkpoint < 0)
    return "That checkpoint is not kept: checkpoint.keep_best keeps the best one saved at an "
           "evaluation";
  return fmt::format("No checkpoint was saved then; best is that of step {}", plan.best_checkpoint);
}

void JudgeLearning(const RunHistory& h, const RunPlan& plan, const Learning& s, RunHealth* v) {
  const char* which = s.has_val ? "Validation loss" : "Training loss";
  const double now = s.has_val ? s.val_now : s.now;
  const std::string numbers =
      fmt::format("{} {:.4f}, down from {:.4f}", which, now, s.has_val ? s.val_first : s.first);
  const auto say = [&](Health health, std::string headline, std::string text) {
    v->health = health;
    v->headline = std::move(headline);
    v->text = std::move(text);
  };
  if (NotFinite(h)) {
    say(Health::kBad, "Unhealthy: the loss is no longer a number",
        "Lower optim.lr, raise optim.warmup, or set optim.clip, and start again from a "
        "checkpoint before it happened.");
  } else if (h.last_step() < std::max(kEarlySteps, plan.steps / 100)) {
    say(Health::kUnknown, plan.finished ? "Too short to tell" : "Just started",
        fmt::format("{} steps so far: too early to judge.", h.last_step()));
  } else if (Diverging(s)) {
    say(Health::kBad, "Unhealthy: the training loss is rising",
        fmt::format(
            "It diverges: up from {:.3f} at step {} to {:.3f}. Lower optim.lr, raise optim.warmup, "
            "or set optim.clip.",
            s.lowest, s.lowest_step, s.now));
  } else if (Overfitting(h, s)) {
    say(Health::kWatch, "Overfitting: the validation loss is rising",
        fmt::format("It was best at step {} with {:.4f} and is {:.4f} now, while training loss "
                    "still falls ({:.4f}). {}; more data, more dropout or fewer steps help.",
                    s.val_best_step, s.val_best, s.val_now, s.now, BestCheckpoint(plan, s)));
  } else if (s.fall >= 0.005) {
    say(Health::kGood,
        plan.finished ? "Healthy: finished, loss still falling" : "Healthy: still learning",
        fmt::format("{}, and it fell by {} over the last third of the steps.{}", numbers,
                    Percent(s.fall),
                    plan.finished ? " Training longer would lower it further." : ""));
  } else if (plan.finished) {
    say(Health::kGood, "Healthy: finished, loss levelled off",
        fmt::format(
            "{}. It changed by {} over the last third of the steps: this is about as far as "
            "model, data and schedule go.",
            numbers, Percent(std::abs(s.fall))));
  } else {
    say(Health::kWatch, "Flat: the loss has stopped falling",
        fmt::format("{}, but it changed by only {} over the last third of the steps. If the "
                    "learning rate is still high, it may be too high.",
                    numbers, Percent(std::abs(s.fall))));
  }
}

Finding LossFinding(const Learning& s, const RunPlan& plan, const RunHealth& verdict) {
  const double now = s.has_val ? s.val_now : s.now;
  Finding f{s.has_val ? "Validation loss" : "Training loss", fmt::format("{:.4f}", now), "nats",
            fmt::format("perplexity {}", now < 20 ? FormatCount(std::exp(now)) : "huge"),
            verdict.health};
  if (now < 20 && std::exp(now) < 999.5) f.text = fmt::format("perplexity {:.2f}", std::exp(now));
  if (plan.indifferent_loss) {
    f.unit = "a pair";
    f.text = fmt::format("without a preference it is {:.4f}", *plan.indifferent_loss);
  }
  if (s.val_bpb > 0) f.text += fmt::format("; {:.4f} bits per byte", s.val_bpb);
  if (s.has_val) {
    f.text += s.val_best < s.val_now
                  ? fmt::format("; best {:.4f} at step {}", s.val_best, s.val_best_step)
                  : "; the best so far";
  }
  return f;
}

Finding GapFinding(const RunHistory& h, const RunPlan& plan, const Learning& s) {
  Finding f{"Overfitting gap", "n/a", "", "no validation data", Health::kUnknown};
  if (!s.has_val) return f;
  f.value = fmt::format("{:+.3f}", s.gap());
  f.unit = plan.indifferent_loss ? "a pair" : "nats";
  const double share = s.gap() / s.val_now;
  f.health = Overfitting(h, s) || share > 0.2 ? Health::kWatch : Health::kGood;
  f.text = fmt::format("training loss {:.4f}: {}", s.now,
                       Overfitting(h, s) ? "validation is getting worse"
                       : share > 0.2     ? "the model memorises"
                       : share > 0.05    ? "a common gap"
                                         : "almost none");
  return f;
}

Finding GradientFinding(const RunHistory& h) {
  const int64_t last = h.last_step(), half = h.first_step() + (last - h.first_step()) / 2;
  const double median = h.grad_norm.Median(half, last);
  double largest = 0;
  int64_t at = 0;
  for (const Curve::Bucket& b : h.grad_norm.buckets()) {
    if (b.first < half || b.max <= largest) continue;
    largest = b.max;
    at = b.first;
  }
  Finding f{"Gradient norm", fmt::format("{:.3g}", h.grad_norm.Median(last - last / 10, last)), "",
            "", Health::kGood};
  if (h.grad_norm.non_finite() > h.skipped_steps()) {
    f.health = Health::kBad;
    f.text = fmt::format("{} steps were not finite", h.grad_norm.non_finite());
    return f;
  }
  if (median > 0 && largest > 10 * median) {
    f.health = Health::kWatch;
    f.text = fmt::format("a spike of {:.3g} near step {}", largest, at);
  } else {
    f.text = "no spikes";
  }
  if (h.clip() > 0) {
    const double share =
        static_cast<double>(h.clipped_steps()) / static_cast<double>(h.grad_norm.count());
    f.text += fmt::format("; {} of steps clipped at {:g}", Percent(share), h.clip());
  }
  if (h.spikes() > 0) {
    f.text += fmt::format("; {} skipped by train.spike", h.spikes());
  }
  if (!h.loss_scale.empty()) {
    const double scale = h.loss_scale.buckets().back().mean();
    f.text += fmt::format("; {} updates skipped, loss scale {:g}", h.skipped_steps(), scale);
    if (h.skipped_share(half) > kManySkips) f.health = Health::kWatch;
  }
  return f;
}

Finding SpeedFinding(const RunHistory& h, const RunPlan& plan) {
  const int64_t last = h.last_step();
  const double median = h.tokens_per_second.Median(1, last);
  const double now = h.tokens_per_second.Median(last - last / 10, last);
  const double low = h.tokens_per_second.Quantile(0.25, 1, last);
  const double high = h.tokens_per_second.Quantile(0.75, 1, last);
  Finding f{"Throughput", FormatCount(now), "tokens/s", "steady", Health::kGood};
  if (last >= kEarlySteps && now < 0.8 * median) {
    f.text = fmt::format("slowing down: it was {}", FormatCount(median));
    f.health = Health::kWatch;
  } else if (last >= kEarlySteps && high > 1.5 * low) {
    f.text = fmt::format("unsteady: mostly {} to {}", FormatCount(low), FormatCount(high));
    f.health = Health::kWatch;
  }
  f.text += fmt::format("; {:.3g} ms a step", h.step_ms.Median(last - last / 10, last));
  if (const StepMetrics& late = h.last_late(); late.step > 0) {
    const bool still = late.step > last - last / 10;
    f.text += fmt::format("; the other ranks {} {:.3g} ms of each step for {}{}",
                          still ? "wait" : "waited", late.late_ms, late.late,
                          still ? "" : fmt::format(" until step {}", late.step));
    if (still) f.health = Health::kWatch;
  }
  const std::string share = plan.utilization.Describe(now);
  if (!share.empty()) f.text += "; " + share;
  return f;
}

Finding TimeFinding(const RunHistory& h) {
  const double steps = h.step_ms.sum(), pauses = h.pauses.total(), all = steps + pauses;
  Finding f{"Time in steps", Percent(all > 0 ? steps / all : 1), "", "", Health::kGood};
  const double data = steps > 0 ? h.data_ms.sum() / steps : 0;
  f.text = fmt::format("waiting for data {}", Percent(data));
  if (all > 0 && h.pauses.eval_ms > 0) {
    f.text += fmt::format("; evaluation {}", Percent(h.pauses.eval_ms / all));
  }
  if (data > 0.1 || pauses > 0.3 * all) f.health = Health::kWatch;
  return f;
}

Finding MemoryFinding(const RunHistory& h, const RunPlan& plan) {
  Finding f{"Memory", "n/a", "", "not recorded", Health::kUnknown};
  double peak = 0;
  for (const Curve::Bucket& b : h.memory.buckets()) peak = std::max(peak, b.max);
  if (peak == 0) return f;
  const std::string text = FormatBytes(peak);
  const size_t space = text.find(' ');
  f.value = text.substr(0, space);
  f.unit = text.substr(space + 1);
  const double first = h.memory.buckets().front().max, now = h.memory.buckets().back().max;
  const bool grows = now > 1.1 * first && h.last_step() >= kEarlySteps;
  f.health = grows ? Health::kWatch : Health::kGood;
  f.text = grows ? fmt::format("growing: it was {}", FormatBytes(first)) : "peak of a step";
  if (plan.planned_memory > 0) {
    f.text += fmt::format("; planned {}", FormatBytes(static_cast<double>(plan.planned_memory)));
  }
  return f;
}

}  // namespace

RunHealth Judge(const RunHistory& history, const RunPlan& plan) {
  RunHealth v;
  v.headline = "Not started";
  v.text = "No step has been made yet.";
  if (history.last_step() > 0) {
    const Learning learning = Study(history);
    JudgeLearning(history, plan, learning, &v);
    v.findings = {LossFinding(learning, plan, v), GapFinding(history, plan, learning),
                  GradientFinding(history),       SpeedFinding(history, plan),
                  TimeFinding(history),           MemoryFinding(history, plan)};
  }
  if (!plan.failure.empty()) {
    v.health = Health::kBad;
    v.headline = fmt::format("Failed after step {}", history.last_step());
    v.text = plan.failure;
  }
  return v;
}

}  // namespace lockstep::models
