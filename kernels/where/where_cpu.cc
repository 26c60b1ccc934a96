#include "kernels/cpu/strided.h"
#include "kernels/where/where.h"

namespace lockstep::cpu {
namespace {

// T: an unsigned integer of the elements' size.
template <class T>
void Choose(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& y) {
  const StridedDims<4> dims(y.shape(),
                            {condition.strides(), a.strides(), b.strides(), y.strides()});
  const bool* conditions = condition.data<bool>();
  const T* left = Units<const T>(a);
  const T* right = Units<const T>(b);
  T* out = Units<T>(y);
  ForEachRun(y.numel(), dims, [=](const auto& at, int64_t n, const auto& steps) {
    const bool* c = conditions + at[0];
    const T* p = left + at[1];
    const T* q = right + at[2];
    T* to = out + at[3];
    const auto row = [=](auto step_condition, auto step_a, auto step_b) {
#pragma GCC ivdep  // results never overlap operands
      for (int64_t i = 0; i < n; ++i) {
        const T taken = p[i * step_a], other = q[i * step_b];
        to[i] = c[i * step_condition] ? taken : other;
      }
    };
    if (steps[0] == 1) {
      DispatchSteps<T>(steps[1], steps[2], [=](auto a, auto b) { row(One(), a, b); });
    } else {
      row(steps[0], steps[1], steps[2]);
    }
  });
}

void WhereCpu(Stream, const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& y) {
  if (y.numel() == 0) return;
  DispatchUnit(SizeOf(y.dtype()), [&]<class T>(TypeTag<T>) { Choose<T>(condition, a, b, y); });
}

LS_REGISTER(where_slot, DeviceType::kCpu, WhereCpu);

}  // namespace
}  // namespace lockstep::cpu
