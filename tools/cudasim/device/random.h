// Random orders (splitmix64).
#ifndef CUDASIM_DEVICE_RANDOM_H_
#define CUDASIM_DEVICE_RANDOM_H_

#include <cstdint>

namespace cudasim {

class RandomBits {
 public:
  explicit RandomBits(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // In [0, bound).
  uint64_t Below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(Next()) * bound) >> 64);
  }

 private:
  uint64_t state_;
};

}  // namespace cudasim

#endif  // CUDASIM_DEVICE_RANDOM_H_
