#include "models/report/format.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace lockstep::models {
namespace {

// Three significant digits.
std::string Three(double x) {
  return x < 9.995   ? fmt::format("{:.2f}", x)
         : x < 99.95 ? fmt::format("{:.1f}", x)
                     : fmt::format("{:.0f}", x);
}

// The next unit from where three digits would round to `base`.
std::string InUnits(double bytes, double base, const std::array<const char*, 4>& units) {
  if (bytes < base) return fmt::format("{:.0f} B", bytes);
  size_t unit = 0;
  for (bytes /= base; bytes >= base - 0.5 && unit + 1 < units.size(); bytes /= base) ++unit;
  return Three(bytes) + " " + units[unit];
}

}  // namespace

std::string FormatCount(double n) {
  if (std::abs(n) < 999.5) return fmt::format("{:.0f}", n);
  constexpr std::array<const char*, 4> kUnits = {"k", "M", "B", "T"};
  size_t unit = 0;
  for (n /= 1000; std::abs(n) >= 999.5 && unit + 1 < kUnits.size(); n /= 1000) ++unit;
  return fmt::format("{}{}{}", n < 0 ? "-" : "", Three(std::abs(n)), kUnits[unit]);
}

std::string FormatDuration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const auto s = static_cast<int64_t>(std::llround(seconds));
  if (s < 60) return fmt::format("{}s", s);
  if (s < 3600) return fmt::format("{}m{:02}s", s / 60, s % 60);
  if (s < 86400) return fmt::format("{}h{:02}m", s / 3600, s % 3600 / 60);
  return fmt::format("{}d{:02}h", s / 86400, s % 86400 / 3600);
}

std::string FormatBytes(double bytes) { return InUnits(bytes, 1024, {"KiB", "MiB", "GiB", "TiB"}); }

std::string FormatDecimalBytes(double bytes) {
  return InUnits(bytes, 1000, {"kB", "MB", "GB", "TB"});
}

}  // namespace lockstep::models
