// Integer and bit functions, and reinterpretations.
#ifndef CUDASIM_BITS_H_
#define CUDASIM_BITS_H_

#include <cstdint>
#include <cstring>

#include "cudasim/atomics.h"

// NOLINTBEGIN: CUDA's names and types
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __clzll(long long x) {
  return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x));
}
// The lowest set bit, from 1; 0 for 0.
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
  x = __builtin_bswap32(x);
  x = (x & 0x0f0f0f0fu) << 4 | (x >> 4 & 0x0f0f0f0fu);
  x = (x & 0x33333333u) << 2 | (x >> 2 & 0x33333333u);
  return (x & 0x55555555u) << 1 | (x >> 1 & 0x55555555u);
}
inline unsigned long long __brevll(unsigned long long x) {
  return static_cast<unsigned long long>(__brev(static_cast<unsigned>(x))) << 32 |
         __brev(static_cast<unsigned>(x >> 32));
}
// Byte i of the result is byte (selector >> 4i & 7) of {y, x}; bit 3 spreads that byte's sign.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t bytes = static_cast<uint64_t>(y) << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned choice = selector >> (4 * i) & 15;
    unsigned byte = static_cast<unsigned>(bytes >> (8 * (choice & 7))) & 255;
    if ((choice & 8) != 0) byte = (byte & 128) != 0 ? 255 : 0;
    result |= byte << (8 * i);
  }
  return result;
}
inline int __mulhi(int a, int b) { return static_cast<int>((static_cast<int64_t>(a) * b) >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<uint64_t>(a) * b) >> 32);
}
inline long long __mul64hi(long long a, long long b) {
  return static_cast<long long>((static_cast<__int128>(a) * b) >> 64);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  const uint64_t both = static_cast<uint64_t>(high) << 32 | low;
  return static_cast<unsigned>((both << (shift & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  const uint64_t both = static_cast<uint64_t>(high) << 32 | low;
  return static_cast<unsigned>(both >> (shift & 31));
}
inline int __hadd(int a, int b) { return static_cast<int>((static_cast<int64_t>(a) + b) >> 1); }
inline unsigned __sad(int a, int b, unsigned c) {
  return c + (a < b ? static_cast<unsigned>(b) - static_cast<unsigned>(a)
                    : static_cast<unsigned>(a) - static_cast<unsigned>(b));
}

inline int __float_as_int(float x) { return cudasim::BitCast<int>(x); }
inline unsigned __float_as_uint(float x) { return cudasim::BitCast<unsigned>(x); }
inline float __int_as_float(int x) { return cudasim::BitCast<float>(x); }
inline float __uint_as_float(unsigned x) { return cudasim::BitCast<float>(x); }
inline long long __double_as_longlong(double x) { return cudasim::BitCast<long long>(x); }
inline double __longlong_as_double(long long x) { return cudasim::BitCast<double>(x); }
inline int __double2hiint(double x) {
  return static_cast<int>(cudasim::BitCast<uint64_t>(x) >> 32);
}
inline int __double2loint(double x) { return static_cast<int>(cudasim::BitCast<uint64_t>(x)); }
inline double __hiloint2double(int high, int low) {
  return cudasim::BitCast<double>(static_cast<uint64_t>(static_cast<uint32_t>(high)) << 32 |
                                  static_cast<uint32_t>(low));
}

// Whether the address is of this kind; here everything except shared memory is global.
namespace cudasim {
bool IsShared(const void* p);
}
inline unsigned __isShared(const void* p) { return cudasim::IsShared(p); }
inline unsigned __isGlobal(const void* p) { return !cudasim::IsShared(p); }
inline size_t __cvta_generic_to_shared(const void* p) { return reinterpret_cast<size_t>(p); }
// NOLINTEND

#endif  // CUDASIM_BITS_H_
