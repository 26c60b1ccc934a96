// Linear layers with frozen weights of 4 bits, the base of adapters: Dettmers et al., "QLoRA:
// efficient finetuning of quantized LLMs" (2023).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/nf4/nf4.h"
#include "nn/linear.h"

namespace lockstep::nn {

struct QuantizeOptions {
  // The numbers of rows of the matrices in the weight, each of which is quantised by itself, from
  // the first row on: a fused weight (queries, keys and values; gate and up) has several. Empty:
  // one matrix of all rows.
  std::vector<int64_t> rows = {};
  bool double_quantized = true;
};

// A layer with such a weight [out_features, in_features], of any interface. The weight is a buffer
// for each of its matrices, "weight.nf4.0", ...: it has no gradient and no optimizer state.
class QuantizedLayer {
 public:
  virtual ~QuantizedLayer() = default;
  // A parameter of the weight's shape, which is not part of the layer and has no memory.
  const Parameter& weight() const { return *weight_; }
  int64_t in_features() const { return weight_->logical_shape()[1]; }
  int64_t out_features() const { return weight_->logical_shape()[0]; }
  bool double_quantized() const { return double_quantized_; }
  // The matrices are counted from the first row on.
  size_t num_matrices() const { return shapes_.size(); }
  Nf4Matrix matrix(size_t i) const { return {shapes_[i], double_quantized_, *data_[i]}; }
  std::vector<Nf4Matrix> matrices() const;
  // Copies the values of a matrix of the same shape and kind, on any device. Before this call, and
  // after a Materialize that follows it, the weight is zero.
  void SetMatrix(size_t i, const Nf4Matrix& matrix);

 protected:
  QuantizedLayer(Parameter& weight, const QuantizeOptions& options);
  // Adds the buffers of its matrices, which `add` makes from (name, value); quantises the weight if
  // it has memory.
  void AddMatrices(const Parameter& weight,
                   const std::function<Tensor&(const std::string&, const Tensor&)>& add);

 private:
  std::shared_ptr<Parameter> weight_;
  bool double_quantized_;
  std::vector<Shape> shapes_;
  std::vector<Tensor*> data_;
};

// What QuantizedLinear and QuantizedBranchLinear share: the parameter bias [out_features], or none,
// is that of the layer that this one was made of.
template <class Interface>
class QuantizedWeight : public QuantizedLayer, public Interface {
 public:
  const std::shared_ptr<Parameter>& bias() const { return bias_; }  // null without one

 protected:
  QuantizedWeight(Parameter& weight, const std::shared_ptr<Parameter>& bias,
                  const QuantizeOptions& options);

 private:
  std::shared_ptr<Parameter> bias_;
};

// In the place of an nn::Linear: y = activation(x weight^T + bias), x [..., in_features] -> [...,
// out_features], in x's dtype, as ops::Nf4Linear computes it. If the layer has memory, its weight
// is quantised here. Throws ArgumentError if the rows do not add up to those of the weight.
class QuantizedLinear : public QuantizedWeight<Layer> {
 public:
  explicit QuantizedLinear(const Linear& linear, const QuantizeOptions& options = {});

  Activation activation() const { return activation_; }

 protected:
  Tensor Forward(const Tensor& x) override;

 private:
  Activation activation_;
};

// In the place of an nn::BranchLinear; its bias stays open, as there.
class QuantizedBranchLinear : public QuantizedWeight<BranchLayer> {
 public:
  explicit QuantizedBranchLinear(const BranchLinear& linear, const QuantizeOptions& options = {});

 protected:
  ops::Branch Forward(ops::Branch x) override;
};

// The quantised layers of a model, with their paths, in the order of its modules.
std::vector<std::pair<std::string, QuantizedLayer*>> QuantizedLayers(const Module& model);
// How many weights these have.
int64_t NumQuantizedWeights(const Module& model);
// Whether a buffer is the weight of one.
bool IsQuantizedWeight(const std::string& buffer);

// Puts a QuantizedLinear or QuantizedBranchLinear into the place of the nn::Linear or
// nn::BranchLinear at this path; of the base, if it has an adapter (nn::AddLora). Best before the
// model has memory: then the unquantised weight never has any. Throws ArgumentError if there is no
// such layer.
void QuantizeLinear(Module& model, const std::string& path, const QuantizeOptions& options = {});

}  // namespace lockstep::nn
