#include "core/math.h"

namespace lockstep::math::internal {

// Payne and Hanek, "Radian reduction for trigonometric functions" (1983): of the digits of 2/pi
// only those matter whose products with x are less than 4, and not much less than 1.
Reduced LargeByHalfPi(double x) {
  if (!(std::fabs(x) < kInfinity)) return {0, kNaN};
  static constexpr uint64_t kTwoOverPi[] = {0,
                                            0xa2f9836e4e441529,
                                            0xfc2757d1f534ddc0,
                                            0xdb6295993c439041,
                                            0xfe5163abdebbc561,
                                            0xb7246e3a424dd2e0,
                                            0x06492eea09d1921c,
                                            0xfe1deb1cb129a73e,
                                            0xe88235f52ebb4484,
                                            0xe99c7026b45f7e41,
                                            0x3991d639835339f4,
                                            0x9c845f8bbdf9283b,
                                            0x1ff897ffde05980f,
                                            0xef2f118b5a0a6d1f,
                                            0x6d367ecf27cb09b7,
                                            0x4f463f669e5fea2d,
                                            0x7527bac7ebe5f17b,
                                            0x3d0739f78a5292ea,
                                            0x6bfb5fb11f8d5d08,
                                            0x56033046fc7b6bab};
  // |x| = m 2^exponent; the digit `first` of the table, times that, stands for 2 m.
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  const uint64_t m = (bits & 0x000fffffffffffff) | 0x0010000000000000;
  const int exponent = static_cast<int>(bits >> 52 & 0x7ff) - 1075, first = exponent + 62;
  const auto word = [first](int i) {
    const uint64_t* at = kTwoOverPi + first / 64 + i;
    return at[0] << first % 64 | at[1] >> 1 >> (63 - first % 64);
  };
  using Wide = unsigned __int128;
  const Wide low = Wide{m} * word(1) + (Wide{m} * word(2) >> 64);
  const Wide product = (Wide{m * word(0)} << 64) + low;            // x 2/pi 2^126, modulo 2^128
  const auto fraction = static_cast<__int128>(product << 2) >> 2;  // from -1/2 to 1/2, times 2^126
  const double n = static_cast<double>((static_cast<int>(product >> 125) + 1) / 2);
  const double a = static_cast<double>(fraction);
  const double b = static_cast<double>(fraction - static_cast<__int128>(a)) * 0x1p-126;
  const double quarters = a * 0x1p-126, r = quarters * 0x1.921fb54442d18p+0;
  const double rest = std::fma(quarters, 0x1.921fb54442d18p+0, -r) +
                      quarters * 0x1.1a62633145c07p-54 + b * 0x1.921fb54442d18p+0;
  return x < 0 ? Reduced{-n, -r, -rest} : Reduced{n, r, rest};
}

}  // namespace lockstep::math::internal
