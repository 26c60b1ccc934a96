// Linear layers whose matrices are split across ranks.
#pragma once

#include <vector>

#include "dist/tensor/tensor_ranks.h"
#include "nn/linear.h"
#include "nn/lora/quantized_linear.h"

namespace lockstep::dist {

// In the place of an nn::Linear: a rank has an equal part of the outputs (rows of the weight).
// x [B, T / size, K], the rank's part of the sequence, is gathered; y [B, T, N / size] =
// activation(x weight^T + bias). Saves the part of x and gathers it again in backward. The gradient
// of x is a sum over the outputs: partial products of parts() virtual parts.
class ColumnLinear : public Layer {
 public:
  // `segments`: sizes of the segments of the outputs, each of which is cut (TensorRule).
  ColumnLinear(const nn::Linear& replaced, std::vector<int64_t> segments, TensorRanksPtr ranks);

  const std::vector<int64_t>& segments() const { return segments_; }  // on this rank
  Activation activation() const { return activation_; }
  const std::shared_ptr<Parameter>& weight() const { return weight_; }
  const std::shared_ptr<Parameter>& bias() const { return bias_; }  // null without one

 protected:
  Tensor Forward(const Tensor& x) override;

 private:
  const TensorRanksPtr ranks_;
  std::vector<int64_t> segments_;
  Activation activation_;
  std::shared_ptr<Parameter> weight_, bias_;
};

// In the place of an nn::BranchLinear: a rank has an equal part of the inputs (columns of the
// weight), and the bias. x [B, T, K / size] -> the rank's part of the sequence [B, T / size, N]: a
// sum over the inputs, of the partial products of parts() virtual parts. The bias stays open.
class RowLinear : public nn::BranchLayer {
 public:
  RowLinear(const nn::BranchLinear& replaced, TensorRanksPtr ranks);

  const std::shared_ptr<Parameter>& weight() const { return weight_; }
  const std::shared_ptr<Parameter>& bias() const { return bias_; }  // null without one

 protected:
  ops::Branch Forward(ops::Branch x) override;

 private:
  const TensorRanksPtr ranks_;
  std::shared_ptr<Parameter> weight_, bias_;
};

// ColumnLinear and RowLinear in the place of layers with 4-bit weights, of which a rank has its
// part: the whole was quantised, and blocks of values that share a scale are never cut. The part is
// dequantised for each product, in backward again. Made before the model has memory.
class QuantizedColumnLinear : public nn::QuantizedWeight<Layer> {
 public:
  QuantizedColumnLinear(const nn::QuantizedLinear& replaced, std::vector<int64_t> segments,
                        TensorRanksPtr ranks);

 protected:
  Tensor Forward(const Tensor& x) override;

 private:
  const TensorRanksPtr ranks_;
  std::vector<int64_t> segments_;
  Activation activation_;
};

class QuantizedRowLinear : public nn::QuantizedWeight<nn::BranchLayer> {
 public:
  QuantizedRowLinear(const nn::QuantizedBranchLinear& replaced, TensorRanksPtr ranks);

 protected:
  ops::Branch Forward(ops::Branch x) override;

 private:
  const TensorRanksPtr ranks_;
};

// a [m, k] b [k, n], or with transpose_b b [n, k]: [m, n], in `dtype`. No gradient.
Tensor PartialProduct(const Tensor& a, const Tensor& b, bool transpose_b, DType dtype);

// The products of the modules, with this rank's part of the weight and, for columns, of the bias.
Tensor ColumnProduct(const TensorRanksPtr& ranks, const Tensor& x, const Tensor& weight,
                     const Tensor& bias, Activation activation = Activation::kNone,
                     const std::vector<int64_t>& segments = {});
Tensor RowProduct(const TensorRanksPtr& ranks, const Tensor& x, const Tensor& weight);

}  // namespace lockstep::dist
