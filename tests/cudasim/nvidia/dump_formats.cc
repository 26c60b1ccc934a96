// Prints a checksum of each conversion and operation of the small floats over all, or very many,
// inputs. Compiled twice, against NVIDIA's headers and against the simulator's: the texts must be
// the same.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>

namespace {

float FromBits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

template <class T>
uint64_t Bits(const T& x) {
  uint64_t bits = 0;
  std::memcpy(&bits, &x, sizeof(x));
  return bits;
}
// NaN is NaN, whatever its payload.
uint64_t Bits(float x) {
  uint32_t bits = 0x7fffffff;
  if (!std::isnan(x)) std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

class Checksum {
 public:
  explicit Checksum(const char* name) : name_(name) {}
  ~Checksum() { std::printf("%-28s %016llx\n", name_, static_cast<unsigned long long>(sum_)); }
  template <class T>
  void Add(const T& value) {
    sum_ = (sum_ ^ Bits(value)) * 0x100000001b3u;
    sum_ ^= sum_ >> 29;
  }

 private:
  const char* name_;
  uint64_t sum_ = 0xcbf29ce484222325u;
};

// Every float whose lower bits are 0, 1, half, half + 1 or all ones, which determine rounding.
template <class F>
void ForFloats(const F& f) {
  for (uint32_t high = 0; high < 1u << 19; ++high) {
    for (uint32_t low : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x1fffu}) f(FromBits(high << 13 | low));
  }
}

template <class F>
void ForBits16(const F& f) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) f(static_cast<unsigned short>(bits));
}

template <class T, class FromShort, class Name>
void Operations(const FromShort& from, const Name& name) {
  // (The headers have no fused operations for the host.)
  Checksum add(name("add")), sub(name("sub")), mul(name("mul")), max(name("max")), min(name("min")),
      less(name("less"));
  uint32_t state = 7;
  auto next = [&] {
    return from(static_cast<unsigned short>((state = state * 1664525u + 1013904223u) >> 16));
  };
  for (int i = 0; i < 300000; ++i) {
    const T a = next(), b = next(), c = next();
    add.Add(__hadd(a, b));
    sub.Add(__hsub(a, b));
    mul.Add(__hmul(a, b));
    max.Add(__hmax(a, b));
    min.Add(__hmin(a, b));
    less.Add(static_cast<int>(__hlt(a, b)) + 2 * static_cast<int>(__hge(a, b)));
  }
}

}  // namespace

int main() {
  {
    Checksum rn("float2bfloat16"), h("float2half"), rz("float2bfloat16_rz"), hrz("float2half_rz"),
        bd("double2bfloat16"), hd("double2half");
    ForFloats([&](float x) {
      rn.Add(__float2bfloat16_rn(x));
      h.Add(__float2half_rn(x));
      rz.Add(__float2bfloat16_rz(x));
      hrz.Add(__float2half_rz(x));
      bd.Add(__double2bfloat16(x * 1.0000000001));
      hd.Add(__double2half(x * 1.0000000001));
    });
  }
  {
    Checksum b("bfloat162float"), h("half2float");
    ForBits16([&](unsigned short bits) {
      b.Add(__bfloat162float(__ushort_as_bfloat16(bits)));
      h.Add(__half2float(__ushort_as_half(bits)));
    });
  }
  for (auto kind : {__NV_E4M3, __NV_E5M2}) {
    for (auto saturate : {__NV_SATFINITE, __NV_NOSAT}) {
      Checksum f(kind == __NV_E4M3 ? "float to e4m3" : "float to e5m2"), d("  double"), h("  half"),
          b("  bf16");
      ForFloats([&](float x) {
        f.Add(__nv_cvt_float_to_fp8(x, saturate, kind));
        d.Add(__nv_cvt_double_to_fp8(x * 1.0000000001, saturate, kind));
      });
      ForBits16([&](unsigned short bits) {
        h.Add(__nv_cvt_halfraw_to_fp8(static_cast<__half_raw>(__ushort_as_half(bits)), saturate,
                                      kind));
        b.Add(__nv_cvt_bfloat16raw_to_fp8(
            static_cast<__nv_bfloat16_raw>(__ushort_as_bfloat16(bits)), saturate, kind));
      });
    }
    Checksum back(kind == __NV_E4M3 ? "e4m3 to half" : "e5m2 to half");
    for (int bits = 0; bits < 256; ++bits) {
      back.Add(__nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(bits), kind).x);
    }
  }
  Operations<__half>([](unsigned short bits) { return __ushort_as_half(bits); },
                     [](const char* name) { return name; });
  Operations<__nv_bfloat16>([](unsigned short bits) { return __ushort_as_bfloat16(bits); },
                            [](const char* name) { return name; });
}
