// Philox by the batch.
#pragma once

#include <cstdint>

#include "core/philox.h"

namespace lockstep::cpu {

inline constexpr int64_t kPhiloxBatch = 64;  // blocks of four values

// out[4 i + j] = philox(stream, first + i).v[j] for i in [0, kPhiloxBatch). The same as the scalar
// form, in an order of computation that compilers vectorise.
inline void PhiloxBatch(const Philox& philox, uint64_t stream, uint64_t first, uint32_t* out) {
  constexpr int kLanes = static_cast<int>(kPhiloxBatch);
  uint32_t c0[kLanes], c1[kLanes], c2[kLanes], c3[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    const uint64_t counter = first + static_cast<uint64_t>(i);
    c0[i] = static_cast<uint32_t>(counter);
    c1[i] = static_cast<uint32_t>(counter >> 32);
    c2[i] = static_cast<uint32_t>(stream);
    c3[i] = static_cast<uint32_t>(stream >> 32);
  }
  uint32_t k0 = philox.key[0], k1 = philox.key[1];
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kLanes; ++i) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * c0[i];
      const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2[i];
      c0[i] = static_cast<uint32_t>(p1 >> 32) ^ c1[i] ^ k0;
      c1[i] = static_cast<uint32_t>(p1);
      c2[i] = static_cast<uint32_t>(p0 >> 32) ^ c3[i] ^ k1;
      c3[i] = static_cast<uint32_t>(p0);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int i = 0; i < kLanes; ++i) {
    out[4 * i] = c0[i];
    out[4 * i + 1] = c1[i];
    out[4 * i + 2] = c2[i];
    out[4 * i + 3] = c3[i];
  }
}

// Calls f(i, n, random) for runs that cover [0, count): random[k] is philox.At(stream, begin + i +
// k) for k in [0, n).
template <class F>
void ForEachRandom(const Philox& philox, uint64_t stream, uint64_t begin, int64_t count,
                   const F& f) {
  alignas(64) uint32_t random[4 * kPhiloxBatch];
  int64_t skip = static_cast<int64_t>(begin & 3);
  for (int64_t i = 0; i < count;) {
    PhiloxBatch(philox, stream, (begin + static_cast<uint64_t>(i)) >> 2, random);
    const int64_t n = count - i < 4 * kPhiloxBatch - skip ? count - i : 4 * kPhiloxBatch - skip;
    f(i, n, random + skip);
    i += n;
    skip = 0;
  }
}

}  // namespace lockstep::cpu
