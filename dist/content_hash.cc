#include "dist/content_hash.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "core/thread_pool.h"

namespace lockstep::dist {
namespace {

constexpr uint64_t kMultiplier = 0x9e3779b97f4a7c15;  // odd, hence invertible
constexpr int64_t kChunk = 1 << 20;

// A bijection of either argument while the other is fixed, so that a difference never vanishes.
uint64_t Mix(uint64_t state, uint64_t word) {
  const uint64_t x = (state ^ word) * kMultiplier;
  return x ^ std::rotr(x, 29) ^ std::rotr(x, 47);  // invertible: an odd number of rotations
}

uint64_t Load(const std::byte* from, size_t n) {
  uint64_t word = 0;
  std::memcpy(&word, from, n);
  return word;
}

uint64_t HashChunk(std::span<const std::byte> bytes, uint64_t seed) {
  constexpr size_t kLanes = 4, kWord = sizeof(uint64_t);
  uint64_t lanes[kLanes];
  for (size_t l = 0; l < kLanes; ++l) lanes[l] = Mix(seed, l + 1);
  size_t at = 0;
  for (; at + kLanes * kWord <= bytes.size(); at += kLanes * kWord) {
    for (size_t l = 0; l < kLanes; ++l) {
      lanes[l] = Mix(lanes[l], Load(bytes.data() + at + l * kWord, kWord));
    }
  }
  for (size_t l = 0; at < bytes.size(); at += kWord, ++l) {
    lanes[l] = Mix(lanes[l], Load(bytes.data() + at, std::min(kWord, bytes.size() - at)));
  }
  uint64_t hash = Mix(seed, bytes.size());
  for (const uint64_t lane : lanes) hash = Mix(hash, lane);
  return hash;
}

}  // namespace

uint64_t HashCombine(uint64_t a, uint64_t b) { return Mix(Mix(1, a), b); }

uint64_t HashBytes(std::span<const std::byte> bytes, uint64_t seed) {
  const auto size = static_cast<int64_t>(bytes.size());
  std::vector<uint64_t> chunks(static_cast<size_t>((size + kChunk - 1) / kChunk));
  ParallelFor(size, kChunk, [&](int64_t begin, int64_t end) {
    chunks[static_cast<size_t>(begin / kChunk)] = HashChunk(
        bytes.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)), seed);
  });
  uint64_t hash = Mix(seed, static_cast<uint64_t>(size));
  for (const uint64_t chunk : chunks) hash = Mix(hash, chunk);
  return hash;
}

uint64_t HashTensor(const Tensor& x) {
  if (!x.defined()) return 0;
  const Tensor host = x.Detach().To(kCpu).Contiguous();
  uint64_t hash = HashCombine(static_cast<uint64_t>(x.dtype()), static_cast<uint64_t>(x.ndim()));
  for (int i = 0; i < x.ndim(); ++i) hash = HashCombine(hash, static_cast<uint64_t>(x.dim(i)));
  return HashBytes(
      {static_cast<const std::byte*>(host.raw_data()), static_cast<size_t>(host.bytes())}, hash);
}

}  // namespace lockstep::dist
