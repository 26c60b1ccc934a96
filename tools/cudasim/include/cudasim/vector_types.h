// dim3 and the vector types, with NVIDIA's sizes and alignments.
#ifndef CUDASIM_VECTOR_TYPES_H_
#define CUDASIM_VECTOR_TYPES_H_

// clang-format off
#define CUDASIM_VECTOR_TYPES(T, name, align2, align4)                                       \
  struct name##1 { T x; };                                                                  \
  struct alignas(align2) name##2 { T x, y; };                                               \
  struct name##3 { T x, y, z; };                                                            \
  struct alignas(align4) name##4 { T x, y, z, w; };                                         \
  constexpr name##1 make_##name##1(T x) { return {x}; }                                     \
  constexpr name##2 make_##name##2(T x, T y) { return {x, y}; }                             \
  constexpr name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                     \
  constexpr name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
// clang-format on

CUDASIM_VECTOR_TYPES(signed char, char, 2, 4)
CUDASIM_VECTOR_TYPES(unsigned char, uchar, 2, 4)
CUDASIM_VECTOR_TYPES(short, short, 4, 8)            // NOLINT: CUDA's names
CUDASIM_VECTOR_TYPES(unsigned short, ushort, 4, 8)  // NOLINT
CUDASIM_VECTOR_TYPES(int, int, 8, 16)
CUDASIM_VECTOR_TYPES(unsigned int, uint, 8, 16)
CUDASIM_VECTOR_TYPES(long, long, 16, 16)                     // NOLINT
CUDASIM_VECTOR_TYPES(unsigned long, ulong, 16, 16)           // NOLINT
CUDASIM_VECTOR_TYPES(long long, longlong, 16, 16)            // NOLINT
CUDASIM_VECTOR_TYPES(unsigned long long, ulonglong, 16, 16)  // NOLINT
CUDASIM_VECTOR_TYPES(float, float, 8, 16)
CUDASIM_VECTOR_TYPES(double, double, 16, 16)

#undef CUDASIM_VECTOR_TYPES

struct dim3 {
  constexpr dim3(unsigned int x = 1, unsigned int y = 1, unsigned int z = 1)  // NOLINT: implicit
      : x(x), y(y), z(z) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}          // NOLINT: implicit, as NVIDIA's
  constexpr operator uint3() const { return uint3{x, y, z}; }  // NOLINT
  unsigned int x, y, z;
};

#endif  // CUDASIM_VECTOR_TYPES_H_
