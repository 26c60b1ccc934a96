#include "models/report/metrics.h"

#include <cmath>
#include <utility>

#include "core/io/json.h"
#include "models/report/json_lines.h"

namespace lockstep::models {
namespace {

// Names and members of a line's fields, except step, memory_bytes, skipped, spike, late, val_loss,
// val_bpb, val_loss_ema, val_sources, tasks and kernel_ms, in the order in which they are written.
struct Field {
  const char* name;
  double& (*in)(StepMetrics&);
  bool optional;  // written only if not 0
};
constexpr Field kFields[] = {
    {"loss", [](StepMetrics& m) -> double& { return m.loss; }, false},
    {"grad_norm", [](StepMetrics& m) -> double& { return m.grad_norm; }, false},
    {"lr", [](StepMetrics& m) -> double& { return m.lr; }, false},
    {"ms", [](StepMetrics& m) -> double& { return m.ms; }, false},
    {"tokens_per_second", [](StepMetrics& m) -> double& { return m.tokens_per_second; }, false},
    {"mfu", [](StepMetrics& m) -> double& { return m.mfu; }, true},
    {"gemm_share", [](StepMetrics& m) -> double& { return m.gemm_share; }, true},
    {"data_ms", [](StepMetrics& m) -> double& { return m.times.data_ms; }, false},
    {"forward_ms", [](StepMetrics& m) -> double& { return m.times.forward_ms; }, false},
    {"backward_ms", [](StepMetrics& m) -> double& { return m.times.backward_ms; }, false},
    {"exposed_ms", [](StepMetrics& m) -> double& { return m.times.exposed_ms; }, true},
    {"update_ms", [](StepMetrics& m) -> double& { return m.times.update_ms; }, false},
    {"communication_ms", [](StepMetrics& m) -> double& { return m.communication_ms; }, true},
    {"overlapped_ms", [](StepMetrics& m) -> double& { return m.overlapped_ms; }, true},
    {"eval_ms", [](StepMetrics& m) -> double& { return m.pauses.eval_ms; }, true},
    {"sample_ms", [](StepMetrics& m) -> double& { return m.pauses.sample_ms; }, true},
    {"checkpoint_ms", [](StepMetrics& m) -> double& { return m.pauses.checkpoint_ms; }, true},
    {"report_ms", [](StepMetrics& m) -> double& { return m.pauses.report_ms; }, true},
    {"loss_scale", [](StepMetrics& m) -> double& { return m.loss_scale; }, true},
    {"expert_most", [](StepMetrics& m) -> double& { return m.expert_most; }, true},
    {"expert_least", [](StepMetrics& m) -> double& { return m.expert_least; }, true},
    {"slow_kernels", [](StepMetrics& m) -> double& { return m.slow_kernels; }, true},
    {"time", [](StepMetrics& m) -> double& { return m.unix_time; }, true},
};

// With pairs, all of these are there, else none: reward_chosen, ..., and with a prefix those of an
// evaluation.
constexpr std::pair<const char*, double PreferenceMetrics::*> kPreferenceFields[] = {
    {"reward_chosen", &PreferenceMetrics::chosen},
    {"reward_rejected", &PreferenceMetrics::rejected},
    {"reward_accuracy", &PreferenceMetrics::accuracy},
};

void Write(const std::optional<PreferenceMetrics>& metrics, const std::string& prefix,
           OrderedJson* j) {
  if (!metrics) return;
  for (const auto& [name, field] : kPreferenceFields) (*j)[prefix + name] = (*metrics).*field;
  (*j)[prefix + "reward_margin"] = metrics->margin();
}

double NumberOr(const Json& j, const char* name, double absent) {
  const Json* value = j.Find(name);
  if (value == nullptr) return absent;
  return value->is_number() ? value->get<double>() : NAN;
}

// The members of an object of numbers.
std::vector<std::pair<std::string, double>> ReadNumbers(const Json& j, const char* name) {
  std::vector<std::pair<std::string, double>> numbers;
  const Json* of = j.Find(name);
  if (of == nullptr || !of->is_object()) return numbers;
  for (const auto& [key, value] : of->items()) {
    numbers.emplace_back(key, value.is_number() ? value.get<double>() : NAN);
  }
  return numbers;
}

bool IsTrue(const Json& j, const char* name) {
  const Json* value = j.Find(name);
  return value != nullptr && value->is_boolean() && value->get<bool>();
}

std::optional<PreferenceMetrics> ReadPreference(const Json& j, const std::string& prefix,
                                                double loss) {
  if (!j.contains(prefix + "reward_margin")) return {};
  PreferenceMetrics metrics{.loss = loss};
  for (const auto& [name, field] : kPreferenceFields) {
    metrics.*field = NumberOr(j, (prefix + name).c_str(), NAN);
  }
  return metrics;
}

}  // namespace

std::string ToJson(const StepMetrics& metrics) {
  StepMetrics m = metrics;
  OrderedJson j = {{"step", m.step}};
  for (const Field& field : kFields) {
    const double value = field.in(m);
    // Before the first step there is only an evaluation.
    if (field.optional || m.step == 0 ? value != 0 : true) j[field.name] = value;
  }
  if (m.memory_bytes != 0) j["memory_bytes"] = m.memory_bytes;
  if (m.skipped) j["skipped"] = true;
  if (m.spike) j["spike"] = true;
  if (m.late_rank >= 0) {
    j["late_rank"] = m.late_rank;
    j["late_ms"] = m.late_ms;
    if (!m.late.empty()) j["late"] = m.late;
  }
  Write(m.preference, "", &j);
  if (m.val_loss) j["val_loss"] = *m.val_loss;
  if (m.val_bpb) j["val_bpb"] = *m.val_bpb;
  if (m.val_loss_ema) j["val_loss_ema"] = *m.val_loss_ema;
  for (const SourceLoss& of : m.val_sources) {
    j["val_loss_of"][of.name] = of.loss;
    if (of.bpb) j["val_bpb_of"][of.name] = *of.bpb;
  }
  Write(m.val_preference, "val_", &j);
  for (const auto& [name, value] : m.tasks) j["tasks"][name] = value;
  for (const auto& [name, ms] : m.kernel_ms) j["kernel_ms"][name] = ms;
  return j.dump();
}

std::optional<StepMetrics> ParseMetrics(std::string_view line) {
  const Json j = TryParseJson(line);
  const auto step = StepOf(j);
  if (!step) return {};
  StepMetrics m;
  m.step = *step;
  for (const Field& field : kFields) field.in(m) = NumberOr(j, field.name, 0);
  const double memory = NumberOr(j, "memory_bytes", 0);
  if (memory > 0 && memory < 9e18) m.memory_bytes = static_cast<int64_t>(memory);
  m.skipped = IsTrue(j, "skipped");
  m.spike = IsTrue(j, "spike");
  const double late_rank = NumberOr(j, "late_rank", -1);
  if (late_rank >= 0 && late_rank < 1e9) m.late_rank = static_cast<int64_t>(late_rank);
  m.late_ms = NumberOr(j, "late_ms", 0);
  if (const Json* late = j.Find("late"); late != nullptr && late->is_string()) m.late = *late;
  if (j.contains("val_loss")) m.val_loss = NumberOr(j, "val_loss", NAN);
  if (j.contains("val_bpb")) m.val_bpb = NumberOr(j, "val_bpb", NAN);
  if (j.contains("val_loss_ema")) m.val_loss_ema = NumberOr(j, "val_loss_ema", NAN);
  if (const Json* losses = j.Find("val_loss_of"); losses != nullptr && losses->is_object()) {
    const Json* bytes = j.Find("val_bpb_of");
    for (const auto& [name, value] : losses->items()) {
      m.val_sources.push_back({name, NumberOr(*losses, name.c_str(), NAN)});
      if (bytes == nullptr || !bytes->contains(name)) continue;
      m.val_sources.back().bpb = NumberOr(*bytes, name.c_str(), NAN);
    }
  }
  m.tasks = ReadNumbers(j, "tasks");
  m.kernel_ms = ReadNumbers(j, "kernel_ms");
  m.preference = ReadPreference(j, "", m.loss);
  m.val_preference = ReadPreference(j, "val_", m.val_loss.value_or(NAN));
  return m;
}

}  // namespace lockstep::models
