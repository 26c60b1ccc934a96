// Which source of a mixture a sample comes from.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

// One source of data.mix, as the user wrote it.
struct MixtureItem {
  std::string path;
  int64_t weight = 1;  // whole, in the smallest ratio: 7 and 3 for "a.bin:0.7,b.bin:0.3"
};

// Parses "web.bin:0.7,code.bin:0.3": paths and decimal weights, which need not add up to 1. Throws
// InputError for an empty or repeated path, a weight that is missing, not positive or not a plain
// decimal number, and weights whose smallest ratio has more than 2^20 parts.
std::vector<MixtureItem> ParseMixture(std::string_view text);

// A pure function from samples to sources. Among the first k samples, for every k, the number of
// those from source i differs by less than 1 from k weight_i / (sum of weights): sample j of a
// source has the slots from floor(j / share) to ceil((j + 1) / share) - 1 to choose from, and each
// slot goes to the sample whose range ends first (Baruah et al., "Proportionate progress", 1996).
// The pattern repeats after as many samples as the weights' sum, and is held in a table.
class MixtureSchedule {
 public:
  // Throws ArgumentError unless all weights are >= 1 and their sum is <= 2^20.
  explicit MixtureSchedule(std::vector<int64_t> weights);

  struct Place {
    int64_t source;
    int64_t index;  // among the samples of that source
  };
  Place operator()(int64_t sample) const;

  // How many of the samples 0 to count - 1 come from each source.
  std::vector<int64_t> CountsOf(int64_t count) const;

 private:
  struct Slot {
    int32_t source, index;
  };
  std::vector<int64_t> weights_;
  std::vector<Slot> slots_;  // a period
};

}  // namespace lockstep::data
