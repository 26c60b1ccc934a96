// Python's random.Random, whose draws decide which rows become few-shot examples.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace lockstep::models {

// The same numbers as random.Random(seed) of CPython 3.2 to 3.14, bit for bit: the Mersenne Twister
// MT19937 (Matsumoto and Nishimura 1998), seeded by its init_by_array.
class PythonRandom {
 public:
  explicit PythonRandom(uint32_t seed);

  double Random();           // random(), in [0, 1), of 53 bits
  int64_t Below(int64_t n);  // randrange(n), 0 < n < 2^32
  // sample(range(n), k). Throws ArgumentError if k > n.
  std::vector<int64_t> Sample(int64_t n, int64_t k);
  // The permutation that shuffle() makes of list(range(n)).
  std::vector<int64_t> Shuffled(int64_t n);

 private:
  uint32_t Next();

  static constexpr int kWords = 624;
  std::array<uint32_t, kWords> state_;
  int at_ = kWords;
};

}  // namespace lockstep::models
