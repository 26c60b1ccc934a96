// Counter-based random numbers: a value is a function of its key and counter, so it does not depend
// on threads, ranks or the order of evaluation. Usable from .cu files.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#ifdef __CUDACC__
#define LS_HOST_DEVICE __host__ __device__
#else
#define LS_HOST_DEVICE
#endif

namespace lockstep {

// Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
struct Philox {
  uint32_t key[2];

  LS_HOST_DEVICE explicit constexpr Philox(uint64_t seed)
      : key{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)} {}

  struct Block {
    uint32_t v[4];
  };

  // Four independent 32-bit values of counter (hi, lo).
  LS_HOST_DEVICE constexpr Block operator()(uint64_t hi, uint64_t lo) const {
    Block c{{static_cast<uint32_t>(lo), static_cast<uint32_t>(lo >> 32), static_cast<uint32_t>(hi),
             static_cast<uint32_t>(hi >> 32)}};
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; ++round) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * c.v[0];
      const uint64_t p1 = uint64_t{0xCD9E8D57u} * c.v[2];
      c = Block{{static_cast<uint32_t>(p1 >> 32) ^ c.v[1] ^ k0, static_cast<uint32_t>(p1),
                 static_cast<uint32_t>(p0 >> 32) ^ c.v[3] ^ k1, static_cast<uint32_t>(p0)}};
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    return c;
  }

  // Element `index` of the stream `stream`: the index'th 32-bit value.
  LS_HOST_DEVICE constexpr uint32_t At(uint64_t stream, uint64_t index) const {
    return (*this)(stream, index >> 2).v[index & 3];
  }
};

// Uniform in [0, 1), exact in f32: the upper 24 bits.
LS_HOST_DEVICE constexpr float ToUniform(uint32_t x) {
  return static_cast<float>(x >> 8) * (1.0f / 16777216.0f);
}

// A 64-bit hash of text (FNV-1a), which turns names of parameters and sites into stream numbers.
// `h` is that of the text before, if there is some.
constexpr uint64_t HashName(const char* text, uint64_t n, uint64_t h = 14695981039346656037ull) {
  for (uint64_t i = 0; i < n; ++i) h = (h ^ static_cast<uint8_t>(text[i])) * 1099511628211ull;
  return h;
}
constexpr uint64_t HashName(std::string_view text) { return HashName(text.data(), text.size()); }

// The stream of a site (a dropout, a parameter whose updates are rounded) at a step. Steps of one
// site never share a stream; streams of two sites are effectively independent (the finaliser of
// Steele et al.'s SplitMix64, a bijection).
LS_HOST_DEVICE constexpr uint64_t StepStream(uint64_t site, int64_t step) {
  uint64_t z = site + 0x9E3779B97F4A7C15ull * (static_cast<uint64_t>(step) + 1);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

}  // namespace lockstep
