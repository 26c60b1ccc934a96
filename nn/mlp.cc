#include "nn/mlp.h"

#include "kernels/gelu/gelu.h"
#include "kernels/swiglu_geglu/swiglu_geglu.h"
#include "kernels/unary/unary.h"
#include "nn/dropout.h"
#include "nn/init.h"
#include "nn/linear.h"

namespace lockstep::nn {
namespace {

int64_t Inner(const TransformerOptions& options) {
  LS_CHECK(options.n_embd > 0 && options.n_inner >= 0, "Mlp: n_embd = ", options.n_embd,
           " must be positive and n_inner = ", options.n_inner, " must not be negative");
  return options.n_inner > 0 ? options.n_inner : 4 * options.n_embd;
}

std::shared_ptr<Linear> MakeInput(const TransformerOptions& options) {
  const bool fused = options.activation == MlpActivation::kGelu;
  const bool gated = IsGated(options.activation);
  return std::make_shared<Linear>(
      options.n_embd, gated ? 2 * Inner(options) : Inner(options),
      LinearOptions{.bias = options.bias,
                    .activation = fused ? Activation::kGelu : Activation::kNone,
                    .weight_init = Normal(0, options.init_std),
                    .bias_init = Constant(0)});
}

}  // namespace

Tensor ActivateMlp(MlpActivation activation, const Tensor& x) {
  switch (activation) {
    case MlpActivation::kGelu:
      return x;
    case MlpActivation::kGeluExact:
      return ops::Gelu(x, GeluForm::kExact);
    case MlpActivation::kRelu:
      return ops::Relu(x);
    case MlpActivation::kRelu2:
      return ops::Relu2(x);
    case MlpActivation::kSilu:
      return ops::Silu(x);
    case MlpActivation::kSwiGlu:
      return ops::SwiGlu(x);
    case MlpActivation::kGegluTanh:
      return ops::GegluTanh(x);
  }
  throw ArgumentError(StrCat("no activation has the number ", static_cast<int>(activation)));
}

Mlp::Mlp(const TransformerOptions& options)
    : activation_(options.activation),
      c_fc_(this, "c_fc", MakeInput(options)),
      c_proj_(this, "c_proj",
              std::make_shared<BranchLinear>(
                  Inner(options), options.n_embd,
                  LinearOptions{.bias = options.bias,
                                .weight_init = Normal(0, options.residual_std),
                                .bias_init = Constant(0)})),
      dropout_(this, "dropout", std::make_shared<BranchDropout>(options.dropout)) {}

ops::Branch Mlp::Forward(ops::Branch x) {
  return dropout_(c_proj_(ActivateMlp(activation_, c_fc_(ops::Complete(x)))));
}

}  // namespace lockstep::nn
