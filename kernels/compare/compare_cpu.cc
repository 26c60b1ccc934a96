#include <type_traits>

#include "kernels/compare/compare.h"
#include "kernels/cpu/strided.h"

namespace lockstep::cpu {
namespace {

template <class F>
void DispatchCompare(CompareOp op, F&& f) {
  switch (op) {
    case CompareOp::kEqual:
      return f([](auto a, auto b) { return a == b; });
    case CompareOp::kNotEqual:
      return f([](auto a, auto b) { return a != b; });
    case CompareOp::kLess:
      return f([](auto a, auto b) { return a < b; });
    case CompareOp::kLessEqual:
      return f([](auto a, auto b) { return a <= b; });
    case CompareOp::kAnd:
      return f([](auto a, auto b) { return a && b; });
    case CompareOp::kOr:
      return f([](auto a, auto b) { return a || b; });
    case CompareOp::kFinite:
      return f([](auto a, auto) { return a - a == 0; });
  }
}

// How elements of T are compared: narrow floats as f32, everything else as it is.
template <class T>
using Compared = std::conditional_t<kIsNarrow<T>, float, T>;

void CompareCpu(Stream, CompareOp op, const Tensor& a, const Tensor& b, const Tensor& y) {
  if (y.numel() == 0) return;
  const StridedDims<3> dims(y.shape(), {a.strides(), b.strides(), y.strides()});
  DispatchAll("compare", a.dtype(), [&]<class T>(TypeTag<T>) {
    using C = Compared<T>;
    const T* left = a.data<T>();
    const T* right = b.data<T>();
    bool* out = y.data<bool>();
    DispatchCompare(op, [&](auto holds) {
      ForEachRun(y.numel(), dims, [=](const auto& at, int64_t n, const auto& steps) {
        const T* p = left + at[0];
        const T* q = right + at[1];
        bool* to = out + at[2];
        DispatchSteps<T>(steps[0], steps[1], [=](auto step_a, auto step_b) {
#pragma GCC ivdep  // results never overlap operands
          for (int64_t i = 0; i < n; ++i) {
            to[i] = holds(Convert<C>(p[i * step_a]), Convert<C>(q[i * step_b]));
          }
        });
      });
    });
  });
}

LS_REGISTER(compare_slot, DeviceType::kCpu, CompareCpu);

}  // namespace
}  // namespace lockstep::cpu
