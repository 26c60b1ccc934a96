#include "kernels/cpu/gemm_pack.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "core/dtype.h"
#include "kernels/cpu/simd.h"

namespace lockstep::cpu {
namespace {

constexpr int64_t RoundUp(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

// Elements of T in 32 bits: neighbours along k, which packed kernels want together.
template <class T>
constexpr int64_t kPair = 4 / static_cast<int64_t>(sizeof(T));

using Row = uint32_t __attribute__((vector_size(64)));

// The pieces of 4 of a and b with even numbers, and those with odd ones.
inline void Halves(const Row& a, const Row& b, Row& even, Row& odd) {
  even = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
  odd = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}

// to(j, i) = from(i, j) for 16 x 16 units of 32 bits; strides in bytes.
inline void TransposeBlock(const char* from, int64_t from_stride, char* to, int64_t to_stride) {
  using Pairs = uint64_t __attribute__((vector_size(64)));
  Row x[16], y[16];
  for (int i = 0; i < 16; ++i) std::memcpy(&x[i], from + i * from_stride, sizeof(Row));
  // First within pieces of four units, which become columns of four rows each: y[4 q + j] has, in
  // its piece p, column 4 p + j of the four rows from 4 q on.
  for (int i = 0; i < 16; i += 4) {
    for (int j = 0; j < 4; j += 2) {
      const Row a = x[i + j], b = x[i + j + 1];
      y[i + j] =
          __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
      y[i + j + 1] =
          __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    }
    for (int j = 0; j < 2; ++j) {
      const Pairs a = reinterpret_cast<Pairs>(y[i + j]), b = reinterpret_cast<Pairs>(y[i + j + 2]);
      x[i + 2 * j] =
          reinterpret_cast<Row>(__builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14));
      x[i + 2 * j + 1] =
          reinterpret_cast<Row>(__builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15));
    }
  }
  // Then the pieces: twice, those with even numbers of two rows, and those with odd ones.
  for (int j = 0; j < 4; ++j) {
    Row halves[4], columns[4];
    for (int h = 0; h < 2; ++h) Halves(x[8 * h + j], x[8 * h + 4 + j], halves[h], halves[2 + h]);
    for (int h = 0; h < 2; ++h) {
      Halves(halves[2 * h], halves[2 * h + 1], columns[h], columns[2 + h]);
    }
    for (int p = 0; p < 4; ++p) {
      std::memcpy(to + (4 * p + j) * to_stride, &columns[p], sizeof(Row));
    }
  }
}

// The same for [rows, columns] units.
void Transpose(const void* from, int64_t from_stride, int64_t rows, int64_t columns, void* to,
               int64_t to_stride) {
  constexpr int64_t kBlock = 16, kUnit = 4;
  // Two cache lines of a row are read together, unless what they are written to shares a cache set.
  const int64_t width = to_stride % 4096 == 0 ? kBlock : 2 * kBlock;
  Vectorised([=] {
    alignas(64) char block[kBlock * kBlock * kUnit];
    for (int64_t panel = 0; panel < columns; panel += width) {
      for (int64_t i = 0; i < rows; i += kBlock) {
        for (int64_t j = panel; j < std::min(panel + width, columns); j += kBlock) {
          const int64_t m = std::min(kBlock, rows - i), n = std::min(kBlock, columns - j);
          const char* x = static_cast<const char*>(from) + i * from_stride + j * kUnit;
          char* y = static_cast<char*>(to) + j * to_stride + i * kUnit;
          if (m == kBlock && n == kBlock) {
            TransposeBlock(x, from_stride, y, to_stride);
            continue;
          }
          const auto row_bytes = static_cast<size_t>(n * kUnit);
          const auto column_bytes = static_cast<size_t>(m * kUnit);
          for (int64_t r = 0; r < m; ++r) {
            std::memcpy(block + r * kBlock * kUnit, x + r * from_stride, row_bytes);
          }
          TransposeBlock(block, kBlock * kUnit, block, kBlock * kUnit);
          for (int64_t c = 0; c < n; ++c) {
            std::memcpy(y + c * to_stride, block + c * kBlock * kUnit, column_bytes);
          }
        }
      }
    }
  });
}

// to[2 j] = even[j], to[2 j + 1] = odd[j]: in stores of pairs, since compilers do not vectorise
// steps of two.
[[gnu::always_inline]] inline void Interleave(const BF16* even, const BF16* odd, int64_t n,
                                              BF16* to) {
  static_assert(std::endian::native == std::endian::little);
  constexpr int64_t kPairs = 16;
  using Half = uint16_t __attribute__((vector_size(2 * kPairs)));
  int64_t j = 0;
  for (; j + kPairs <= n; j += kPairs) {
    Half first, second;
    std::memcpy(&first, even + j, sizeof(Half));
    std::memcpy(&second, odd + j, sizeof(Half));
    const Row pairs = __builtin_convertvector(first, Row) | __builtin_convertvector(second, Row)
                                                                << 16;
    std::memcpy(static_cast<void*>(to + 2 * j), &pairs, sizeof(Row));
  }
  for (; j < n; ++j) {
    to[2 * j] = even[j];
    to[2 * j + 1] = odd[j];
  }
}

// PackB of an operand that is not transposed, in blocks of `block` columns.
template <class T>
void PackRows(const Operand<T>& b, int64_t k, int64_t n, int64_t block, int64_t rows, T* to) {
  constexpr int64_t kAhead = 8, kLine = 64 / sizeof(T);
  Vectorised([=] {
    for (int64_t l = 0; l < k; l += kPair<T>) {
      const T* const even = b.data + l * b.ld;
      const T* const odd = even + b.ld;
      // Pieces of rows are too short for the CPU to predict the next ones.
      const T* const ahead = b.data + std::min(l + kAhead, k - 1) * b.ld;
      for (int64_t j = 0; j < n; j += kLine) __builtin_prefetch(ahead + j);
      for (int64_t j = 0; j < n; j += block) {
        const int64_t columns = std::min(block, n - j);
        T* const out = to + j * rows + l * block;
        if constexpr (kPair<T> == 1) {
          int64_t i = 0;
          for (; i + 16 <= columns; i += 16) std::memcpy(out + i, even + j + i, 64);
          for (; i < columns; ++i) out[i] = even[j + i];
        } else if (l + 1 < k) {
          Interleave(even + j, odd + j, columns, out);
        } else {
          for (int64_t i = 0; i < columns; ++i) out[2 * i] = even[j + i];
        }
      }
    }
  });
}

}  // namespace

int64_t PackedColumns(int64_t n) { return std::min<int64_t>(RoundUp(n, 16), 64); }
int64_t PackedSizeB(int64_t k, int64_t n) { return RoundUp(k, 32) * RoundUp(n, PackedColumns(n)); }

template <class T>
void PackA(const Operand<T>& a, int64_t m, int64_t k, T* to) {
  constexpr int64_t kSize = sizeof(T);
  if (!a.transposed) {
    for (int64_t i = 0; i < m; ++i) std::copy_n(a.data + i * a.ld, k, to + i * k);
    return;
  }
  if constexpr (kPair<T> == 1) {
    Transpose(a.data, a.ld * kSize, k, m, to, k * kSize);
  } else {
    constexpr int64_t kPairs = 16;
    static thread_local Scratch<T> scratch;
    T* const pairs = scratch.Get(2 * kPairs * m);
    for (int64_t l = 0; l + 1 < k; l += 2 * kPairs) {
      const int64_t n = std::min(kPairs, (k - l) / 2);
      Vectorised([=, &a] {
        for (int64_t p = 0; p < n; ++p) {
          const T* row = a.data + (l + 2 * p) * a.ld;
          Interleave(row, row + a.ld, m, pairs + 2 * p * m);
        }
      });
      Transpose(pairs, 2 * m * kSize, n, m, to + l, k * kSize);
    }
    if (k % 2 == 1) {
      for (int64_t i = 0; i < m; ++i) to[i * k + k - 1] = *a.At(i, k - 1);
    }
  }
}

template <class T>
void PackB(const Operand<T>& b, int64_t k, int64_t n, T* to) {
  constexpr int64_t kSize = sizeof(T);
  const int64_t block = PackedColumns(n), rows = RoundUp(k, 16 * kPair<T>);
  if (n % block != 0 || k != rows) std::fill_n(to, rows * RoundUp(n, block), T(0));
  if (b.transposed) {
    for (int64_t j = 0; j < n; j += block, to += rows * block) {
      const int64_t columns = std::min(block, n - j);
      // A few columns at a time: each is read from its first element to its last.
      for (int64_t i = 0; i < columns; i += 16) {
        Transpose(b.At(0, j + i), b.ld * kSize, std::min<int64_t>(16, columns - i), k / kPair<T>,
                  to + i * kPair<T>, 4 * block);
      }
      for (int64_t i = 0; k % kPair<T> == 1 && i < columns; ++i) {
        to[(k - 1) * block + 2 * i] = *b.At(k - 1, j + i);
      }
    }
    return;
  }
  PackRows(b, k, n, block, rows, to);
}

template <class T>
typename PanelCache<T>::Panel PanelCache<T>::Find(uint64_t product, int64_t index, int64_t count,
                                                  int64_t size) {
  size = RoundUp(size, 64);
  if (product != product_) {
    product_ = product;
    const int64_t bytes = size * static_cast<int64_t>(sizeof(T));
    const int64_t slots = std::clamp<int64_t>(kPanelCacheBytes / bytes, 1, count);
    in_slot_.assign(static_cast<size_t>(slots), -1);
    memory_.Get(slots * size);
  }
  const int64_t slots = std::ssize(in_slot_), slot = index % slots;
  const bool packed = std::exchange(in_slot_[static_cast<size_t>(slot)], index) == index;
  return {memory_.Get(slots * size) + slot * size, packed};
}

template void PackA(const Operand<float>&, int64_t, int64_t, float*);
template void PackA(const Operand<BF16>&, int64_t, int64_t, BF16*);
template void PackB(const Operand<float>&, int64_t, int64_t, float*);
template void PackB(const Operand<BF16>&, int64_t, int64_t, BF16*);
template class PanelCache<float>;
template class PanelCache<BF16>;

}  // namespace lockstep::cpu
