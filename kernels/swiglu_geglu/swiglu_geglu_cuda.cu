#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/packed.cuh"
#include "kernels/swiglu_geglu/swiglu_geglu.h"

namespace lockstep::cuda {
namespace {

// Where the pack that starts at element `begin` of [rows, F] lies in gate_up, [rows, 2F].
struct GatePlace {
  int64_t gate, up;
  __device__ GatePlace(int64_t begin, int64_t f)
      : gate(begin / f * 2 * f + begin % f), up(gate + f) {}
};

struct SiluGate {
  __device__ static float Forward(float x) { return Silu(x); }
  // The derivatives of Forward(x) up by x and by up, times dy.
  __device__ static void Gradient(float x, float up, float dy, float* dgate, float* dup) {
    const float s = Sigmoid(x);
    *dgate = dy * up * (s * (1.0f + x * (1.0f - s)));
    *dup = dy * (x * s);
  }
};
struct GeluTanhGate {
  __device__ static float Forward(float x) { return Gelu(x); }
  __device__ static void Gradient(float x, float up, float dy, float* dgate, float* dup) {
    *dgate = dy * up * GeluDerivative(x);
    *dup = dy * Gelu(x);
  }
};

template <class F>
void DispatchGate(GateForm form, F&& f) {
  if (form == GateForm::kSilu) return f(SiluGate());
  f(GeluTanhGate());
}

// One pack of y per thread, one pass over memory; no shared memory. `packed`: F is a multiple of
// the pack and everything is aligned; else element by element.
template <class Gate, class T>
__global__ void SwiGluForwardKernel(int64_t n, int64_t f, bool packed, const T* gate_up, T* y) {
  constexpr int N = kPackSize<T>;
  const int64_t begin = GlobalThread() * N;
  if (begin >= n) return;
  if (packed) {
    const GatePlace at(begin, f);
    const Packed<T> gate = Load(gate_up + at.gate), up = Load(gate_up + at.up);
    Packed<T> out;
#pragma unroll
    for (int i = 0; i < N; ++i)
      out[i] = Convert<T>(Gate::Forward(ToFloat(gate[i])) * ToFloat(up[i]));
    Store(y + begin, out);
    return;
  }
  for (int64_t i = begin; i < n && i < begin + N; ++i) {
    const GatePlace at(i, f);
    y[i] = Convert<T>(Gate::Forward(ToFloat(gate_up[at.gate])) * ToFloat(gate_up[at.up]));
  }
}

template <class Gate>
struct GateGradient {
  float gate, up;
  __device__ GateGradient(float x, float u, float dy) { Gate::Gradient(x, u, dy, &gate, &up); }
};

// Like SwiGluForwardKernel: one pack of dy per thread, which writes one of each half of dgate_up.
template <bool accumulate, class Gate, class T>
__global__ void SwiGluBackwardKernel(int64_t n, int64_t f, bool packed, const T* gate_up,
                                     const T* dy, T* dgate_up) {
  constexpr int N = kPackSize<T>;
  const int64_t begin = GlobalThread() * N;
  if (begin >= n) return;
  if (packed) {
    const GatePlace at(begin, f);
    const Packed<T> gate = Load(gate_up + at.gate), up = Load(gate_up + at.up),
                    d = Load(dy + begin);
    Packed<T> dgate, dup;
    if constexpr (accumulate) {
      dgate = Load(dgate_up + at.gate);
      dup = Load(dgate_up + at.up);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const GateGradient<Gate> g(ToFloat(gate[i]), ToFloat(up[i]), ToFloat(d[i]));
      dgate[i] = Convert<T>(accumulate ? ToFloat(dgate[i]) + g.gate : g.gate);
      dup[i] = Convert<T>(accumulate ? ToFloat(dup[i]) + g.up : g.up);
    }
    Store(dgate_up + at.gate, dgate);
    Store(dgate_up + at.up, dup);
    return;
  }
  for (int64_t i = begin; i < n && i < begin + N; ++i) {
    const GatePlace at(i, f);
    const GateGradient<Gate> g(ToFloat(gate_up[at.gate]), ToFloat(gate_up[at.up]), ToFloat(dy[i]));
    T &dgate = dgate_up[at.gate], &dup = dgate_up[at.up];
    dgate = Convert<T>(accumulate ? ToFloat(dgate) + g.gate : g.gate);
    dup = Convert<T>(accumulate ? ToFloat(dup) + g.up : g.up);
  }
}

void SwiGluForwardCuda(Stream stream, GateForm form, const Tensor& gate_up, const Tensor& y) {
  DispatchFloat("swiglu", y.dtype(), [&]<class T>(TypeTag<T>) {
    const T* in = Data<T>(gate_up);
    T* out = Data<T>(y);
    const int64_t n = y.numel(), f = y.dim(-1);
    const bool packed = f % kPackSize<T> == 0 && AllAligned16(in, out);
    DispatchGate(form, [&](auto function) {
      LaunchThreads({"swiglu_forward", gate_up}, SwiGluForwardKernel<decltype(function), T>,
                    DivideUp(n, kPackSize<T>), stream, n, f, packed, in, out);
    });
  });
}

void SwiGluBackwardCuda(Stream stream, GateForm form, const Tensor& gate_up, const Tensor& dy,
                        const Tensor& dgate_up, bool accumulate) {
  DispatchFloat("swiglu", dy.dtype(), [&]<class T>(TypeTag<T>) {
    const T *in = Data<T>(gate_up), *grad = Data<T>(dy);
    T* out = Data<T>(dgate_up);
    const int64_t n = dy.numel(), f = dy.dim(-1);
    const bool packed = f % kPackSize<T> == 0 && AllAligned16(in, grad, out);
    DispatchGate(form, [&](auto function) {
      DispatchBool(accumulate, [&](auto flag) {
        constexpr bool kAccumulate = decltype(flag)::value;
        LaunchThreads({"swiglu_backward", gate_up, dy},
                      SwiGluBackwardKernel<kAccumulate, decltype(function), T>,
                      DivideUp(n, kPackSize<T>), stream, n, f, packed, in, grad, out);
      });
    });
  });
}

LS_REGISTER(swiglu_forward, DeviceType::kCuda, SwiGluForwardCuda);
LS_REGISTER(swiglu_backward, DeviceType::kCuda, SwiGluBackwardCuda);

}  // namespace
}  // namespace lockstep::cuda
