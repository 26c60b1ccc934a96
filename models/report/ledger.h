// The ledger of a run: who owns each millisecond of a step, and each byte of its peak, beside what
// the plan said.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/report/run_history.h"

namespace lockstep::models {

// By owner, in milliseconds of a step or in bytes.
using Amounts = std::vector<std::pair<std::string, double>>;

inline constexpr char kProducts[] = "products", kAttention[] = "attention";
inline constexpr char kNorms[] = "norms", kActivations[] = "activations", kLoss[] = "loss";
inline constexpr char kOtherKernels[] = "other kernels", kUpdate[] = "update";
inline constexpr char kDataMessages[] = "messages of dp", kPipeline[] = "idle in the pipeline";
inline constexpr char kHost[] = "host", kData[] = "data", kUnexplained[] = "unexplained";

struct LedgerInput {
  Amounts planned_ms;      // empty: not planned
  Amounts planned_bytes;   // of tensors at the peak of a step, on the rank that takes most
  double between_ms = 0;   // of the loop's time for each step, what neither steps nor pauses took
  bool on_device = false;  // kernels run while the host goes on: StepTimes are those of the host
};

// The lines of each add up to its total.
struct Ledger {
  struct Line {
    std::string owner;
    double measured = 0;
    std::optional<double> planned{};
  };
  // On the first rank. The host is what kernels and messages leave of forward, backward and update;
  // on a GPU that is where it computes nothing, whatever it waits for.
  std::vector<Line> ms;
  double step_ms = 0;
  std::optional<double> planned_ms{};
  // An owner has the bytes that were planned; what the allocator measured beyond is unexplained.
  std::vector<Line> bytes;
  double peak_bytes = 0, planned_bytes = 0;
};

// Nothing is in it as long as no step was made.
Ledger MakeLedger(const RunHistory& history, const LedgerInput& input);

// {"ms": {"products": 12.5, ...}, "planned_ms": {...}, "bytes": {...}, "planned_bytes": {...}}
std::string ToJson(const Ledger& ledger);

// Two tables in HTML; "" for an empty ledger.
std::string LedgerFigures(const Ledger& ledger);

// The owner of a line of StepMetrics::kernel_ms.
std::string OwnerOf(const std::string& kernel);

}  // namespace lockstep::models
