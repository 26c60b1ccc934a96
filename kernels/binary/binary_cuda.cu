#include "kernels/binary/binary.h"
#include "kernels/cuda/any_dtype.cuh"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/integers.h"
#include "kernels/strided.h"

namespace lockstep::cuda {
namespace {

template <BinaryOp op>
struct Function {
  __device__ float operator()(float a, float b) const {
    if constexpr (op == BinaryOp::kAdd) return a + b;
    if constexpr (op == BinaryOp::kSub) return a - b;
    if constexpr (op == BinaryOp::kMul) return a * b;
    if constexpr (op == BinaryOp::kDiv) return a / b;
    // NaN if either is.
    if constexpr (op == BinaryOp::kMaximum) return a > b || a != a ? a : b;
    if constexpr (op == BinaryOp::kMinimum) return a < b || a != a ? a : b;
    if constexpr (op == BinaryOp::kPow) return powf(a, b);
  }
};

// The share of dy for an operand that was taken, was not, or equals the other.
__device__ inline float Share(bool taken, bool equal, float dy) {
  return equal ? 0.5f * dy : taken ? dy : 0.0f;
}

__device__ inline float PowGradientOfBase(float a, float b, float dy) {
  return b == 0.0f ? 0.0f : dy * (b * powf(a, b - 1.0f));
}
__device__ inline float PowGradientOfExponent(float a, float b, float dy) {
  return a == 0.0f ? 0.0f : dy * (powf(a, b) * logf(a));
}

// What dy contributes to the gradient of operand `which`, where that is not dy itself.
template <BinaryOp op, int which>
struct Gradient {
  __device__ float operator()(float a, float b, float dy) const {
    if constexpr (op == BinaryOp::kSub) return -dy;
    if constexpr (op == BinaryOp::kMul) return dy * b;
    if constexpr (op == BinaryOp::kDiv) return which == 0 ? dy / b : -dy * (a / b) / b;
    if constexpr (op == BinaryOp::kMaximum) return Share(a > b, a == b, dy);
    if constexpr (op == BinaryOp::kMinimum) return Share(a < b, a == b, dy);
    if constexpr (op == BinaryOp::kPow) {
      return which == 0 ? PowGradientOfBase(a, b, dy) : PowGradientOfExponent(a, b, dy);
    }
  }
};

template <class F>
void DispatchForward(BinaryOp op, const F& f) {
  switch (op) {
    case BinaryOp::kAdd:
      return f(Function<BinaryOp::kAdd>());
    case BinaryOp::kSub:
      return f(Function<BinaryOp::kSub>());
    case BinaryOp::kMul:
      return f(Function<BinaryOp::kMul>());
    case BinaryOp::kDiv:
      return f(Function<BinaryOp::kDiv>());
    case BinaryOp::kMaximum:
      return f(Function<BinaryOp::kMaximum>());
    case BinaryOp::kMinimum:
      return f(Function<BinaryOp::kMinimum>());
    case BinaryOp::kPow:
      return f(Function<BinaryOp::kPow>());
  }
}

template <class F>
void DispatchGradient(BinaryOp op, int which, const F& f) {
  switch (op) {
    case BinaryOp::kAdd:
      break;
    case BinaryOp::kSub:
      if (which == 0) break;
      return f(Gradient<BinaryOp::kSub, 1>());
    case BinaryOp::kMul:
      return f(Gradient<BinaryOp::kMul, 0>());
    case BinaryOp::kDiv:
      return which == 0 ? f(Gradient<BinaryOp::kDiv, 0>()) : f(Gradient<BinaryOp::kDiv, 1>());
    case BinaryOp::kMaximum:
      return f(Gradient<BinaryOp::kMaximum, 0>());
    case BinaryOp::kMinimum:
      return f(Gradient<BinaryOp::kMinimum, 0>());
    case BinaryOp::kPow:
      return which == 0 ? f(Gradient<BinaryOp::kPow, 0>()) : f(Gradient<BinaryOp::kPow, 1>());
  }
  LS_INVARIANT(false, "dy itself needs no kernel");
}

// N elements of p at steps of `step`: one access where they lie side by side and aligned.
template <int N, class T>
__device__ inline Packed<T, N> LoadStrided(const T* p, int64_t step) {
  if (step == 1 && reinterpret_cast<uintptr_t>(p) % 16 == 0) return Load<T, N>(p);
  Packed<T, N> x;
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = p[i * step];
  return x;
}

// Broadcast operands: y is contiguous, a and b are not. One pack of y per thread; where the
// innermost run of equal steps is a multiple of the pack, it is read by 16-byte accesses, or by one
// element that is repeated. No shared memory.
template <class F, class T>
__global__ void BinaryStridedKernel(int64_t n, bool packed, StridedDims<2> dims, F f, const T* a,
                                    const T* b, T* y) {
  constexpr int N = kPackSize<T>;
  const int64_t begin = GlobalThread() * N;
  if (begin >= n) return;
  const int count = CountWithin<N>(begin, n);
  Packed<T> left, right;
  int64_t at[2];
  if (packed && dims.inner_size() % N == 0) {
    dims.Offsets(begin, at);
    left = LoadStrided<N>(a + at[0], dims.inner_step(0));
    right = LoadStrided<N>(b + at[1], dims.inner_step(1));
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      dims.Offsets(begin + (i < count ? i : 0), at);
      left[i] = a[at[0]];
      right[i] = b[at[1]];
    }
  }
  Packed<T> out;
#pragma unroll
  for (int i = 0; i < N; ++i) out[i] = Convert<T>(f(ToFloat(left[i]), ToFloat(right[i])));
  if (packed && count == N) {
    Store(y + begin, out);
  } else {
    StoreSome(y + begin, out, count);
  }
}

void BinaryForwardCuda(Stream stream, BinaryOp op, const Tensor& a, const Tensor& b,
                       const Tensor& y) {
  DispatchFloat("binary", y.dtype(), [&]<class T>(TypeTag<T>) {
    DispatchForward(op, [&](auto function) {
      const T *left = Data<T>(a), *right = Data<T>(b);
      T* out = Data<T>(y);
      const int64_t n = y.numel();
      if (a.is_contiguous() && b.is_contiguous()) {
        Elementwise({"binary_forward", a, b}, stream, n, std::false_type(), function, out, left,
                    right);
        return;
      }
      // y is the row-major walk itself.
      LaunchThreads({"binary_forward", a, b}, BinaryStridedKernel<decltype(function), T>,
                    DivideUp(n, kPackSize<T>), stream, n, IsAligned16(out),
                    StridedDims<2>(y.shape(), {a.strides(), b.strides()}), function, left, right,
                    out);
    });
  });
}

// Grid and walk as in BinaryStridedKernel, element by element: gradients of broadcast operands are
// rare, and summed afterwards anyway.
template <bool accumulate, class F, class T, class To>
__global__ void BinaryGradientStridedKernel(int64_t n, StridedDims<2> dims, F f, const T* a,
                                            const T* b, const T* dy, To* dx) {
  const int64_t i = GlobalThread();
  if (i >= n) return;
  int64_t at[2];
  dims.Offsets(i, at);
  const float d = f(ToFloat(a[at[0]]), ToFloat(b[at[1]]), ToFloat(dy[i]));
  dx[i] = Convert<To>(accumulate ? ToFloat(dx[i]) + d : d);
}

// accumulate: a bool or std::false_type(), as in Elementwise.
template <class Accumulate, class F, class T, class To>
void BinaryGradient(Stream stream, const F& function, const Tensor& a, const Tensor& b,
                    const Tensor& dy, const T* grad, To* dx, Accumulate accumulate) {
  const T *left = Data<T>(a), *right = Data<T>(b);
  const LaunchName name{"binary_backward", a, b, dy};
  const int64_t n = dy.numel();
  if (a.is_contiguous() && b.is_contiguous()) {
    Elementwise(name, stream, n, accumulate, function, dx, left, right, grad);
    return;
  }
  const StridedDims<2> dims(dy.shape(), {a.strides(), b.strides()});
  DispatchBool(accumulate, [&](auto flag) {
    constexpr bool kAccumulate = decltype(flag)::value;
    LaunchThreads(name, BinaryGradientStridedKernel<kAccumulate, F, T, To>, n, stream, n, dims,
                  function, left, right, grad, dx);
  });
}

// The undefined operands of a formula are read as dy: memory that exists, and is not used.
void BinaryBackwardCuda(Stream stream, BinaryOp op, int which, const Tensor& a, const Tensor& b,
                        const Tensor& dy, const Tensor& dx, bool accumulate) {
  const Tensor &left = a.defined() ? a : dy, &right = b.defined() ? b : dy;
  DispatchFloat("binary", dy.dtype(), [&]<class T>(TypeTag<T>) {
    const T* grad = Data<T>(dy);
    DispatchGradient(op, which, [&](auto function) {
      if (dx.dtype() == dy.dtype()) {
        BinaryGradient(stream, function, left, right, dy, grad, Data<T>(dx), accumulate);
      } else {
        LS_INVARIANT(!accumulate);
        BinaryGradient(stream, function, left, right, dy, grad, Data<float>(dx), std::false_type());
      }
    });
  });
}

// One element per thread, consecutive threads along y; no shared memory. Operation and dtype are
// arguments: one kernel, which the memory's speed hides.
template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    IntegerArithmeticKernel(int64_t n, StridedDims<2> dims, IntegerOp op, DType dtype,
                            const void* a, const void* b, void* y) {
  const int64_t i = GlobalThread();
  if (i >= n) return;
  int64_t at[2];
  dims.Offsets(i, at);
  const auto p = ReadAs<int64_t>(dtype, a, at[0]), q = ReadAs<int64_t>(dtype, b, at[1]);
  // Unsigned arithmetic wraps around.
  const auto left = static_cast<uint64_t>(p), right = static_cast<uint64_t>(q);
  int64_t result = 0;
  switch (op) {
    case IntegerOp::kAdd:
      result = static_cast<int64_t>(left + right);
      break;
    case IntegerOp::kSub:
      result = static_cast<int64_t>(left - right);
      break;
    case IntegerOp::kMul:
      result = static_cast<int64_t>(left * right);
      break;
    case IntegerOp::kMaximum:
      result = p > q ? p : q;
      break;
    case IntegerOp::kMinimum:
      result = p < q ? p : q;
      break;
  }
  WriteAs(dtype, y, i, result);
}

void IntegerArithmeticCuda(Stream stream, IntegerOp op, const Tensor& a, const Tensor& b,
                           const Tensor& y) {
  const int64_t n = y.numel();
  LaunchThreads({"integer_arithmetic", a, b}, IntegerArithmeticKernel<kElementwiseThreads>, n,
                stream, n, StridedDims<2>(y.shape(), {a.strides(), b.strides()}), op, y.dtype(),
                a.raw_data(), b.raw_data(), y.raw_data());
}

LS_REGISTER(integer_arithmetic, DeviceType::kCuda, IntegerArithmeticCuda);
LS_REGISTER(binary_forward, DeviceType::kCuda, BinaryForwardCuda);
LS_REGISTER(binary_backward, DeviceType::kCuda, BinaryBackwardCuda);

}  // namespace
}  // namespace lockstep::cuda
