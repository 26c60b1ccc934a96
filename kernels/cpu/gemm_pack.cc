#include "kernels/cpu/gemm_pack.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "core/dtype.h"
#include "core/round_up.h"
#include "kernels/cpu/simd.h"

namespace lockstep::cpu {
namespace {

// Elements that packed kernels want together: neighbours along k, in 32 bits.
template <class To>
constexpr int64_t kPair = std::is_same_v<To, BF16> ? 2 : 1;

using Row = float __attribute__((vector_size(32)));

// 8 units of 32 bits, or 8 numbers of 16 as floats.
template <class Unit>
[[gnu::always_inline]] inline Row LoadRow(const char* from) {
  Row row;
  if constexpr (std::is_same_v<Unit, float>) {
    std::memcpy(&row, from, sizeof(row));
  } else {
    Unit units[8];
    std::memcpy(units, from, sizeof(units));
    for (int i = 0; i < 8; ++i) row[i] = static_cast<float>(units[i]);
  }
  return row;
}

// to(j, i) = from(i, j) for 8 x 8 units; strides in bytes.
template <class Unit>
[[gnu::always_inline]] inline void TransposeBlock(const char* from, int64_t from_stride, char* to,
                                                  int64_t to_stride) {
  Row x[8], y[8];
  for (int i = 0; i < 8; ++i) x[i] = LoadRow<Unit>(from + i * from_stride);
  // Each step swaps, within pairs of rows, units whose numbers differ in one bit.
  for (int i = 0; i < 8; i += 2) {
    y[i] = __builtin_shufflevector(x[i], x[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    y[i + 1] = __builtin_shufflevector(x[i], x[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int j = 0; j < 2; ++j) {
      const Row a = y[i + j], b = y[i + j + 2];
      x[i + 2 * j] = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
      x[i + 2 * j + 1] = __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  for (int i = 0; i < 4; ++i) {
    const Row low = __builtin_shufflevector(x[i], x[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    const Row high = __builtin_shufflevector(x[i], x[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    std::memcpy(to + i * to_stride, &low, sizeof(Row));
    std::memcpy(to + (i + 4) * to_stride, &high, sizeof(Row));
  }
}

// The same for [rows, columns] units. has_more: as many rows after these are wanted next.
template <class Unit>
void Transpose(const void* from, int64_t from_stride, int64_t rows, int64_t columns, void* to,
               int64_t to_stride, bool has_more) {
  constexpr int64_t kBlock = 8, kFrom = sizeof(Unit), kTo = sizeof(float);
  // Two cache lines of a row are read together, unless what they are written to shares a cache set.
  const int64_t width = (to_stride % 4096 == 0 ? 2 : 4) * kBlock;
  Vectorised([=] {
    alignas(64) char block[kBlock * kBlock * kFrom] = {}, turned[kBlock * kBlock * kTo];
    for (int64_t panel = 0; panel < columns; panel += width) {
      for (int64_t i = 0; i < rows; i += kBlock) {
        for (int64_t j = panel; j < std::min(panel + width, columns); j += kBlock) {
          const int64_t m = std::min(kBlock, rows - i), n = std::min(kBlock, columns - j);
          const char* x = static_cast<const char*>(from) + i * from_stride + j * kFrom;
          char* y = static_cast<char*>(to) + j * to_stride + i * kTo;
          if (has_more && j % (2 * kBlock) == 0) {
            for (int64_t r = 0; r < kBlock; ++r) __builtin_prefetch(x + (rows + r) * from_stride);
          }
          if (m == kBlock && n == kBlock) {
            TransposeBlock<Unit>(x, from_stride, y, to_stride);
            continue;
          }
          const auto row_bytes = static_cast<size_t>(n * kFrom);
          const auto column_bytes = static_cast<size_t>(m * kTo);
          for (int64_t r = 0; r < m; ++r) {
            std::memcpy(block + r * kBlock * kFrom, x + r * from_stride, row_bytes);
          }
          TransposeBlock<Unit>(block, kBlock * kFrom, turned, kBlock * kTo);
          for (int64_t c = 0; c < n; ++c) {
            std::memcpy(y + c * to_stride, turned + c * kBlock * kTo, column_bytes);
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
  using Pairs = uint32_t __attribute__((vector_size(4 * kPairs)));
  int64_t j = 0;
  for (; j + kPairs <= n; j += kPairs) {
    Half first, second;
    std::memcpy(&first, even + j, sizeof(Half));
    std::memcpy(&second, odd + j, sizeof(Half));
    const Pairs pairs =
        __builtin_convertvector(first, Pairs) | __builtin_convertvector(second, Pairs) << 16;
    std::memcpy(static_cast<void*>(to + 2 * j), &pairs, sizeof(Pairs));
  }
  for (; j < n; ++j) {
    to[2 * j] = even[j];
    to[2 * j + 1] = odd[j];
  }
}

// PackB of an operand that is not transposed.
template <class From, class To>
void PackRows(const Operand<From>& b, int64_t k, int64_t n, int64_t block, int64_t rows, To* to) {
  constexpr int64_t kAhead = 8, kLine = 64 / sizeof(From);
  Vectorised([=] {
    for (int64_t l = 0; l < k; l += kPair<To>) {
      const From* const even = b.data + l * b.ld;
      // Pieces of rows are too short for the CPU to predict the next ones.
      const From* const ahead = b.data + std::min(l + kAhead, k - 1) * b.ld;
      for (int64_t j = 0; j < n; j += kLine) __builtin_prefetch(ahead + j);
      for (int64_t j = 0; j < n; j += block) {
        const int64_t columns = std::min(block, n - j);
        To* const out = to + j * rows + l * block;
        if constexpr (kPair<To> == 1) {
          int64_t i = 0;
          for (; i + 16 <= columns; i += 16) {
            To wide[16];
            for (int64_t c = 0; c < 16; ++c) wide[c] = static_cast<To>(even[j + i + c]);
            std::memcpy(out + i, wide, sizeof(wide));
          }
          for (; i < columns; ++i) out[i] = static_cast<To>(even[j + i]);
        } else if (l + 1 < k) {
          Interleave(even + j, even + b.ld + j, columns, out);
        } else {
          for (int64_t i = 0; i < columns; ++i) out[2 * i] = even[j + i];
        }
      }
    }
  });
}

// Rows of a block of B.
template <class To>
constexpr int64_t PackedRows(int64_t k) {
  return kPair<To> == 1 ? k : RoundUp(k, 32);
}

}  // namespace

int64_t PackedColumns(int64_t n) { return std::min<int64_t>(RoundUp(n, 16), 64); }

template <class T>
int64_t PackedSizeB(int64_t k, int64_t n, int64_t block) {
  return PackedRows<T>(k) * RoundUp(n, block);
}

void PackPairs(const Operand<BF16>& a, int64_t m, int64_t k, BF16* to) {
  if (!a.transposed) return Vectorised([=] { CopyRows(a.data, a.ld, m, k, to, k); });
  constexpr int64_t kPairs = 16, kTo = sizeof(BF16);
  static thread_local Scratch<BF16> scratch;
  BF16* const pairs = scratch.Get(2 * kPairs * m);
  for (int64_t l = 0; l + 1 < k; l += 2 * kPairs) {
    const int64_t n = std::min(kPairs, (k - l) / 2);
    Vectorised([=, &a] {
      for (int64_t p = 0; p < n; ++p) {
        const BF16* row = a.data + (l + 2 * p) * a.ld;
        Interleave(row, row + a.ld, m, pairs + 2 * p * m);
      }
    });
    Transpose<float>(pairs, 2 * m * kTo, n, m, to + l, k * kTo, /*has_more=*/false);
  }
  if (k % 2 == 1) {
    for (int64_t i = 0; i < m; ++i) to[i * k + k - 1] = *a.At(i, k - 1);
  }
}

template <class From, class To>
void PackA(const Operand<From>& a, int64_t m, int64_t k, int64_t strip, To* to) {
  if (!a.transposed) return Vectorised([=] { CopyRows(a.data, a.ld, m, k, to, k); });
  const auto pack = [&](auto rows) {
    constexpr int64_t kRows = rows(), kWidth = 8 * kRows, kAhead = 16, kLine = 64 / sizeof(From);
    Vectorised([=] {
      for (int64_t panel = 0; panel < m; panel += kWidth) {
        const int64_t end = std::min(panel + kWidth, m);
        for (int64_t l = 0; l < k; ++l) {
          const From* const column = a.data + l * a.ld;
          const From* const ahead = a.data + std::min(l + kAhead, k - 1) * a.ld;
          for (int64_t i = panel; i < end; i += kLine) __builtin_prefetch(ahead + i);
          for (int64_t i = panel; i < end; i += kRows) {
            To part[kRows] = {};
            if (i + kRows <= end) {
              for (int64_t r = 0; r < kRows; ++r) part[r] = static_cast<To>(column[i + r]);
            } else {
              for (int64_t r = 0; i + r < end; ++r) part[r] = static_cast<To>(column[i + r]);
            }
            std::memcpy(to + i * k + l * kRows, part, sizeof(part));
          }
        }
      }
    });
  };
  if (strip == 6) return pack(std::integral_constant<int64_t, 6>());
  pack(std::integral_constant<int64_t, 8>());
}

template <class From, class To>
void PackB(const Operand<From>& b, int64_t k, int64_t n, int64_t block, To* to) {
  using Unit = std::conditional_t<kPair<To> == 1, From, float>;
  const int64_t rows = PackedRows<To>(k);
  if (n % block != 0 || k != rows) std::fill_n(to, rows * RoundUp(n, block), To(0));
  if (!b.transposed) return PackRows(b, k, n, block, rows, to);
  for (int64_t j = 0; j < n; j += block, to += rows * block) {
    const int64_t columns = std::min(block, n - j);
    if constexpr (std::is_same_v<To, double>) {
      for (int64_t i = 0; i < columns; ++i) {
        for (int64_t l = 0; l < k; ++l) to[l * block + i] = *b.At(l, j + i);
      }
    } else {
      // A few columns at a time: each is read from its first element to its last.
      for (int64_t i = 0; i < columns; i += 16) {
        Transpose<Unit>(b.At(0, j + i), b.ld * int64_t{sizeof(From)},
                        std::min<int64_t>(16, columns - i), k / kPair<To>, to + i * kPair<To>,
                        4 * block, /*has_more=*/j + i + 16 < n);
      }
      if constexpr (kPair<To> == 2) {
        for (int64_t i = 0; k % 2 == 1 && i < columns; ++i) {
          to[(k - 1) * block + 2 * i] = *b.At(k - 1, j + i);
        }
      }
    }
  }
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

template int64_t PackedSizeB<double>(int64_t, int64_t, int64_t);
template int64_t PackedSizeB<float>(int64_t, int64_t, int64_t);
template int64_t PackedSizeB<BF16>(int64_t, int64_t, int64_t);
template void PackA(const Operand<double>&, int64_t, int64_t, int64_t, double*);
template void PackA(const Operand<float>&, int64_t, int64_t, int64_t, float*);
template void PackA(const Operand<BF16>&, int64_t, int64_t, int64_t, float*);
template void PackA(const Operand<F16>&, int64_t, int64_t, int64_t, float*);
template void PackB(const Operand<double>&, int64_t, int64_t, int64_t, double*);
template void PackB(const Operand<float>&, int64_t, int64_t, int64_t, float*);
template void PackB(const Operand<BF16>&, int64_t, int64_t, int64_t, float*);
template void PackB(const Operand<F16>&, int64_t, int64_t, int64_t, float*);
template void PackB(const Operand<BF16>&, int64_t, int64_t, int64_t, BF16*);
template class PanelCache<double>;
template class PanelCache<float>;
template class PanelCache<BF16>;

}  // namespace lockstep::cpu
