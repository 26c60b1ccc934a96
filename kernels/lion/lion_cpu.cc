#include "kernels/lion/lion_math.h"
#include "kernels/sgd/update_cpu.h"

namespace lockstep::cpu {
namespace {

void LionUpdateCpu(Stream, std::span<const LionTensors> tensors, const LionHyper& hyper,
                   const StepValues* values) {
  if (values->found_inf != 0) return;
  ForEachChunk(tensors, [&](const LionTensors& t, int64_t begin, int64_t end) {
    DispatchUpdate("lion", t, begin, [&](auto tag, auto* value, auto* original, auto* grad) {
      using A = typename decltype(tag)::type;
      const LionCoefficients<A> c(*values, hyper, t.weight_decay);
      A* __restrict exp_avg = t.exp_avg.data<A>() + begin;
      UpdateElements<A>(end - begin, value, original, grad, [=](A& p, A g, int64_t i) {
        A m = exp_avg[i];
        LionElement(c, g, p, m);
        exp_avg[i] = m;
      });
    });
  });
}

LS_REGISTER(lion_update, DeviceType::kCpu, LionUpdateCpu);

}  // namespace
}  // namespace lockstep::cpu
