// Differentiable functions of your own, without a Node.
#pragma once

#include <concepts>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/autograd/node.h"

namespace lockstep::ops {

class FunctionNode;

// What a function's forward keeps for its backward.
class Saved {
 public:
  // In forward: keeps an input, a result, or anything computed from them. It must not be written to
  // before backward, which throws Error if it was. Where nothing is recorded, nothing is kept.
  void Keep(const Tensor& tensor);
  // In backward: what was kept, in that order.
  Tensor operator[](size_t i) const;
  // In backward: whether the gradient of input i is needed; other gradients may be left undefined.
  bool Needs(size_t i) const;

 private:
  friend class FunctionNode;
  Saved(const char* name, FunctionNode* node, const Gradients* grads = nullptr)
      : name_(name), node_(node), grads_(grads) {}

  const char* const name_;
  FunctionNode* const node_;      // null: keeps nothing
  const Gradients* const grads_;  // in backward
};

namespace internal {

using Tensors = std::vector<Tensor>;
// The texts that graphs and their errors point to, which outlive the function.
struct FunctionName {
  explicit FunctionName(const std::string& name);
  const char* name;
  const char* what_it_saved;
};
using FunctionForward = std::function<Tensors(Saved&, const Tensors&)>;
using FunctionBackward = std::function<Tensors(const Saved&, const Tensors&)>;

Tensors RunFunction(const FunctionName& name, const Tensors& inputs, const FunctionForward& forward,
                    const FunctionBackward& backward);

inline Tensors AsList(Tensor x) { return {std::move(x)}; }
inline Tensors AsList(Tensors list) { return list; }

}  // namespace internal

// A function with a gradient of its own, from two callables:
//   const ops::Function square("square",
//       [](ops::Saved& saved, const Tensor& x) { saved.Keep(x); return x * x; },
//       [](const ops::Saved& saved, const Tensor& dy) { return dy * saved[0] * 2.0; });
//   const Tensor y = square(x);
//
// `forward` takes a Saved& and the inputs, and returns a Tensor or a std::vector<Tensor>.
// `backward` takes a const Saved& and the gradient of the result, of its shape, dtype and device
// (after a std::vector, a const std::vector<Tensor>& with zeros for results that nothing used); it
// returns the gradient of the input, or a std::vector<Tensor> with one for each, of that input's
// shape, dtype and device. Neither is recorded; inputs arrive detached. Integers have no gradient,
// neither inputs nor results, whose place among the gradients is undefined; an input may be
// undefined (a bias that is not there). backward may run several times, where a graph is retained.
// Like a hook, it must not hold a result of the function, which holds it.
//
// Throws ArgumentError where forward writes to an input or backward to a gradient, whose memory
// others have, and, in backward, for gradients that are missing, too many or do not fit.
template <class Forward, class Backward>
class Function {
 public:
  Function(const std::string& name, Forward forward, Backward backward)
      : name_(name), forward_(std::move(forward)), backward_(std::move(backward)) {}

  template <std::convertible_to<const Tensor&>... Inputs>
  auto operator()(const Inputs&... inputs) const {
    static_assert(kTakes<Inputs...>,
                  "forward must take (ops::Saved&, const Tensor&...), a tensor for each input that "
                  "the function is called with, and must not be a mutable lambda");
    if constexpr (kTakes<Inputs...>) return Run(inputs...);
  }

 private:
  template <class... Inputs>
  static constexpr bool kTakes =
      std::invocable<const Forward&, Saved&, std::conditional_t<true, const Tensor&, Inputs>...>;

  template <class... Inputs>
  auto Run(const Inputs&... inputs) const {
    using Result =
        decltype(forward_(std::declval<Saved&>(), static_cast<const Tensor&>(inputs)...));
    constexpr bool kOne = std::is_convertible_v<Result, Tensor>;
    const auto forward = [this](Saved& saved, const internal::Tensors& in) {
      return Call(saved, in, std::index_sequence_for<Inputs...>());
    };
    const auto backward = [f = backward_](const Saved& saved, const internal::Tensors& grads) {
      if constexpr (kOne) {
        return internal::AsList(f(saved, grads[0]));
      } else {
        return internal::AsList(f(saved, grads));
      }
    };
    internal::Tensors results = internal::RunFunction(name_, {inputs...}, forward, backward);
    if constexpr (kOne) {
      return std::move(results[0]);
    } else {
      return results;
    }
  }

  template <size_t... i>
  internal::Tensors Call(Saved& saved, const internal::Tensors& in,
                         std::index_sequence<i...>) const {
    return internal::AsList(forward_(saved, in[i]...));
  }

  internal::FunctionName name_;
  Forward forward_;
  Backward backward_;
};

}  // namespace lockstep::ops
