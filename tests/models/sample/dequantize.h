// The weights of a 4-bit base as those of a model without one.
#pragma once

#include "models/gpt/gpt.h"
#include "nn/lora/quantized_linear.h"

namespace lockstep::models {

// Overwrites the matrices of `plain` by the dequantised ones of `quantized`, of the same shape.
inline void CopyDequantized(const Gpt& quantized, Gpt& plain) {
  for (const auto& [path, layer] : nn::QuantizedLayers(quantized)) {
    for (const auto& [name, p] : plain.NamedParameters()) {
      if (name != path + ".weight") continue;
      int64_t begin = 0;
      for (const Nf4Matrix& m : layer->matrices()) {
        const Tensor rows = p->value().Detach().Slice(0, begin, begin + m.rows());
        rows.CopyFrom(ops::Nf4Dequantize(m, DType::kF32));
        begin += m.rows();
      }
    }
  }
}

}  // namespace lockstep::models
