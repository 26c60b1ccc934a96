// A pseudo-random order of 0 to n - 1 that needs no memory.
#pragma once

#include <array>
#include <cstdint>

namespace lockstep::data {

// A bijection of [0, n) chosen by (seed, stream): a Feistel network over the smallest power of two
// that holds n, with keys from Philox, applied until the value is below n ("cycle walking"; Black
// and Rogaway, "Ciphers with arbitrary finite domains", 2002). The expected number of applications
// is at most 2.
class Permutation {
 public:
  // n >= 1.
  Permutation(uint64_t seed, uint64_t stream, int64_t n);

  // The element at `index`, 0 <= index < n.
  int64_t operator()(int64_t index) const;

 private:
  static constexpr int kRounds = 8;
  uint64_t Encrypt(uint64_t value) const;

  uint64_t n_;
  int low_bits_;  // the halves that a round swaps
  int high_bits_;
  std::array<uint64_t, kRounds> keys_;
};

}  // namespace lockstep::data
