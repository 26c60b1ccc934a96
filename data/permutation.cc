#include "data/permutation.h"

#include <bit>
#include <utility>

#include "core/error.h"
#include "core/philox.h"

namespace lockstep::data {
namespace {

// The finalizer of MurmurHash3: every bit of the result depends on every bit of x.
uint64_t Mix(uint64_t x) {
  x = (x ^ x >> 33) * 0xff51afd7ed558ccdu;
  x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53u;
  return x ^ x >> 33;
}

// Separates these keys from other uses of the same seed.
constexpr uint64_t kSite = HashName("data.permutation", 16);

}  // namespace

Permutation::Permutation(uint64_t seed, uint64_t stream, int64_t n) : n_(n) {
  LS_CHECK(n >= 1, "a permutation of ", n, " elements");
  const int bits = std::bit_width(n_ - 1);
  low_bits_ = bits / 2;
  high_bits_ = bits - low_bits_;
  const Philox philox(seed);
  for (int round = 0; round < kRounds; round += 2) {
    const Philox::Block block = philox(kSite + round, stream);
    keys_[round] = static_cast<uint64_t>(block.v[0]) << 32 | block.v[1];
    keys_[round + 1] = static_cast<uint64_t>(block.v[2]) << 32 | block.v[3];
  }
}

uint64_t Permutation::Encrypt(uint64_t value) const {
  int low_bits = low_bits_, high_bits = high_bits_;
  for (const uint64_t key : keys_) {
    // (high, low) -> (low, high ^ f(low)); the inverse is (a, b) -> (b ^ f(a), a).
    const uint64_t low = value & ((uint64_t{1} << low_bits) - 1);
    const uint64_t high = value >> low_bits;
    const uint64_t mixed = high ^ (Mix(low + key) & ((uint64_t{1} << high_bits) - 1));
    value = low << high_bits | mixed;
    std::swap(low_bits, high_bits);
  }
  return value;
}

int64_t Permutation::operator()(int64_t index) const {
  uint64_t value = index;
  do value = Encrypt(value);
  while (value >= n_);
  return static_cast<int64_t>(value);
}

}  // namespace lockstep::data
