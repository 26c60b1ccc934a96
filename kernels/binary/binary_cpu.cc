#include <algorithm>

#include "kernels/binary/binary.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/strided.h"
#include "kernels/integers.h"

namespace lockstep::cpu {
namespace {

template <class F>
void DispatchForward(BinaryOp op, F&& f) {
  switch (op) {
    case BinaryOp::kAdd:
      return f([](auto a, auto b) { return a + b; });
    case BinaryOp::kSub:
      return f([](auto a, auto b) { return a - b; });
    case BinaryOp::kMul:
      return f([](auto a, auto b) { return a * b; });
    case BinaryOp::kDiv:
      return f([](auto a, auto b) { return a / b; });
    case BinaryOp::kMaximum:  // NaN if either is
      return f([](auto a, auto b) { return a > b || a != a ? a : b; });
    case BinaryOp::kMinimum:
      return f([](auto a, auto b) { return a < b || a != a ? a : b; });
    case BinaryOp::kPow:
      return f([](auto a, auto b) { return Pow(a, b); });
  }
}

// The share of dy for an operand that was taken, was not, or equals the other.
template <class A>
A Share(bool taken, bool equal, A dy) {
  return equal ? A(0.5) * dy : taken ? dy : A(0);
}

template <class A>
A PowGradientOfBase(A a, A b, A dy) {
  return b == A(0) ? A(0) : dy * (b * Pow(a, b - A(1)));
}
template <class A>
A PowGradientOfExponent(A a, A b, A dy) {
  return a == A(0) ? A(0) : dy * (Pow(a, b) * Log(a));
}

// The gradients that are not dy itself.
template <class F>
void DispatchGradient(BinaryOp op, int which, F&& f) {
  switch (op) {
    case BinaryOp::kAdd:
      break;
    case BinaryOp::kSub:
      if (which == 0) break;
      return f([](auto, auto, auto dy) { return -dy; });
    case BinaryOp::kMul:
      return f([](auto, auto b, auto dy) { return dy * b; });
    case BinaryOp::kDiv:
      return which == 0 ? f([](auto, auto b, auto dy) { return dy / b; })
                        : f([](auto a, auto b, auto dy) { return -dy * (a / b) / b; });
    case BinaryOp::kMaximum:
      return f([](auto a, auto b, auto dy) { return Share(a > b, a == b, dy); });
    case BinaryOp::kMinimum:
      return f([](auto a, auto b, auto dy) { return Share(a < b, a == b, dy); });
    case BinaryOp::kPow:
      return which == 0
                 ? f([](auto a, auto b, auto dy) { return PowGradientOfBase(a, b, dy); })
                 : f([](auto a, auto b, auto dy) { return PowGradientOfExponent(a, b, dy); });
  }
  LS_INVARIANT(false, "dy itself needs no kernel");
}

void BinaryForwardCpu(Stream, BinaryOp op, const Tensor& a, const Tensor& b, const Tensor& y) {
  if (y.numel() == 0) return;
  const StridedDims<3> dims(y.shape(), {a.strides(), b.strides(), y.strides()});
  DispatchFloat("binary", y.dtype(), [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    DispatchForward(op, [&](auto function) {
      const T* left = a.data<T>();
      const T* right = b.data<T>();
      T* out = y.data<T>();
      ForEachRun(y.numel(), dims, [=](const auto& at, int64_t n, const auto& steps) {
        const T* p = left + at[0];
        const T* q = right + at[1];
        T* to = out + at[2];
        DispatchSteps<T>(steps[0], steps[1], [=](auto step_a, auto step_b) {
#pragma GCC ivdep  // results never overlap operands
          for (int64_t i = 0; i < n; ++i) {
            to[i] = Convert<T>(function(Convert<A>(p[i * step_a]), Convert<A>(q[i * step_b])));
          }
        });
      });
    });
  });
}

// The undefined operands of a formula are read as dy: memory that exists, and is not used.
void BinaryBackwardCpu(Stream, BinaryOp op, int which, const Tensor& a, const Tensor& b,
                       const Tensor& dy, const Tensor& dx, bool accumulate) {
  if (dy.numel() == 0) return;
  const Tensor& left_tensor = a.defined() ? a : dy;
  const Tensor& right_tensor = b.defined() ? b : dy;
  const StridedDims<3> dims(dy.shape(),
                            {left_tensor.strides(), right_tensor.strides(), dy.strides()});
  DispatchFloat("binary", dy.dtype(), [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const auto run = [&](auto function, auto* out) {
      using To = std::remove_pointer_t<decltype(out)>;
      const T* left = left_tensor.data<T>();
      const T* right = right_tensor.data<T>();
      const T* grad = dy.data<T>();
      ForEachRun(dy.numel(), dims, [=](const auto& at, int64_t n, const auto& steps) {
        const T* p = left + at[0];
        const T* q = right + at[1];
        const T* g = grad + at[2];
        To* to = out + at[2];
        const auto row = [=](auto step_a, auto step_b) {
#pragma GCC ivdep  // results never overlap operands
          for (int64_t i = 0; i < n; ++i) {
            const A d =
                function(Convert<A>(p[i * step_a]), Convert<A>(q[i * step_b]), Convert<A>(g[i]));
            to[i] = Convert<To>(accumulate ? Convert<A>(to[i]) + d : d);
          }
        };
        if constexpr (kIsFast<T>) {
          if (steps[0] == 1 && steps[1] == 1) return row(One(), One());
        }
        row(steps[0], steps[1]);
      });
    };
    DispatchGradient(op, which, [&](auto function) {
      if (dx.dtype() == dy.dtype()) {
        run(function, dx.data<T>());
      } else {
        run(function, dx.data<A>());
      }
    });
  });
}

// T: i64, i32, u16 or u8. In unsigned arithmetic, which wraps around.
template <class T, class F>
void OfIntegers(const Tensor& a, const Tensor& b, const Tensor& y, const F& f) {
  const StridedDims<3> dims(y.shape(), {a.strides(), b.strides(), y.strides()});
  const T *left = a.data<T>(), *right = b.data<T>();
  T* out = y.data<T>();
  ForEachRun(y.numel(), dims, [=](const auto& at, int64_t n, const auto& steps) {
    for (int64_t i = 0; i < n; ++i) {
      out[at[2] + i * steps[2]] =
          static_cast<T>(f(left[at[0] + i * steps[0]], right[at[1] + i * steps[1]]));
    }
  });
}

template <class T>
void OfIntegers(IntegerOp op, const Tensor& a, const Tensor& b, const Tensor& y) {
  switch (op) {
    case IntegerOp::kAdd:
      return OfIntegers<T>(a, b, y, [](uint64_t p, uint64_t q) { return p + q; });
    case IntegerOp::kSub:
      return OfIntegers<T>(a, b, y, [](uint64_t p, uint64_t q) { return p - q; });
    case IntegerOp::kMul:
      return OfIntegers<T>(a, b, y, [](uint64_t p, uint64_t q) { return p * q; });
    case IntegerOp::kMaximum:
      return OfIntegers<T>(a, b, y, [](T p, T q) { return std::max(p, q); });
    case IntegerOp::kMinimum:
      return OfIntegers<T>(a, b, y, [](T p, T q) { return std::min(p, q); });
  }
}

void IntegerArithmeticCpu(Stream, IntegerOp op, const Tensor& a, const Tensor& b, const Tensor& y) {
  if (y.numel() == 0) return;
  DispatchInteger(y.dtype(), [&]<class T>(TypeTag<T>) { OfIntegers<T>(op, a, b, y); });
}

LS_REGISTER(integer_arithmetic, DeviceType::kCpu, IntegerArithmeticCpu);
LS_REGISTER(binary_forward, DeviceType::kCpu, BinaryForwardCpu);
LS_REGISTER(binary_backward, DeviceType::kCpu, BinaryBackwardCpu);

}  // namespace
}  // namespace lockstep::cpu
