#include "kernels/adamw/adamw_math.h"
#include "kernels/cpu/simd.h"
#include "kernels/sgd/update_cpu.h"

namespace lockstep::cpu {
namespace {

void AdamWUpdateCpu(Stream, std::span<const AdamWTensors> tensors, const AdamWHyper& hyper,
                    const StepValues* values) {
  if (values->found_inf != 0) return;
  ForEachChunk(tensors, [&](const AdamWTensors& t, int64_t begin, int64_t end) {
    DispatchUpdate("adamw", t, begin, [&](auto tag, auto* value, auto* original, auto* grad) {
      using A = typename decltype(tag)::type;
      const AdamWCoefficients<A> c(*values, hyper, t.weight_decay);
      A* __restrict exp_avg = t.exp_avg.data<A>() + begin;
      A* __restrict exp_avg_sq = t.exp_avg_sq.data<A>() + begin;
      Vectorised([=] {
        UpdateElements<A>(end - begin, value, original, grad, [=](A& p, A g, int64_t i) {
          A m = exp_avg[i], v = exp_avg_sq[i];
          AdamWElement(c, g, p, m, v);
          exp_avg[i] = m;
          exp_avg_sq[i] = v;
        });
      });
    });
  });
}

LS_REGISTER(adamw_update, DeviceType::kCpu, AdamWUpdateCpu);

}  // namespace
}  // namespace lockstep::cpu
