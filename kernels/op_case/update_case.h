// An optimizer's update as an OpCase: all are alike except in their arithmetic.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/op_case/op_case.h"
#include "kernels/update.h"

namespace lockstep {

// Inputs of a sample: value, grad, the states and, optionally, master. A value that is not of 16
// bits has no master, and begins as the master is.
template <class Hyper>
struct UpdateCase {
  using Update = void (*)(std::span<const UpdateTensors>, const Hyper&, const StepState&);
  // The update in plain loops of doubles: writes p and the states. g: without the loss scale.
  using Reference = void (*)(const UpdateCase&, const Hyper&, const RefTensor& g, RefTensor& p,
                             std::span<RefTensor> states);
  static constexpr double kLossScale = 4, kLrFactor = 0.7;
  static constexpr int64_t kStep = 3;

  std::string name;
  Update update;
  std::span<const char* const> states;  // their names
  Reference reference;
  Hyper hyper;  // of the samples that all have, and of the errors
  double lr, weight_decay;
  double flops;  // of an element
  std::vector<Betas> betas = {};
  double last_state_low = -1;  // of its values at first

  void Begin(StepState& state) const {
    state.EnableLossScaling({.init = kLossScale});
    state.Begin(kStep, lr, betas);
  }

  // As f32 has them: what kernels read, and the learning rate times its factor.
  StepValues Values() const {
    StepState state(kCpu, 1);
    Begin(state);
    return state.Read();
  }
  double Lr() const { return Values().lr * kLrFactor; }
  // p, decayed at this learning rate beside the update u.
  double Decayed(double p, double u, double lr_of_step, const DecoupledDecay& decay) const {
    if (decay.cautious && u * p < 0) return p;
    const double share =
        decay.steps == 0 ? 1 : 1 - double{kStep} / static_cast<double>(decay.steps);
    return p * (1 - lr_of_step * weight_decay * std::max(share, 0.0));
  }

  // narrow_states: in bf16, unless the value is f64.
  std::vector<Tensor> Run(const Hyper& h, TensorSpan in, bool narrow_states) const {
    const auto copy = [](const Tensor& x) { return x.Detach().Contiguous().Clone(); };
    const DType wide = StateDType(in[0]);
    const DType state_dtype = narrow_states && wide == DType::kF32 ? DType::kBF16 : wide;
    UpdateTensors t{.value = copy(in[0]),
                    .grad = copy(in[1]),
                    .states = {},
                    .master = {},
                    .weight_decay = weight_decay,
                    .lr_factor = kLrFactor};
    for (size_t i = 0; i < states.size(); ++i) t.states.push_back(copy(in[2 + i]).To(state_dtype));
    if (in.size() > 2 + states.size()) {
      t.master = copy(in[2 + states.size()]).To(wide);
      if (SizeOf(t.value.dtype()) != 2) t.value = std::exchange(t.master, {}).To(t.value.dtype());
    }
    if (t.value.dtype() == DType::kF16 && !t.master.defined()) t.master = t.value.To(wide);
    StepState state(in[0].device(), 1);
    Begin(state);
    update(std::span(&t, 1), h, state);
    std::vector<Tensor> out = {t.value};
    out.insert(out.end(), t.states.begin(), t.states.end());
    return out;
  }

  OpSample Sample(const std::string& sample, const InputSpec& like, const Hyper& h,
                  bool master = false, bool narrow_states = false) const {
    OpSample s;
    s.name = sample;
    s.inputs.assign(2 + states.size() + (master ? 1 : 0), like);
    s.inputs[1 + states.size()].low = last_state_low;
    for (size_t i = 0; narrow_states && i < states.size(); ++i) {
      s.inputs[2 + i].dtype = DType::kBF16;
    }
    s.run = [=, *this](TensorSpan in) { return Run(h, in, narrow_states); };
    s.reference = [=, *this](RefSpan in) {
      RefTensor g = in[1];
      for (double& x : g.data) x /= kLossScale;
      std::vector<RefTensor> out(in.begin() + 1, in.begin() + 2 + states.size());
      out[0] = in.size() > 2 + states.size() ? in.back() : in[0];
      reference(*this, h, g, out[0], std::span(out).subspan(1));
      return out;
    };
    return s;
  }

  // Matrices, so that they serve Muon too.
  std::vector<OpSample> Samples() const {
    OpSample f32_grad = Sample("f32 gradient", {.shape = {1, 37}}, hyper);
    f32_grad.inputs[1].dtype = DType::kF32;
    OpSample large = Sample("16 million", {.shape = {4096, 4096}}, hyper);
    large.benchmark = {.flops = 4096.0 * 4096 * flops,
                       .elements = 4096.0 * 4096 * (3 + 2 * static_cast<double>(states.size()))};
    return {Sample("empty", {.shape = {0, 3}}, hyper),
            Sample("one", {.shape = {1, 1}}, hyper),
            Sample("odd", {.shape = {7, 13}}, hyper),
            Sample("several chunks", {.shape = {3, 11003}}, hyper),
            Sample("strided", {.shape = {5, 9}, .non_contiguous = true}, hyper),
            Sample("master", {.shape = {7, 13}}, hyper, true),
            Sample("bf16 states", {.shape = {3, 701}}, hyper, false, true),
            f32_grad,
            large};
  }

  // The message, after the op's name, of an update of zeros of f32[2, 3] that `change` has spoilt.
  ErrorSample Error(const std::string& error,
                    const std::function<void(UpdateTensors&, Hyper&)>& change,
                    const std::string& message) const {
    const auto run = [=, *this](Device d) {
      const auto zeros = [d] { return Tensor::Zeros({2, 3}, DType::kF32, d); };
      UpdateTensors t{.value = zeros(), .grad = zeros(), .states = {}, .master = {}};
      for (size_t i = 0; i < states.size(); ++i) t.states.push_back(zeros());
      Hyper h = hyper;
      change(t, h);
      StepState state(d, 1);
      state.Begin(0, lr, betas);
      update(std::span(&t, 1), h, state);
    };
    return {error, run, name + ": " + message};
  }

  std::vector<ErrorSample> Errors() const {
    const std::string last = states.back();
    return {Error(
                "no gradient", [](auto& t, auto&) { t.grad = Tensor(); },
                "grad of tensor 0 must be floating, got undefined tensor"),
            Error(
                "shape of the gradient",
                [](auto& t, auto&) {
                  t.grad = t.grad.View({3, 2});
                },
                "grad of tensor 0 must be a contiguous f32[2, 3]"),
            Error(
                "no state", [](auto& t, auto&) { t.states.pop_back(); },
                last + " of tensor 0 must be a contiguous f32[2, 3]"),
            Error(
                "dtype of the state",
                [](auto& t, auto&) { t.states.back() = t.states.back().To(DType::kF16); },
                last + " of tensor 0 must be a contiguous f32[2, 3]"),
            Error(
                "master of an f32 value", [](auto& t, auto&) { t.master = t.value.Clone(); },
                "tensor 0 has a master, but its value is f32[2, 3]")};
  }

  // The case, with these further samples and errors of the op.
  OpCase Case(std::vector<OpSample> samples, std::vector<ErrorSample> errors) const {
    OpCase c;
    c.name = name;
    c.differentiable = false;
    c.samples = [*this, own = std::move(samples)] {
      std::vector<OpSample> all = Samples();
      all.insert(all.end(), own.begin(), own.end());
      return all;
    };
    c.errors = [*this, own = std::move(errors)] {
      std::vector<ErrorSample> all = Errors();
      all.insert(all.end(), own.begin(), own.end());
      return all;
    };
    return c;
  }
};

}  // namespace lockstep
