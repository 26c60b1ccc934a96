// What the cases of the optimizers' updates share.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/op_case/op_case.h"
#include "kernels/sgd/update.h"

namespace lockstep {

// A sample's inputs as an update takes them, to be written to.
struct UpdateInputs {
  Tensor value, grad;
  std::vector<Tensor> states;
  Tensor master;  // of 16-bit values, where the sample has one
};

// Inputs: value, grad, the states and, optionally, master. A value that is not of 16 bits has no
// master, and begins as the master is.
inline UpdateInputs UpdateInputsOf(std::span<const Tensor> in, size_t states) {
  const auto copy = [](const Tensor& x) { return x.Detach().Contiguous().Clone(); };
  const DType wide = StateDType(in[0]);
  UpdateInputs out{.value = copy(in[0]), .grad = copy(in[1]), .states = {}, .master = {}};
  for (size_t i = 0; i < states; ++i) out.states.push_back(copy(in[2 + i]).To(wide));
  if (in.size() == 2 + states) return out;
  const Tensor master = copy(in[2 + states]).To(wide);
  if (SizeOf(in[0].dtype()) == 2) {
    out.master = master;
  } else {
    out.value = master.To(in[0].dtype());
  }
  return out;
}

// What a reference starts from: the master, where there is one.
inline RefTensor UpdatedValue(std::span<const RefTensor> in, size_t states) {
  return in.size() > 2 + states ? in[2 + states] : in[0];
}

inline OpSample UpdateSample(const std::string& name, const InputSpec& like, size_t states,
                             bool master) {
  OpSample s;
  s.name = name;
  s.inputs.assign(2 + states + (master ? 1 : 0), like);
  return s;
}

// An update of zeros of f32[2, 3] after `change`, which must fail with `message`. `fields`: the
// tensors that this update has.
template <class Tensors, class Hyper>
class UpdateErrors {
 public:
  using Update = void (*)(std::span<const Tensors>, const Hyper&, const StepState&);
  using Change = std::function<void(Tensors&, Hyper&)>;

  UpdateErrors(Update update, std::vector<Tensor Tensors::*> fields)
      : update_(update), fields_(std::move(fields)) {}

  ErrorSample operator()(const std::string& name, const Change& change,
                         const std::string& message) const {
    const auto run = [update = update_, fields = fields_, change](Device d) {
      Tensors t;
      Hyper hyper;
      for (const auto field : fields) t.*field = Tensor::Zeros({2, 3}, DType::kF32, d);
      change(t, hyper);
      update(std::span(&t, 1), hyper, StepState(d, 1));
    };
    return {name, run, message};
  }

 private:
  Update update_;
  std::vector<Tensor Tensors::*> fields_;
};

}  // namespace lockstep
