#include "models/report/ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string_view>

#include "core/io/json.h"
#include "models/report/svg_plot.h"

namespace lockstep::models {
namespace {

using Lines = std::vector<Ledger::Line>;

void Add(Lines* lines, const std::string& owner, double measured) {
  auto line = std::ranges::find(*lines, owner, &Ledger::Line::owner);
  if (line == lines->end()) line = lines->insert(line, {.owner = owner});
  line->measured += measured;
}

double Sum(const Amounts& amounts) {
  double sum = 0;
  for (const auto& [owner, amount] : amounts) sum += amount;
  return sum;
}

void AddPlan(Lines* lines, const Amounts& planned) {
  constexpr double kNothing = 1e-9;  // of all, which rounding may leave
  if (planned.empty()) return;
  for (const auto& [owner, amount] : planned) {
    if (amount > kNothing * Sum(planned)) Add(lines, owner, 0);
  }
  for (Ledger::Line& line : *lines) {
    const auto plan = std::ranges::find(planned, line.owner, &Amounts::value_type::first);
    line.planned = plan != planned.end() ? plan->second : 0;
  }
}

void AddMilliseconds(const RunHistory& h, const LedgerInput& in, Ledger* ledger) {
  const auto steps = static_cast<double>(h.data_ms.count());
  const double exposed = h.exposed_ms.sum() / steps;
  const double data = h.data_ms.sum() / steps;
  const double rest = (h.forward_ms.sum() + h.backward_ms.sum() + h.update_ms.sum()) / steps;
  // The kernels' lines are of all steps, or of some of them.
  const double with_kernels = rest + (in.on_device ? exposed : 0);
  double kernels = 0;
  for (const auto& [name, ms] : h.kernel_ms) kernels += ms;
  Lines& lines = ledger->ms;
  if (kernels == 0) Add(&lines, kUnexplained, with_kernels);
  for (const auto& [name, ms] : h.kernel_ms) {
    Add(&lines, OwnerOf(name), with_kernels * ms / kernels);
  }
  if (!in.on_device && exposed > 0) Add(&lines, kDataMessages, exposed);
  Add(&lines, kData, data);
  Add(&lines, kUnexplained, in.between_ms);
  ledger->step_ms = data + rest + exposed + in.between_ms;
  AddPlan(&lines, in.planned_ms);
  if (!in.planned_ms.empty()) ledger->planned_ms = Sum(in.planned_ms);
}

void AddBytes(const RunHistory& h, const LedgerInput& in, Ledger* ledger) {
  if (h.memory.empty() || in.planned_bytes.empty()) return;
  ledger->planned_bytes = Sum(in.planned_bytes);
  for (const Curve::Bucket& b : h.memory.buckets()) {
    ledger->peak_bytes = std::max(ledger->peak_bytes, b.max);
  }
  for (const auto& [owner, bytes] : in.planned_bytes) Add(&ledger->bytes, owner, bytes);
  Add(&ledger->bytes, kUnexplained, ledger->peak_bytes - ledger->planned_bytes);
  AddPlan(&ledger->bytes, in.planned_bytes);
}

OrderedJson ToObject(const Lines& lines, bool planned) {
  OrderedJson all = OrderedJson::object();
  for (const Ledger::Line& line : lines) {
    if (!planned) all[line.owner] = line.measured;
    if (planned && line.planned) all[line.owner] = *line.planned;
  }
  return all;
}

std::string Table(const std::string& title, const std::string& note, const Lines& lines,
                  double total, std::optional<double> planned, ValueFormat format) {
  std::string rows;
  const auto row = [&](const std::string& owner, double measured, std::optional<double> plan,
                       const char* tag) {
    const double share = total > 0 ? 100 * measured / total : 0;
    rows += fmt::format("<tr><{4}>{0}</{4}><{4}>{1}</{4}><{4}>{2:.1f}%</{4}><{4}>{3}</{4}></tr>",
                        owner, FormatValue(measured, format), share,
                        plan ? FormatValue(*plan, format) : std::string("-"), tag);
  };
  for (const Ledger::Line& line : lines) row(line.owner, line.measured, line.planned, "td");
  row("all", total, planned, "th");
  return fmt::format(
      "<figure class=\"card\"><figcaption><h3>{}</h3><span class=\"note\">{}</span></figcaption>"
      "<table><tr><th></th><th>measured</th><th>share</th><th>planned</th></tr>{}</table></figure>"
      "\n",
      title, note, rows);
}

}  // namespace

std::string OwnerOf(const std::string& kernel) {
  const auto begins = [&](std::initializer_list<std::string_view> starts) {
    return std::ranges::any_of(starts, [&](auto start) { return kernel.starts_with(start); });
  };
  if (kernel == kBetweenKernels) return kHost;
  if (begins({"messages of ", kPipeline})) return kernel;
  if (begins({"matmul", "grouped_linear_", "conv2d_"})) return kProducts;
  if (kernel == "linear_forward" || kernel == "linear_backward") return kProducts;
  if (begins({"attention_"})) return kAttention;
  if (begins({"layer_norm_", "rms_norm_", "residual_"})) return kNorms;
  if (begins({"gelu_", "swiglu_", "unary_"})) return kActivations;
  if (begins({"loss_", "cross_entropy_", "nll_loss_"})) return kLoss;
  const bool updates = kernel.ends_with("_update") || begins({"grad_norm_", "update_"});
  return updates ? kUpdate : kOtherKernels;
}

Ledger MakeLedger(const RunHistory& history, const LedgerInput& input) {
  Ledger ledger;
  if (history.data_ms.empty()) return ledger;
  AddMilliseconds(history, input, &ledger);
  AddBytes(history, input, &ledger);
  return ledger;
}

std::string ToJson(const Ledger& ledger) {
  OrderedJson all = {{"ms", ToObject(ledger.ms, false)}};
  if (ledger.planned_ms) all["planned_ms"] = ToObject(ledger.ms, true);
  if (!ledger.bytes.empty()) {
    all["bytes"] = ToObject(ledger.bytes, false);
    all["planned_bytes"] = ToObject(ledger.bytes, true);
  }
  return all.dump();
}

std::string LedgerFigures(const Ledger& ledger) {
  if (ledger.ms.empty()) return "";
  std::string s = Table("Ledger of a step", "the mean of all steps, on the first rank", ledger.ms,
                        ledger.step_ms, ledger.planned_ms, ValueFormat::kMs);
  if (!ledger.bytes.empty()) {
    s += Table("Ledger of memory", "of tensors, at the peak of a step", ledger.bytes,
               ledger.peak_bytes, ledger.planned_bytes, ValueFormat::kBytes);
  }
  return s;
}

}  // namespace lockstep::models
