#include "models/options/option_duration.h"

#include <charconv>

#include "core/error.h"

namespace lockstep::models {

double ParseDuration(std::string_view text) {
  if (text.empty()) return 0;
  double seconds = 0;
  for (std::string_view rest = text; !rest.empty();) {
    double number = 0;
    const auto [end, error] =
        std::from_chars(rest.data(), rest.data() + rest.size(), number, std::chars_format::fixed);
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    if (error == std::errc() && rest.empty()) {
      throw InputError(StrCat("needs a unit: write ", text, "s, ", text, "m or ", text, "h"));
    }
    const double unit = rest.empty()          ? 0
                        : rest.front() == 's' ? 1
                        : rest.front() == 'm' ? 60
                        : rest.front() == 'h' ? 3600
                        : rest.front() == 'd' ? 86400
                                              : 0;
    if (error != std::errc() || unit == 0 || !(number >= 0 && number < 1e9)) {  // nor NaN
      throw InputError("must be a time, such as 90s, 10m, 2h or 1h30m");
    }
    seconds += number * unit;
    rest.remove_prefix(1);
  }
  if (seconds <= 0) throw InputError("must be longer than 0s");
  return seconds;
}

}  // namespace lockstep::models
