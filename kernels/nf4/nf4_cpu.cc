#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/simd.h"
#include "kernels/nf4/nf4.h"
#include "kernels/nf4/nf4_quantize_cpu.h"

namespace lockstep::cpu {
namespace {

constexpr int64_t kPackedBlock = kNf4Block / 2;  // bytes

// ---- Quantising. ----

// Between which a value is nearer to kNf4Code[i] than to its neighbours.
constexpr std::array<float, 15> kBounds = [] {
  std::array<float, 15> bounds{};
  for (size_t i = 0; i < bounds.size(); ++i) bounds[i] = (kNf4Code[i] + kNf4Code[i + 1]) / 2;
  return bounds;
}();
constexpr float kLeastScale = 1e-38f;  // whose inverse is finite

// The codes of a block of n values, two a byte, and its scale. Returns whether all are finite.
template <class T>
[[gnu::always_inline]] inline bool QuantizeBlock(const T* values, int64_t n, uint8_t* codes,
                                                 float* scale) {
  float x[kNf4Block] = {};
  for (int64_t i = 0; i < n; ++i) x[i] = Convert<float>(values[i]);
  float largest = 0;
  int bad = 0;
  for (float v : x) {
    largest = std::max(largest, std::abs(v));
    bad |= !(std::abs(v) <= std::numeric_limits<float>::max());
  }
  if (bad != 0) return false;
  const float divisor = std::max(largest, kLeastScale);
  // bitsandbytes divides where a block is not whole, and stores the divisor.
  if (n < kNf4Block) {
    for (float& v : x) v = v / divisor;
  } else {
    const float inverse = 1.0f / divisor;
    for (float& v : x) v = v * inverse;
  }
  *scale = n < kNf4Block ? divisor : largest;
  int32_t code[kNf4Block];
  for (int64_t i = 0; i < kNf4Block; ++i) {
    code[i] = 0;
    for (float bound : kBounds) code[i] += x[i] > bound ? 1 : 0;
  }
  for (int64_t i = 0; i < (n + 1) / 2; ++i) {
    codes[i] = static_cast<uint8_t>(code[2 * i] << 4 | code[2 * i + 1]);
  }
  return true;
}

// The number in the map that is nearest to v.
uint8_t NearestInMap(const std::array<float, 256>& map, float v) {
  const auto above = std::ranges::lower_bound(map, v);
  if (above == map.begin()) return 0;
  if (above == map.end()) return 255;
  const auto index = static_cast<uint8_t>(above - map.begin());
  return std::abs(*above - v) < std::abs(v - *(above - 1)) ? index : index - 1;
}

void QuantizeScales(const std::vector<float>& scales, const Nf4Matrix::Layout& l, std::byte* data) {
  const std::array<float, 256>& map = DynamicMap();
  std::memcpy(data + l.map, map.data(), sizeof(map));
  double sum = 0;
  for (float s : scales) sum += s;
  const auto offset =
      static_cast<float>(scales.empty() ? 0 : sum / static_cast<double>(scales.size()));
  std::memcpy(data + l.offset, &offset, sizeof(offset));
  auto* const group_scales = reinterpret_cast<float*>(data + l.group_scales);
  auto* const q = reinterpret_cast<uint8_t*>(data + l.scales);
  for (int64_t g = 0; g < l.groups; ++g) {
    const int64_t begin = g * kNf4Group, end = std::min(begin + kNf4Group, l.blocks);
    float largest = 0;
    for (int64_t b = begin; b < end; ++b) {
      largest = std::max(largest, std::abs(scales[static_cast<size_t>(b)] - offset));
    }
    group_scales[g] = largest;
    for (int64_t b = begin; b < end; ++b) {
      const float distance = scales[static_cast<size_t>(b)] - offset;
      q[b] = NearestInMap(map, largest > 0 ? distance / largest : 0);
    }
  }
}

// ---- Dequantising. ----

float ScaleOf(const Nf4Matrix& m, const Nf4Matrix::Layout& l, const std::byte* data,
              int64_t block) {
  const auto f32 = [&](int64_t at, int64_t i) {
    return reinterpret_cast<const float*>(data + at)[i];
  };
  if (!m.double_quantized) return f32(l.scales, block);
  const int64_t q = static_cast<uint8_t>(data[l.scales + block]);
  return f32(l.map, q) * f32(l.group_scales, block / kNf4Group) + f32(l.offset, 0);
}

// All 64 values of a block.
template <class T>
[[gnu::always_inline]] inline void DequantizeBlock(const uint8_t* codes, float scale, T* out) {
  // Pairs of values, by the byte that stands for them.
  struct Pair {
    float first, second;
  };
  static const std::array<Pair, 256> pairs = [] {
    std::array<Pair, 256> p{};
    for (size_t i = 0; i < p.size(); ++i) p[i] = {kNf4Code[i >> 4], kNf4Code[i & 15]};
    return p;
  }();
  alignas(64) float values[kNf4Block];
  for (int64_t i = 0; i < kPackedBlock; ++i) {
    std::memcpy(values + 2 * i, &pairs[codes[i]], sizeof(Pair));
  }
  for (int64_t i = 0; i < kNf4Block; ++i) out[i] = Convert<T>(values[i] * scale);
}

// The same, to the bit, where a vector of 16 values can be looked up by one instruction.
template <class T>
[[gnu::always_inline]] inline void DequantizeBlockOnAvx512(const uint8_t* codes, float scale,
                                                           T* out) {
  using Floats = float __attribute__((vector_size(64)));
  using Words = uint32_t __attribute__((vector_size(64)));
  using Bytes = uint8_t __attribute__((vector_size(16)));
  Floats table;
  std::memcpy(&table, kNf4Code.data(), sizeof(table));
  const auto look_up = [&](Floats& values, const Words& at) {
#ifdef __clang__
    for (int i = 0; i < 16; ++i) values[i] = table[at[i]];
#else
    values = __builtin_shuffle(table, at);
#endif
    values *= scale;
  };
  for (int half = 0; half < 2; ++half, codes += 16, out += 32) {
    Bytes bytes;
    std::memcpy(&bytes, codes, sizeof(bytes));
    const Words wide = __builtin_convertvector(bytes, Words);
    Floats first, second;
    look_up(first, wide >> 4);
    look_up(second, wide & 15);
    if constexpr (std::is_same_v<T, BF16>) {  // rounded as BF16's constructor does
      const Words u = reinterpret_cast<Words>(first), v = reinterpret_cast<Words>(second);
      const Words low = (u + 0x7fff + (u >> 16 & 1)) >> 16;
      const Words high = (v + 0x7fff + (v >> 16 & 1)) & 0xffff0000u;
      const Words both = low | high;
      std::memcpy(static_cast<void*>(out), &both, sizeof(both));
    } else {
      const Floats values[2] = {__builtin_shufflevector(first, second, 0, 16, 1, 17, 2, 18, 3, 19,
                                                        4, 20, 5, 21, 6, 22, 7, 23),
                                __builtin_shufflevector(first, second, 8, 24, 9, 25, 10, 26, 11, 27,
                                                        12, 28, 13, 29, 14, 30, 15, 31)};
      alignas(64) float buffer[32];
      std::memcpy(buffer, values, sizeof(buffer));
      for (int i = 0; i < 32; ++i) out[i] = Convert<T>(buffer[i]);
    }
  }
}

// out = the n values from number `begin` of the matrix on.
template <bool kAvx512, class T>
[[gnu::always_inline]] inline void DequantizeRun(const Nf4Matrix& m, const Nf4Matrix::Layout& l,
                                                 const std::byte* data, int64_t begin, int64_t n,
                                                 T* out) {
  const auto* codes = reinterpret_cast<const uint8_t*>(data + l.codes);
  const int64_t end = begin + n;
  for (int64_t at = begin; at < end;) {
    const int64_t block = at / kNf4Block;
    const float scale = ScaleOf(m, l, data, block);
    const int64_t stop = std::min(end, (block + 1) * kNf4Block);
    if (stop - at == kNf4Block) {
      const uint8_t* const of_block = codes + block * kPackedBlock;
      kAvx512 ? DequantizeBlockOnAvx512(of_block, scale, out)
              : DequantizeBlock(of_block, scale, out);
      out += kNf4Block;
      at = stop;
      continue;
    }
    for (; at < stop; ++at) {
      const int byte = codes[at / 2];
      *out++ =
          Convert<T>(kNf4Code[static_cast<size_t>(at % 2 == 0 ? byte >> 4 : byte & 15)] * scale);
    }
  }
}

void Nf4DequantizeCpu(Stream, const Nf4DequantizeArgs& args) {
  const Nf4Matrix& m = args.matrix;
  const int64_t rows = args.out.dim(0), n = args.out.dim(1);
  if (rows == 0 || n == 0) return;
  const Nf4Matrix::Layout l = m.layout();
  const auto* data = static_cast<const std::byte*>(m.data.raw_data());
  DispatchFloat("nf4", args.out.dtype(), [&]<class T>(TypeTag<T>) {
    T* out = args.out.data<T>();
    const auto run = [&, out, n](auto avx512, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        DequantizeRun<decltype(avx512)::value>(
            m, l, data, (args.row + i) * m.columns() + args.column, n, out + i * n);
      }
    };
    ParallelFor(rows, GrainOf(n), [&](int64_t begin, int64_t end) {
#ifdef __x86_64__
      if (HasAvx512()) return RunOnAvx512([&] { run(std::true_type(), begin, end); });
#endif
      run(std::false_type(), begin, end);
    });
  });
}

LS_REGISTER(nf4_dequantize, DeviceType::kCpu, Nf4DequantizeCpu);

}  // namespace

void Nf4QuantizeInto(const Tensor& weight, const Nf4Matrix& m) {
  const Nf4Matrix::Layout l = m.layout();
  auto* const data = static_cast<std::byte*>(m.data.raw_data());
  const int64_t n = weight.numel();
  std::vector<float> scales(static_cast<size_t>(l.blocks));
  std::atomic<bool> finite = true;
  if (n > 0) {
    std::memset(data, 0, static_cast<size_t>(l.codes));  // what aligns the codes
    auto* const codes = reinterpret_cast<uint8_t*>(data + l.codes);
    DispatchFloat("nf4", weight.dtype(), [&]<class T>(TypeTag<T>) {
      const T* const values = weight.data<T>();
      VectorisedParallelFor(l.blocks, 256, [&](int64_t begin, int64_t end) {
        for (int64_t b = begin; b < end; ++b) {
          const int64_t first = b * kNf4Block;
          if (!QuantizeBlock(values + first, std::min(kNf4Block, n - first),
                             codes + b * kPackedBlock, &scales[static_cast<size_t>(b)])) {
            finite = false;
          }
        }
      });
    });
  }
  LS_CHECK(finite, "nf4: a matrix with infinite or undefined (NaN) weights, of shape ", m.shape,
           ", cannot be quantised");
  if (m.double_quantized) return QuantizeScales(scales, l, data);
  if (!scales.empty()) std::memcpy(data + l.scales, scales.data(), scales.size() * sizeof(float));
}

}  // namespace lockstep::cpu
