#include <optional>

#include "kernels/cpu/norm.h"
#include "kernels/dropout/dropout_cpu.h"
#include "kernels/residual_norm/residual_norm.h"

namespace lockstep::cpu {
namespace {

// sum = x + branch, with the bias and the dropout between them; for one row.
template <class T>
struct AddBranch {
  using A = Acc<T>;
  int64_t c;
  const T* branch;
  const A* bias;            // or null
  const ElementMask* mask;  // or null
  T* sum;

  const T* operator()(const T* x, int64_t row) const {
    const T* from = branch + row * c;
    T* to = sum + row * c;
    const A* b = bias;
    if (mask != nullptr) {
      const A scale = static_cast<A>(mask->scale());
      mask->ForEach(row * c, c, [=](int64_t i, bool keeps) {
        const A value = b != nullptr ? Convert<A>(from[i]) + b[i] : Convert<A>(from[i]);
        const A kept = value * scale;
        to[i] = Convert<T>(Convert<A>(x[i]) + (keeps ? kept : A(0)));
      });
    } else if (b != nullptr) {
      for (int64_t i = 0; i < c; ++i) {
        to[i] = Convert<T>(Convert<A>(x[i]) + (Convert<A>(from[i]) + b[i]));
      }
    } else {
      for (int64_t i = 0; i < c; ++i) to[i] = Convert<T>(Convert<A>(x[i]) + Convert<A>(from[i]));
    }
    return to;
  }
};

// From a row of dx computes the branch's, and what that adds to the gradient of the branch's bias.
template <class T>
struct HandOnToBranch {
  using A = Acc<T>;
  static constexpr int64_t kSums = 1;
  int64_t c;
  const ElementMask* mask;  // null: the branch's is dx
  T* dbranch;
  GradTarget target;

  void operator()(const T* dx, int64_t row, A* sums) const {
    const T* from = dx;
    if (mask != nullptr) {
      T* to = dbranch + row * c;
      const A scale = static_cast<A>(mask->scale());
      mask->ForEach(row * c, c, [=](int64_t i, bool keeps) {
        const A kept = Convert<A>(dx[i]) * scale;
        to[i] = Convert<T>(keeps ? kept : A(0));
      });
      from = to;
    }
    for (int64_t i = 0; i < c; ++i) sums[i] += Convert<A>(from[i]);
  }
};

void ResidualNormForwardCpu(Stream, const ResidualNormForwardArgs& args) {
  std::optional<ElementMask> mask;
  if (args.values != nullptr) {
    WriteDropoutKey(*args.values, args.site, args.key.data<int64_t>());
    mask.emplace(args.key.data<int64_t>(), args.dropout, args.per_sample, args.part);
  }
  DispatchFloat("residual_norm", args.x.dtype(), [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const auto wide = [](const Tensor& t) { return t.defined() ? t.To(DTypeOf<A>) : t; };
    const auto data = [](const Tensor& t) { return t.defined() ? t.data<A>() : nullptr; };
    const Tensor weight = wide(args.weight), bias = wide(args.bias);
    const Tensor branch_bias = wide(args.branch_bias);
    const NormForwardRows<T> rows{.rows = args.rstd.numel(),
                                  .c = args.x.dim(-1),
                                  .x = args.x.data<T>(),
                                  .w = data(weight),
                                  .b = data(bias),
                                  .eps = static_cast<A>(args.eps),
                                  .y = args.y.data<T>(),
                                  .mean = data(args.mean),
                                  .rstd = data(args.rstd)};
    const AddBranch<T> add{.c = rows.c,
                           .branch = args.branch.data<T>(),
                           .bias = data(branch_bias),
                           .mask = mask ? &*mask : nullptr,
                           .sum = args.sum.data<T>()};
    if (args.kind == NormKind::kLayerNorm) {
      NormForward<Centring::kMean>(rows, add);
    } else {
      NormForward<Centring::kNone>(rows, add);
    }
  });
}

void ResidualNormBackwardCpu(Stream, const ResidualNormBackwardArgs& args) {
  std::optional<ElementMask> mask;
  if (args.key.defined()) {
    mask.emplace(args.key.data<int64_t>(), args.dropout, args.per_sample, args.part);
  }
  DispatchFloat("residual_norm", args.sum.dtype(), [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const bool centred = args.kind == NormKind::kLayerNorm;
    const Tensor weights = args.weight.defined() ? args.weight.To(DTypeOf<A>) : args.weight;
    const NormBackwardRows<T> rows{.rows = args.rstd.numel(),
                                   .c = args.sum.dim(-1),
                                   .x = args.sum.data<T>(),
                                   .dy = args.dy.data<T>(),
                                   .dsum = args.dsum.data<T>(),
                                   .w = weights.defined() ? weights.data<A>() : nullptr,
                                   .mean = centred ? args.mean.data<A>() : nullptr,
                                   .rstd = args.rstd.data<A>(),
                                   .dx = args.dx.defined() ? args.dx.data<T>() : nullptr,
                                   .accumulate = false};
    const auto run = [&](const auto& hand_on) {
      if (centred) {
        NormBackward<Centring::kMean>(rows, args.dweight, args.dbias, hand_on);
      } else {
        NormBackward<Centring::kNone>(rows, args.dweight, args.dbias, hand_on);
      }
    };
    if (!mask && !args.dbranch_bias.tensor.defined()) return run(NoBranchGradient());
    run(HandOnToBranch<T>{.c = rows.c,
                          .mask = mask ? &*mask : nullptr,
                          .dbranch = args.dbranch.data<T>(),
                          .target = args.dbranch_bias});
  });
}

LS_REGISTER(residual_norm_forward, DeviceType::kCpu, ResidualNormForwardCpu);
LS_REGISTER(residual_norm_backward, DeviceType::kCpu, ResidualNormBackwardCpu);

}  // namespace
}  // namespace lockstep::cpu
