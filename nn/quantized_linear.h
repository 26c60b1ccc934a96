// Linear layers with frozen weights of 4 bits, for adapters beside them: Dettmers et al., "QLoRA:
// efficient finetuning of quantized LLMs" (2023).
#pragma once

#include <memory>
#include <vector>

#include "kernels/nf4/nf4.h"
#include "nn/linear.h"

namespace lockstep::nn {

struct QuantizeOptions {
  // How many rows each matrix of the weight has that is quantised by itself, from the first row on:
  // a fused weight (queries, keys and values; gate and up) has several. Empty: one of all rows.
  std::vector<int64_t> rows = {};
  bool double_quantized = true;
};

// What QuantizedLinear and QuantizedBranchLinear share. The weight [out_features, in_features] is a
// buffer for each of its matrices, "weight.nf4.0", ...: it has no gradient and no optimizer state,
// and checkpoints have it as it is. The parameter bias [out_features], or none, is that of the
// layer that this one was made of.
template <class Interface>
class QuantizedWeight : public Interface {
 public:
  int64_t in_features() const { return shapes_[0][1]; }
  int64_t out_features() const;
  const std::shared_ptr<Parameter>& bias() const { return bias_; }  // null without one
  size_t num_matrices() const { return shapes_.size(); }
  Nf4Matrix matrix(size_t i) const { return {shapes_[i], double_quantized_, *data_[i]}; }
  bool double_quantized() const { return double_quantized_; }
  // Copies the values of a matrix of the same shape and kind, on any device. Before this, or where
  // Materialize came after it, the weight is zero.
  void SetMatrix(size_t i, const Nf4Matrix& matrix);

 protected:
  QuantizedWeight(const std::shared_ptr<Parameter>& weight, const std::shared_ptr<Parameter>& bias,
                  const QuantizeOptions& options);
  std::vector<Nf4Matrix> weight() const;

 private:
  bool double_quantized_;
  std::vector<Shape> shapes_;
  std::vector<Tensor*> data_;
  std::shared_ptr<Parameter> bias_;
};

// In the place of an nn::Linear: y = activation(x weight^T + bias), x [..., in_features] -> [...,
// out_features], in x's dtype, as ops::Nf4Linear computes it. Of a layer with memory the weight is
// quantised here. Throws ArgumentError if the rows do not add up to those of the weight.
class QuantizedLinear : public QuantizedWeight<Layer> {
 public:
  explicit QuantizedLinear(const Linear& linear, const QuantizeOptions& options = {});

  Activation activation() const { return activation_; }

 protected:
  Tensor Forward(const Tensor& x) override;

 private:
  Activation activation_;
};

// In the place of an nn::BranchLinear, with an open bias as it has one.
class QuantizedBranchLinear : public QuantizedWeight<BranchLayer> {
 public:
  explicit QuantizedBranchLinear(const BranchLinear& linear, const QuantizeOptions& options = {});

 protected:
  ops::Branch Forward(ops::Branch x) override;
};

}  // namespace lockstep::nn
