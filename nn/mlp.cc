#include "nn/mlp.h"

#include "nn/dropout.h"
#include "nn/init.h"
#include "nn/linear.h"

namespace lockstep::nn {

Mlp::Mlp(int64_t n_embd, int64_t hidden, const MlpOptions& options)
    : c_fc_(this, "c_fc",
            std::make_shared<Linear>(n_embd, hidden,
                                     LinearOptions{.bias = options.bias,
                                                   .activation = Activation::kGelu,
                                                   .weight_init = Normal(0, options.init_std),
                                                   .bias_init = Constant(0)})),
      c_proj_(this, "c_proj",
              std::make_shared<Linear>(hidden, n_embd,
                                       LinearOptions{.bias = options.bias,
                                                     .weight_init = Normal(0, options.residual_std),
                                                     .bias_init = Constant(0)})),
      dropout_(this, "dropout", std::make_shared<Dropout>(options.dropout)) {}

Tensor Mlp::Forward(const Tensor& x) { return dropout_(c_proj_(c_fc_(x))); }

}  // namespace lockstep::nn
