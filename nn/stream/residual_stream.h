// The residual stream of a transformer: what its blocks and their branches take and give.
#pragma once

#include <memory>
#include <utility>

#include "core/module.h"
#include "kernels/residual_norm/residual_norm.h"

namespace lockstep::nn {

// A branch, or a part of one, that may leave its last steps, a bias and a dropout, to the module
// that adds its result to the stream: ResidualNorm does so in the pass that it makes anyway, and in
// backward it sums up the bias' gradient there. A branch never refers to a parameter, so that no
// parameter is read outside of its own module.
using BranchLayer = ModuleOf<ops::Branch(ops::Branch)>;

// The stream x [..., C], and the branch that is still to be added to it: each sum is made by the
// norm that reads it. A tensor is a stream to which nothing is to be added.
struct ResidualStream {
  ResidualStream(const Tensor& x, ops::Branch open = {}, const Tensor& x0 = {})
      : x(x), open(std::move(open)), x0(x0) {}

  Tensor x;
  ops::Branch open;  // its value is undefined: nothing is to be added
  Tensor x0;         // what the stream began with, for StreamMix; undefined: no block needs it
};

// A stream that begins with x, of which blocks mix in x0 = x. Gradients of x0 add up on their own
// before they are added to those of x.
ResidualStream StartStream(const Tensor& x);

// The tensor that a stream stands for: x + Complete(open).
Tensor Complete(const ResidualStream& stream);
// The same by the operation that makes it within a norm, and so with its bits in any dtype, also of
// the gradients. `part` is the part of each sample that the stream holds.
Tensor SumOf(const ResidualStream& stream, SamplePart part = {});

// What a module makes of a stream. It only hands x0 on.
template <class F>
void ForEachTensor(const ResidualStream& stream, const F& f) {
  f(stream.x);
  ForEachTensor(stream.open, f);
}
// What a module takes, for Recompute.
template <class T, class F>
void ForEachInput(const T& argument, const F& f) {
  ForEachTensor(argument, f);
}
template <class F>
void ForEachInput(const ResidualStream& stream, const F& f) {
  ForEachTensor(stream, f);
  f(stream.x0);
}

// A layer of a transformer:
//   ResidualStream stream = embedding(ids);
//   for (int64_t i = 0; i < blocks.size(); ++i) stream = blocks[i](std::move(stream));
//   Tensor y = Complete(stream);
using Block = ModuleOf<ResidualStream(ResidualStream)>;

}  // namespace lockstep::nn

namespace lockstep {

// A plain Layer in place of a block or of a part of a branch: its input is completed first, and its
// output is complete; what a stream began with passes it by.
template <class T>
requires requires(const T& x) { Complete(x); }
class SlotAdapter<ModuleOf<T(T)>> final : public ModuleOf<T(T)> {
 public:
  using From = Layer;
  explicit SlotAdapter(std::shared_ptr<Layer> layer) : layer_(std::move(layer)) {}

 protected:
  T Forward(T x) override {
    T y = (*layer_)(Complete(x));
    if constexpr (requires { y.x0; }) y.x0 = x.x0;
    return y;
  }

 private:
  std::shared_ptr<Layer> layer_;
};

}  // namespace lockstep
