#include "kernels/bench/bits.h"

#include <cstring>

#include "core/cuda/blaslt.h"
#include "core/stream.h"
#include "kernels/bench/timing.h"

namespace lockstep {
namespace {

using cuda::BlasLtMatmul;

// Column-major, as cuBLASLt has it: D [m, n] = op(A) op(B).
struct Product {
  std::string name;
  bool transpose_a = false, transpose_b = false;
  int64_t m = 0, n = 0, k = 0;
};

// A column-major matrix, `ld` elements from one column to the next.
struct Matrix {
  Tensor data;  // [columns, ld]
  int64_t ld = 0;
};

class Asker {
 public:
  Asker(const Product& p, DType dtype, Device device)
      : p_(p),
        dtype_(dtype),
        // Gradients of weights, the sums over all tokens, are f32.
        d_dtype_(p.transpose_b ? DType::kF32 : dtype),
        device_(device) {
    const auto random = [&](bool transpose, int64_t rows, int64_t columns) {
      if (transpose) std::swap(rows, columns);
      return Matrix{RandomTensor({columns, rows}, dtype, device), rows};
    };
    a_ = random(p.transpose_a, p.m, p.k);
    b_ = random(p.transpose_b, p.k, p.n);
  }

  std::vector<BitsAnswer> Ask() {
    const std::vector<std::byte> whole = Multiply({}).value();
    std::vector<BitsAnswer> answers;
    const auto ask = [&](const std::string& change, const Part& part) {
      BitsAnswer answer{p_.name, dtype_, change};
      const auto got = Multiply(part);
      answer.refused = !got.has_value();
      if (got) Compare(part, whole, *got, answer);
      answers.push_back(answer);
    };
    if (p_.n % 16 == 0) CheckComparison(whole);
    for (int i = 0; i < 3; ++i) ask(BitsAnswer::kAgain, {});
    for (int64_t less : {2, 4, 16, 128}) {
      if (p_.n % (8 * less) == 0) {
        ask(StrCat("n ", p_.n / less, " of ", p_.n), {.n = p_.n / less});
      }
    }
    if (p_.m % 16 == 0) ask(StrCat("m ", p_.m / 2, " of ", p_.m), {.m = p_.m / 2});
    if (p_.n % 16 == 0) {
      ask(StrCat("n from ", p_.n / 2), {.first_n = p_.n / 2, .n = p_.n / 2});
    }
    for (int64_t pad : {8, 64}) ask(StrCat("leading dimensions + ", pad), {.pad = pad});
    return answers;
  }

 private:
  // A part of D: `n` columns from first_n on, and the first m rows; 0: all.
  struct Part {
    int64_t first_n = 0, n = 0, m = 0, pad = 0;
  };

  static Matrix Padded(const Matrix& x, int64_t pad) {
    if (pad == 0) return x;
    const Tensor wide = Tensor::Zeros({x.data.dim(0), x.ld + pad}, x.data.dtype(), x.data.device());
    wide.Slice(1, 0, x.ld).CopyFrom(x.data);
    return {wide, x.ld + pad};
  }

  // D's part, with columns of m elements.
  std::optional<std::vector<std::byte>> Multiply(const Part& part) {
    const int64_t m = part.m > 0 ? part.m : p_.m, n = part.n > 0 ? part.n : p_.n;
    const Matrix a = Padded(a_, part.pad), b = Padded(b_, part.pad);
    const int64_t ldd = m + part.pad;
    const Tensor d = Tensor::Zeros({n, ldd}, d_dtype_, device_);
    BlasLtMatmul args;
    args.transpose_a = p_.transpose_a;
    args.transpose_b = p_.transpose_b;
    args.m = m;
    args.n = n;
    args.k = p_.k;
    args.dtype = dtype_;
    args.d_dtype = d_dtype_;
    args.a = a.data.raw_data();
    const int64_t skipped = part.first_n * (p_.transpose_b ? 1 : b.ld);
    args.b = static_cast<const std::byte*>(b.data.raw_data()) + skipped * SizeOf(dtype_);
    args.d = d.raw_data();
    args.lda = a.ld;
    args.ldb = b.ld;
    args.ldd = ldd;
    if (!cuda::RunBlasLt(CurrentStream(device_), args)) return std::nullopt;
    const Tensor host = d.Slice(1, 0, m).Contiguous().To(kCpu);
    std::vector<std::byte> bytes(static_cast<size_t>(host.bytes()));
    std::memcpy(bytes.data(), host.raw_data(), bytes.size());
    return bytes;
  }

  void Compare(const Part& part, const std::vector<std::byte>& whole,
               const std::vector<std::byte>& got, BitsAnswer& answer) const {
    const int64_t m = part.m > 0 ? part.m : p_.m, n = part.n > 0 ? part.n : p_.n;
    const int64_t size = SizeOf(d_dtype_);
    answer.elements = m * n;
    for (int64_t column = 0; column < n; ++column) {
      const std::byte* x = whole.data() + (part.first_n + column) * p_.m * size;
      const std::byte* y = got.data() + column * m * size;
      if (std::memcmp(x, y, static_cast<size_t>(m * size)) == 0) continue;
      for (int64_t row = 0; row < m; ++row) {
        answer.different +=
            std::memcmp(x + row * size, y + row * size, static_cast<size_t>(size)) != 0;
      }
    }
  }

  // Other columns hold other numbers, which the comparison must find to differ.
  void CheckComparison(const std::vector<std::byte>& whole) {
    const auto second_half = Multiply({.first_n = p_.n / 2, .n = p_.n / 2});
    if (!second_half) return;
    BitsAnswer answer;
    Compare({.n = p_.n / 2}, whole, *second_half, answer);
    LS_INVARIANT(answer.different > answer.elements / 2, "of ", answer.elements,
                 " elements of other columns only ", answer.different, " seem to differ");
  }

  const Product p_;
  const DType dtype_, d_dtype_;
  const Device device_;
  Matrix a_, b_;
};

}  // namespace

std::vector<BitsAnswer> GemmBits(const GptShape& shape, Device device) {
  const int64_t c = shape.width;
  struct Layer {
    const char* name;
    int64_t in, out, rows;
  };
  const Layer layers[] = {{"qkv", c, 3 * c, shape.rows()},
                          {"projection", c, c, shape.rows()},
                          {"fc", c, 4 * c, shape.rows()},
                          {"fc projection", 4 * c, c, shape.rows()},
                          {"head", c, shape.vocabulary, std::min<int64_t>(shape.rows(), 4096)}};
  std::vector<BitsAnswer> answers;
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    for (const Layer& l : layers) {
      // y = x w', dx = dy w and dw = dy' x, of row-major matrices.
      for (const Product& p :
           {Product{StrCat(l.name, " forward"), true, false, l.out, l.rows, l.in},
            Product{StrCat(l.name, " dx"), false, false, l.in, l.rows, l.out},
            Product{StrCat(l.name, " dw"), false, true, l.in, l.out, l.rows}}) {
        for (BitsAnswer& answer : Asker(p, dtype, device).Ask()) {
          answers.push_back(std::move(answer));
        }
      }
    }
  }
  return answers;
}

}  // namespace lockstep
