#include "models/evaluate/python_random.h"

#include <bit>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "core/error.h"

namespace lockstep::models {

PythonRandom::PythonRandom(uint32_t seed) {
  state_[0] = 19650218;
  const auto mixed = [this](int i) { return state_[i - 1] ^ (state_[i - 1] >> 30); };
  for (int i = 1; i < kWords; ++i) {
    state_[i] = 1812433253u * mixed(i) + static_cast<uint32_t>(i);
  }
  int i = 1;
  const auto advance = [&] {
    if (++i < kWords) return;
    state_[0] = state_[kWords - 1];
    i = 1;
  };
  for (int k = 0; k < kWords; ++k, advance()) {
    state_[i] = (state_[i] ^ (mixed(i) * 1664525u)) + seed;
  }
  for (int k = 1; k < kWords; ++k, advance()) {
    state_[i] = (state_[i] ^ (mixed(i) * 1566083941u)) - static_cast<uint32_t>(i);
  }
  state_[0] = 0x80000000u;
}

uint32_t PythonRandom::Next() {
  if (at_ == kWords) {
    for (int i = 0; i < kWords; ++i) {
      const uint32_t y = (state_[i] & 0x80000000u) | (state_[(i + 1) % kWords] & 0x7fffffffu);
      state_[i] = state_[(i + 397) % kWords] ^ (y >> 1) ^ ((y & 1) != 0 ? 0x9908b0dfu : 0u);
    }
    at_ = 0;
  }
  uint32_t y = state_[at_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  return y ^ (y >> 18);
}

double PythonRandom::Random() {
  const uint32_t high = Next() >> 5, low = Next() >> 6;
  return (high * 67108864.0 + low) / 9007199254740992.0;
}

int64_t PythonRandom::Below(int64_t n) {
  LS_CHECK(n > 0 && n < (int64_t{1} << 32), "a random number below ", n);
  const int bits = std::bit_width(static_cast<uint64_t>(n));
  int64_t drawn = Next() >> (32 - bits);
  while (drawn >= n) drawn = Next() >> (32 - bits);
  return drawn;
}

std::vector<int64_t> PythonRandom::Sample(int64_t n, int64_t k) {
  LS_CHECK(k >= 0 && k <= n, "a sample of ", k, " out of ", n);
  // CPython takes the way that needs less memory; they draw different numbers.
  const double set_size = 21 + (k > 5 ? std::pow(4, std::ceil(std::log(k * 3) / std::log(4))) : 0);
  std::vector<int64_t> sample;
  if (static_cast<double>(n) <= set_size) {
    std::vector<int64_t> pool(static_cast<size_t>(n));
    std::iota(pool.begin(), pool.end(), 0);
    for (int64_t i = 0; i < k; ++i) {
      int64_t& drawn = pool[static_cast<size_t>(Below(n - i))];
      sample.push_back(drawn);
      drawn = pool[static_cast<size_t>(n - i - 1)];
    }
    return sample;
  }
  std::set<int64_t> drawn;
  while (std::ssize(sample) < k) {
    const int64_t i = Below(n);
    if (drawn.insert(i).second) sample.push_back(i);
  }
  return sample;
}

std::vector<int64_t> PythonRandom::Shuffled(int64_t n) {
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  for (int64_t i = n - 1; i > 0; --i) {
    std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(Below(i + 1))]);
  }
  return order;
}

}  // namespace lockstep::models
