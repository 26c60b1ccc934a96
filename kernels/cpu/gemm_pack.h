// Parts of a product's operands in the layouts in which they are multiplied.
#pragma once

#include <cstdint>
#include <vector>

#include "core/dtype.h"
#include "kernels/cpu/scratch.h"

namespace lockstep::cpu {

template <class T>
struct Operand {
  const T* data;
  int64_t ld;
  bool transposed;

  // Element (i, j) of the operand as it enters the product.
  const T* At(int64_t i, int64_t j) const { return data + (transposed ? j * ld + i : i * ld + j); }
  Operand From(int64_t i, int64_t j) const { return {At(i, j), ld, transposed}; }
};

// to [rows, columns], whose rows are to_ld elements apart, = from.
template <class From, class To>
void CopyRows(const From* from, int64_t from_ld, int64_t rows, int64_t columns, To* to,
              int64_t to_ld) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j)
      to[i * to_ld + j] = static_cast<To>(from[i * from_ld + j]);
  }
}

// Columns of a block of B for oneDNN's kernels of bf16: 16, 32, 48 or 64, for n of them.
int64_t PackedColumns(int64_t n);
// Elements of B [k, n] when packed in blocks of this many columns.
template <class T>
int64_t PackedSizeB(int64_t k, int64_t n, int64_t block);

// From what is stored to what is multiplied: double, float, BF16 or F16 as float, or BF16 for
// oneDNN.
//
// A [m, k]: row-major, without gaps; or, if it is transposed, strips of `strip` rows, 6 or 8, in
// which the columns follow each other.
template <class From, class To>
void PackA(const Operand<From>& a, int64_t m, int64_t k, int64_t strip, To* to);
// A [m, k] for oneDNN: row-major, without gaps.
void PackPairs(const Operand<BF16>& a, int64_t m, int64_t k, BF16* to);
// B [k, n]: blocks of `block` columns, a multiple of 16, padded with zeros. In a block the rows
// follow each other; those of bf16 do so in pairs, whose elements alternate: with PackedColumns(n)
// of 64, oneDNN's format BA16a64b2a.
template <class From, class To>
void PackB(const Operand<From>& b, int64_t k, int64_t n, int64_t block, To* to);

// The most that a PanelCache keeps, unless one panel is larger; tiles are chosen such that no panel
// is larger than twice this.
inline constexpr int64_t kPanelCacheBytes = 4 << 20;

// The panels of an operand that a thread has packed last, of one product: those that neighbouring
// tiles share are packed once.
template <class T>
class PanelCache {
 public:
  struct Panel {
    T* data;
    bool packed;  // else the caller packs it now
  };
  // Panel `index` of the `count` of a product, each of at most `size` elements. Valid until the
  // next call. Products are numbered process-wide.
  Panel Find(uint64_t product, int64_t index, int64_t count, int64_t size);

 private:
  Scratch<T> memory_;
  uint64_t product_ = 0;
  std::vector<int64_t> in_slot_;
};

}  // namespace lockstep::cpu
