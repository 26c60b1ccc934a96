#include "kernels/sgd/sgd_math.h"
#include "kernels/sgd/update_cpu.h"

namespace lockstep::cpu {
namespace {

void SgdUpdateCpu(Stream, std::span<const SgdTensors> tensors, const SgdHyper& hyper,
                  const StepValues* values) {
  if (values->found_inf != 0) return;
  ForEachChunk(tensors, [&](const SgdTensors& t, int64_t begin, int64_t end) {
    DispatchUpdate("sgd", t, begin, [&](auto tag, auto* value, auto* original, auto* grad) {
      using A = typename decltype(tag)::type;
      const SgdCoefficients<A> c(*values, hyper, t.weight_decay);
      if (hyper.momentum == 0) {
        return UpdateElements<A>(end - begin, value, original, grad,
                                 [=](A& p, A g, int64_t) { SgdElement(c, g, p); });
      }
      A* __restrict momentum = t.momentum.data<A>() + begin;
      UpdateElements<A>(end - begin, value, original, grad, [=](A& p, A g, int64_t i) {
        A m = momentum[i];
        SgdMomentumElement(c, g, p, m);
        momentum[i] = m;
      });
    });
  });
}

LS_REGISTER(sgd_update, DeviceType::kCpu, SgdUpdateCpu);

}  // namespace
}  // namespace lockstep::cpu
