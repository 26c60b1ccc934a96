// Modules that compute again in backward what they do not keep for it.
#pragma once

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/autograd/recomputable_ops.h"
#include "core/autograd/recompute.h"
#include "core/module.h"
#include "nn/documents.h"
#include "nn/stream/residual_stream.h"
#include "nn/tokens.h"

namespace lockstep::nn {

struct RecomputeOptions {
  // Only the results of these operations are computed again, each from what the operation keeps for
  // its own backward: gelu (where it is no part of a product; on the CPU in f32 also there),
  // swiglu, geglu_tanh, layer_norm, rms_norm, and those of kernels/unary that save their input,
  // such as relu2 and silu. Other names are an ArgumentError, but one whose operation the module
  // does not run has no effect. Empty: everything.
  std::vector<std::string> ops = {};
  // The second forward ends where backward has all that it needs, which in a transformer's block
  // spares a third of its products. It is left by an exception: only for modules that contain no
  // catch (...) and no noexcept function around others.
  bool stops_early = false;
};

template <class Signature>
class Recomputed;

// Recompute makes it.
template <class Out, class... In>
class Recomputed<Out(In...)> : public ModuleOf<Out(In...)> {
 public:
  using Base = ModuleOf<Out(In...)>;
  Recomputed(std::shared_ptr<Base> base, RecomputeOptions options)
      : options_(std::move(options)), base_(this, "", std::move(base)) {
    CheckRecomputable(options_.ops);
  }

 protected:
  Out Forward(In... in) override {
    if (!GradEnabled()) return base_(std::forward<In>(in)...);
    if (!options_.ops.empty()) {
      const RecomputeScope scope(options_.ops);
      return base_(std::forward<In>(in)...);
    }
    std::tuple<std::decay_t<In>...> arguments(in...);
    std::vector<Tensor> inputs;
    ForEachArgument(arguments, [&](Tensor& t) { inputs.push_back(std::exchange(t, Tensor())); });
    RecomputeScope scope(
        &*base_, inputs,
        [base = base_.module(), callee = &*base_, arguments, documents = CurrentDocuments(),
         tokens = CurrentTokens()](std::vector<Tensor> same_inputs) mutable {
          const DocumentScope scope(documents);
          const TokenScope token_scope(tokens);
          Again(*callee, arguments, std::move(same_inputs));
        },
        options_.stops_early);
    inputs.clear();
    Out out = base_(std::forward<In>(in)...);
    ForEachTensor(out, [&](const Tensor& t) { scope.AddOutput(t); });
    return out;
  }

 private:
  // Calls f(Tensor&) for the tensors in arguments that are ours to change.
  template <class F>
  static void ForEachArgument(std::tuple<std::decay_t<In>...>& arguments, const F& f) {
    const auto change = [&](const Tensor& t) { f(const_cast<Tensor&>(t)); };
    std::apply([&](auto&... argument) { (nn::ForEachInput(argument, change), ...); }, arguments);
  }

  static void Again(Base& base, std::tuple<std::decay_t<In>...> arguments,
                    std::vector<Tensor> inputs) {
    size_t next = 0;
    ForEachArgument(arguments, [&](Tensor& t) { t = std::move(inputs[next++]); });
    std::apply([&](auto&... argument) { base(std::forward<In>(argument)...); }, arguments);
  }

  RecomputeOptions options_;
  Child<Base> base_;
};

namespace internal {
template <class Out, class... In>
std::shared_ptr<ModuleOf<Out(In...)>> MakeRecomputed(std::shared_ptr<void> owner,
                                                     ModuleOf<Out(In...)>* module,
                                                     RecomputeOptions options) {
  return std::make_shared<Recomputed<Out(In...)>>(
      std::shared_ptr<ModuleOf<Out(In...)>>(std::move(owner), module), std::move(options));
}
}  // namespace internal

// The module, except that its forward keeps only its inputs for backward, which runs it again when
// it first needs something else, once per backward (core/autograd/recompute.h). Gradients have the
// same bits, and peak memory falls by what the forward saves, less its inputs: in return for the
// time of a second forward. It takes the module's place:
//   model.ReplaceChild("h.3", nn::Recompute(block));
// and has no name of its own, so that all parameters keep theirs. Hooks around forward run once,
// not where it runs again; running statistics are updated once. For weights that are gathered by
// hooks and released: hooks of the recomputed module, or of one that contains it.
template <class M>
auto Recompute(const std::shared_ptr<M>& module, RecomputeOptions options = {}) {
  LS_CHECK(module != nullptr, "Recompute needs a module, not null");
  return internal::MakeRecomputed(module, module.get(), std::move(options));
}

// The first operation of a block that needs x and the open branch of its stream for nothing else:
// begin(), which returns a pair that begins with their sum. If the block is recomputed, it keeps
// this sum instead of them.
template <class F>
auto FromSum(const Block* block, const ResidualStream& stream, const F& begin) {
  RecomputeScope::Start start(block);
  auto out = begin();
  start.Replace(std::vector<Tensor>{out.first, Tensor(), Tensor(), stream.x0});
  return out;
}

// Recomputes what is in a child's slot, and stays there around it.
template <class M>
void RecomputeChild(Child<M>& child, const RecomputeOptions& options = {}) {
  using Callee = typename Child<M>::Callee;
  if (const auto module = std::dynamic_pointer_cast<Callee>(child.module())) {
    return child.Replace(Recompute(module, options));
  }
  if constexpr (requires { typename SlotAdapter<M>::From; }) {
    const auto module = std::dynamic_pointer_cast<typename SlotAdapter<M>::From>(child.module());
    child.Replace(Recompute(module, options));
  }
}

}  // namespace lockstep::nn
