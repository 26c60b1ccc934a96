#include "models/gpt/quantize_base.h"

#include "models/gpt/peft/layer_names.h"
#include "nn/lora/quantized_linear.h"

namespace lockstep::models {

void QuantizeBase(Gpt& model, bool double_quantized) {
  for (const AdaptableLayer& layer : AdaptableLayers(model)) {
    if (layer.expert >= 0) continue;  // experts stay as they are
    nn::QuantizeOptions options{.double_quantized = double_quantized};
    for (const AdaptableLayer::Part& part : layer.parts) options.rows.push_back(part.rows);
    nn::QuantizeLinear(model, layer.path, options);
  }
  model.AssignNames();
}

}  // namespace lockstep::models
