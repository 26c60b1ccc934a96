// Functions of one tensor, element by element. GELU is in kernels/gelu, which fuses it with linear
// layers; multiplication and division by a number are in kernels/scale, other arithmetic with
// numbers is in kernels/binary.
#pragma once

#include "core/dispatcher.h"
#include "core/tensor.h"

namespace lockstep {

// In the order of kUnaryInfo, and of UnaryFunctions::All (unary_functions.h). a and b are the
// function's numbers.
enum class UnaryOp {
  kRelu,
  kRelu2,
  kTanh,
  kSigmoid,
  kSilu,
  kExp,
  kExpm1,
  kLog,
  kLog1p,
  kSqrt,
  kRsqrt,
  kReciprocal,
  kSquare,
  kAbs,
  kSign,
  kSin,
  kCos,
  kErf,
  kSoftplus,
  kFloor,
  kCeil,
  kRound,
  kClamp,       // into [a, b]
  kPow,         // x^a
  kLeakyRelu,   // the slope is a
  kElu,         // alpha is a
  kSoftcap,     // a tanh(x / a)
  kAddNumber,   // x + a
  kSubNumber,   // x - a
  kSubFrom,     // a - x
  kDivideInto,  // a / x
  kPowOf,       // a^x; b is log(a), or 0 for a = 0
};

// What the derivative is computed from. kNothing: it is the same number everywhere.
enum class UnarySaves { kNothing, kInput, kResult };

struct UnaryInfo {
  const char* name;  // in errors and profiles
  UnarySaves saves;
  double derivative = 0;  // of a function that saves nothing
};

inline constexpr UnaryInfo kUnaryInfo[] = {
    {"relu", UnarySaves::kResult},      {"relu2", UnarySaves::kInput},
    {"tanh", UnarySaves::kInput},       {"sigmoid", UnarySaves::kInput},
    {"silu", UnarySaves::kInput},       {"exp", UnarySaves::kResult},
    {"expm1", UnarySaves::kInput},      {"log", UnarySaves::kInput},
    {"log1p", UnarySaves::kInput},      {"sqrt", UnarySaves::kResult},
    {"rsqrt", UnarySaves::kInput},      {"reciprocal", UnarySaves::kInput},
    {"square", UnarySaves::kInput},     {"abs", UnarySaves::kInput},
    {"sign", UnarySaves::kNothing, 0},  {"sin", UnarySaves::kInput},
    {"cos", UnarySaves::kInput},        {"erf", UnarySaves::kInput},
    {"softplus", UnarySaves::kInput},   {"floor", UnarySaves::kNothing, 0},
    {"ceil", UnarySaves::kNothing, 0},  {"round", UnarySaves::kNothing, 0},
    {"clamp", UnarySaves::kInput},      {"pow", UnarySaves::kInput},
    {"leaky_relu", UnarySaves::kInput}, {"elu", UnarySaves::kInput},
    {"softcap", UnarySaves::kInput},    {"add", UnarySaves::kNothing, 1},
    {"sub", UnarySaves::kNothing, 1},   {"sub", UnarySaves::kNothing, -1},
    {"div", UnarySaves::kInput},        {"pow", UnarySaves::kResult}};
inline constexpr int kNumUnaryOps = static_cast<int>(std::size(kUnaryInfo));

namespace ops {

// All of these take an x of any shape, any strides and a floating dtype, and return a contiguous
// tensor like it. 16-bit floats compute in f32, and the result is rounded once. NaN stays NaN.
// Outside a function's domain the result is NaN, and at a pole an infinity, as in C. Most save x;
// Relu, Exp and Sqrt save their result, and Sign, Floor, Ceil and Round nothing. (A derivative
// computed from the 16-bit result of any other would lose most of its digits.) There are no forms
// that write into x: what is saved for backward must stay as it is.

Tensor Relu(const Tensor& x);     // max(x, 0), with derivative 0 at 0
Tensor Relu2(const Tensor& x);    // max(x, 0)^2: So et al., "Primer" (2021)
Tensor Tanh(const Tensor& x);     // within 4e-7 of the result in f32
Tensor Sigmoid(const Tensor& x);  // 1 / (1 + e^-x)
Tensor Silu(const Tensor& x);     // x / (1 + e^-x), Swish; the gated form is kernels/swiglu_geglu
Tensor Exp(const Tensor& x);      // e^x; on the CPU, 0 where it is below the normal floats
Tensor Expm1(const Tensor& x);    // e^x - 1, exact near 0
Tensor Log(const Tensor& x);      // natural; -infinity at 0
Tensor Log1p(const Tensor& x);    // log(1 + x), exact near 0
Tensor Sqrt(const Tensor& x);     // its derivative at 0 is infinity
Tensor Rsqrt(const Tensor& x);    // 1 / sqrt(x)
Tensor Reciprocal(const Tensor& x);  // 1 / x
Tensor Square(const Tensor& x);      // x^2
Tensor Abs(const Tensor& x);         // with derivative 0 at 0
Tensor Sign(const Tensor& x);        // -1, 0 or 1; its derivative is 0
Tensor Sin(const Tensor& x);         // of radians, as Cos
Tensor Cos(const Tensor& x);
Tensor Erf(const Tensor& x);       // the error function, within 5e-7 in f32
Tensor Softplus(const Tensor& x);  // log(1 + e^x), without overflow
Tensor Floor(const Tensor& x);     // the derivatives of Floor, Ceil and Round are 0
Tensor Ceil(const Tensor& x);
Tensor Round(const Tensor& x);  // to the nearest integer; halves to the even one

// x limited to [low, high]; either may be infinite. The derivative is 1 from low to high, both
// included, and 0 outside. Throws ArgumentError unless low <= high.
Tensor Clamp(const Tensor& x, double low, double high);
// x^exponent, as C's pow: NaN for a negative x unless the exponent is an integer; 1 for exponent 0,
// whose derivative is 0. For the exponents 2, 0.5 and -1 it is Square, Sqrt and Reciprocal. With
// tensors as exponents: kernels/binary.
Tensor Pow(const Tensor& x, double exponent);
// x, or slope x where x <= 0, with derivative `slope` there.
Tensor LeakyRelu(const Tensor& x, double slope = 0.01);
// x, or alpha (e^x - 1) where x <= 0. Clevert et al., "Fast and accurate deep network learning by
// exponential linear units (ELUs)" (ICLR 2016).
Tensor Elu(const Tensor& x, double alpha = 1);
// cap tanh(x / cap): nearly x where that is small, and always within (-cap, cap). Gemma Team,
// "Gemma 2: improving open language models at a practical size" (2024). Throws ArgumentError unless
// cap > 0.
Tensor Softcap(const Tensor& x, double cap);

}  // namespace ops

// What these functions, and those of kernels/binary that take a number, are: `op` of x.
Tensor Unary(UnaryOp op, const Tensor& x, double a = 0, double b = 0);

// x and y are contiguous and have the same dtype. The numbers are rounded to the type of the
// arithmetic: f64 for f64, else f32.
inline constinit Slot<void(UnaryOp op, double a, double b, const Tensor& x, const Tensor& y)>
    unary_forward{"unary_forward"};
// dx = dy f'(x), or dx += that. saved: what kUnaryInfo says; not called where that is nothing.
inline constinit Slot<void(UnaryOp op, double a, double b, const Tensor& saved, const Tensor& dy,
                           const Tensor& dx, bool accumulate)>
    unary_backward{"unary_backward"};

}  // namespace lockstep
