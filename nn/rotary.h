// The cosines and sines of a model's rotary embedding.
#pragma once

#include <mutex>

#include "kernels/rotary_embedding/rotary_embedding.h"

namespace lockstep::nn {

// One object for all layers of a model: ops::RotaryTable, built when first needed, and kept. A row
// of it does not depend on how many there are. Throws ArgumentError for options out of range or an
// odd head.
class Rotary {
 public:
  Rotary(int64_t head_size, const RotaryOptions& options);

  const RotaryOptions& options() const { return options_; }
  // Turns the first `rotated` heads of x [B, T, N * head_size] by the angles of the positions
  // first_position, first_position + 1, ..., or of `positions`, i32 [B, T], all of them within the
  // table: ops::RotaryEmbedding, in place where x is moved here and nothing else holds it. Callable
  // from any thread.
  Tensor operator()(Tensor x, int64_t rotated, int64_t first_position = 0,
                    const Tensor& positions = {});

 private:
  Tensor Table(int64_t positions, DType dtype, Device device);

  int64_t head_size_;
  RotaryOptions options_;
  std::mutex mutex_;
  Tensor table_;  // of the device and dtype requested last
};

}  // namespace lockstep::nn
