#include "kernels/cuda/norm.cuh"
#include "kernels/dropout/dropout_mask.cuh"
#include "kernels/residual_norm/residual_norm.h"

namespace lockstep::cuda {
namespace {

// ---- Forward: sum = x + branch, with the bias and the dropout between them. ----

template <class T>
struct AddWholeBranch {
  static constexpr bool kSum = true;
  static constexpr int kBlocks = sizeof(T) == 4 ? 8 : 0;

  const T* branch;
  T* sum;

  __device__ const AddWholeBranch& Bind() const { return *this; }
  template <bool kAligned, int N>
  __device__ Packed<T, N> Add(Packed<T, N> x, int64_t row, int64_t at, int64_t c) const {
    const Packed<T, N> b = LoadRow<kAligned, N>(branch + row * c, at, c);
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = Convert<T>(ToFloat(x[i]) + ToFloat(b[i]));
    StoreRow<kAligned>(sum + row * c, at, c, x);
    return x;
  }
};

template <bool kDropout, class T, class B>
struct AddOpenBranch {
  static constexpr bool kSum = true;
  static constexpr int kBlocks = sizeof(T) == 4 ? 6 : kDropout ? 5 : sizeof(B) == 4 ? 6 : 0;

  const T* branch;
  const B* bias;  // null: none
  T* sum;
  DropoutSetting setting;
  const StepValues* values;
  uint64_t site;
  int64_t* key;  // written

  struct Bound {
    const AddOpenBranch& in;
    ElementMask mask;

    template <bool kAligned, int N>
    __device__ Packed<T, N> Add(Packed<T, N> x, int64_t row, int64_t at, int64_t c) const {
      const Packed<T, N> b = LoadRow<kAligned, N>(in.branch + row * c, at, c);
      float added[N];
#pragma unroll
      for (int i = 0; i < N; ++i) added[i] = ToFloat(b[i]);
      if (in.bias != nullptr) {
        const Packed<B, N> bias = LoadRow<kAligned, N>(in.bias, at, c);
#pragma unroll
        for (int i = 0; i < N; ++i) added[i] += ToFloat(bias[i]);
      }
      if constexpr (kDropout) ApplyMask<kAligned>(mask, row * c + at, added);
#pragma unroll
      for (int i = 0; i < N; ++i) x[i] = Convert<T>(ToFloat(x[i]) + added[i]);
      StoreRow<kAligned>(in.sum + row * c, at, c, x);
      return x;
    }
  };
  __device__ Bound Bind() const {
    if constexpr (kDropout) {
      return {*this, DrawMask(setting, values, site, GlobalThread() == 0, key)};
    } else {
      return {*this, {}};
    }
  }
};

// Calls f with the function that adds the branch: one without registers for what is absent.
template <class T, class B, class F>
void DispatchAdd(const ResidualNormForwardArgs& args, const Tensor& bias, F&& f) {
  const T* branch = Data<T>(args.branch);
  T* sum = Data<T>(args.sum);
  if (args.values == nullptr && !bias.defined()) return f(AddWholeBranch<T>{branch, sum});
  DispatchBool(args.values != nullptr, [&](auto dropout) {
    f(AddOpenBranch<decltype(dropout)::value, T, B>{
        branch, DataOrNull<B>(bias), sum,
        MakeDropoutSetting(args.dropout, args.per_sample, args.part), args.values, args.site,
        DataOrNull<int64_t>(args.key)});
  });
}

void ResidualNormForwardCuda(Stream stream, const ResidualNormForwardArgs& args) {
  DispatchRmsNorm(
      "residual_norm", args.x, args.weight, [&]<class T, class W>(TypeTag<T>, TypeTag<W>) {
        using B = std::conditional_t<kHasWeight<W>, W, float>;
        const auto as_bias = [&](const Tensor& t) { return t.defined() ? t.To(kDTypeOf<B>) : t; };
        const Tensor bias = as_bias(args.bias), branch_bias = as_bias(args.branch_bias);
        NormForwardRows<T, W> rows{};
        rows.rows = args.rstd.numel();
        rows.c = args.x.dim(-1);
        rows.x = Data<T>(args.x);
        rows.weight = WeightData<W>(args.weight);
        if constexpr (kHasWeight<W>) rows.bias = DataOrNull<W>(bias);
        rows.eps = static_cast<float>(args.eps);
        rows.y = Data<T>(args.y);
        rows.mean = DataOrNull<float>(args.mean);
        rows.rstd = Data<float>(args.rstd);
        const LaunchName name("residual_norm_forward", args.x, args.weight);
        const bool aligned =
            AllAligned16(Data<T>(args.branch), Data<T>(args.sum), DataOrNull<B>(branch_bias));
        DispatchAdd<T, B>(args, branch_bias, [&](const auto& add) {
          if constexpr (kHasWeight<W>) {
            if (args.kind == NormKind::kLayerNorm) {
              return NormForward<Centring::kMean>(name, stream, rows, add, aligned);
            }
          }
          NormForward<Centring::kNone>(name, stream, rows, add, aligned);
        });
      });
}

// ---- Backward: the gradients of the branch and its bias, from dx. ----

template <bool kDropout, class T>
struct HandOnToBranch {
  static constexpr int kSums = 1;
  // Blocks of three warps that need more than 96 registers get 128 only if there are five of them.
  static constexpr int kRegisters = sizeof(T) == 4 ? (kDropout ? 116 : 104) : 104;

  T* dbranch;  // with dropout, written
  DropoutSetting setting;
  const int64_t* key;

  struct Bound {
    const HandOnToBranch& in;
    ElementMask mask;

    template <bool kAligned, int N>
    __device__ void HandOn(const Packed<T, N>& dx, int64_t row, int64_t at, int64_t c,
                           float (*sums)[N]) const {
      Packed<T, N> out = dx;
      if constexpr (kDropout) {
        float kept[N];
#pragma unroll
        for (int i = 0; i < N; ++i) kept[i] = ToFloat(dx[i]);
        ApplyMask<kAligned>(mask, row * c + at, kept);
#pragma unroll
        for (int i = 0; i < N; ++i) out[i] = Convert<T>(kept[i]);
        StoreRow<kAligned>(in.dbranch + row * c, at, c, out);
      }
#pragma unroll
      for (int i = 0; i < N; ++i) sums[0][i] += ToFloat(out[i]);
    }
  };
  __device__ Bound Bind() const {
    if constexpr (kDropout) {
      return {*this, RedrawMask(setting, key)};
    } else {
      return {*this, {}};
    }
  }
};

template <class T, class F>
void DispatchHandOn(const ResidualNormBackwardArgs& args, F&& f) {
  const bool sum_bias = args.dbranch_bias.tensor.defined();
  if (!args.key.defined() && !sum_bias) return f(NoBranchGradient<T>());
  DispatchBool(args.key.defined(), [&](auto dropout) {
    f(HandOnToBranch<decltype(dropout)::value, T>{
        Data<T>(args.dbranch), MakeDropoutSetting(args.dropout, args.per_sample, args.part),
        DataOrNull<int64_t>(args.key)});
  });
}

void ResidualNormBackwardCuda(Stream stream, const ResidualNormBackwardArgs& args) {
  DispatchRmsNorm(
      "residual_norm", args.sum, args.weight, [&]<class T, class W>(TypeTag<T>, TypeTag<W>) {
        NormBackwardRows<T, W> rows{};
        rows.rows = args.rstd.numel();
        rows.c = args.sum.dim(-1);
        rows.x = Data<T>(args.sum);
        rows.dy = Data<T>(args.dy);
        rows.added = Data<T>(args.dsum);
        rows.weight = WeightData<W>(args.weight);
        rows.mean = DataOrNull<float>(args.mean);
        rows.rstd = Data<float>(args.rstd);
        rows.dx = DataOrNull<T>(args.dx);
        const NormParameterGradients gradients{args.dweight, args.dbias, args.dbranch_bias};
        const LaunchName name("residual_norm_backward", args.sum, args.weight);
        const Device device = args.sum.device();
        const bool aligned = AllAligned16(DataOrNull<T>(args.dbranch));
        DispatchHandOn<T>(args, [&](const auto& hand_on) {
          if constexpr (kHasWeight<W>) {
            if (args.kind == NormKind::kLayerNorm) {
              return NormBackward<Centring::kMean>(name, stream, rows, device, gradients, hand_on,
                                                   aligned);
            }
          }
          NormBackward<Centring::kNone>(name, stream, rows, device, gradients, hand_on, aligned);
        });
      });
}

LS_REGISTER(residual_norm_forward, DeviceType::kCuda, ResidualNormForwardCuda);
LS_REGISTER(residual_norm_backward, DeviceType::kCuda, ResidualNormBackwardCuda);

}  // namespace
}  // namespace lockstep::cuda
