// Small functions of bits that the operations share.
#ifndef CUDASIM_PTX_BITS_H_
#define CUDASIM_PTX_BITS_H_

#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

namespace cudasim {
namespace ptx {

inline float FloatOf(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t BitsOf(float x) { return std::bit_cast<uint32_t>(x); }
inline double DoubleOf(uint64_t bits) { return std::bit_cast<double>(bits); }
inline uint64_t BitsOf(double x) { return std::bit_cast<uint64_t>(x); }

template <typename T>
using BitsType = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

// The NaN that every operation in f32 gives; those in f64 keep their argument's payload.
inline float Canonical(float x) { return x == x ? x : FloatOf(0x7fffffff); }
inline double Canonical(double x) { return x; }

// How opcodes with arguments of this type end: ".s32".
template <typename T>
std::string Suffix() {
  std::string text(".");
  text += std::is_floating_point_v<T> ? 'f' : std::is_signed_v<T> ? 's' : 'u';
  text += std::to_string(8 * sizeof(T));
  return text;
}

}  // namespace ptx
}  // namespace cudasim

#endif  // CUDASIM_PTX_BITS_H_
