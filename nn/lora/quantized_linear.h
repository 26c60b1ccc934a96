// Linear layers with frozen weights of 4 bits, the base of adapters: Dettmers et al., "QLoRA:
// efficient finetuning of quantized LLMs" (2023).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
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

// How ranks that compute a layer together divide its weight: each has an equal part of the rows
// (dimension 0) of every segment, or of the columns (1).
struct QuantizedCut {
  int dim = 0;
  int64_t parts = 1;
  std::vector<int64_t> segments = {};  // of the rows, which add up to them; empty: all are one
  int64_t multiple = 1;                // of how many equal pieces the bytes of a part are made
};

// A layer with such a weight [out_features, in_features], of any interface. For each of its
// matrices it has a frozen parameter "weight.nf4.0", ..., of bytes, that ranks can shard as any
// other: it is quantised as a whole before, so no code depends on ranks. Where the weight is cut,
// the parameter is the ranks' parts one after the other, each a matrix of its own.
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
  const Shape& shape(size_t i) const { return shapes_[i]; }  // of the whole matrix
  // This rank's part of a matrix, or all of it; where the weight is cut, with f32 scales. While it
  // is sharded by ranges only within the layer's forward.
  Nf4Matrix matrix(size_t i) const;
  std::vector<Nf4Matrix> matrices() const;
  const std::vector<std::shared_ptr<Parameter>>& codes() const { return codes_; }
  // Copies this rank's part of the values of a whole matrix of the same shape and kind, on any
  // device. Before this call, and after a Materialize that follows it, the weight is zero.
  void SetMatrix(size_t i, const Nf4Matrix& matrix);
  // From now on x is `chunks` inputs, concatenated along dimension 0, with a product of its own for
  // each, except under NoGrad: products' sizes can decide their bits.
  void MultiplyByChunks(int64_t chunks) { chunks_ = chunks; }

 protected:
  QuantizedLayer(Parameter& weight, const QuantizeOptions& options);
  // Without the values of `whole`. Throws ArgumentError if the parts do not have whole blocks of
  // kNf4Block values, which share a scale.
  QuantizedLayer(const QuantizedLayer& whole, const QuantizedCut& cut);
  // Quantises the weight, if it has memory.
  void Quantize(const Parameter& weight);
  Tensor ByChunks(const Tensor& x, const std::function<Tensor(const Tensor& chunk)>& product) const;

 private:
  void MakeCodes();
  std::vector<std::pair<int64_t, int64_t>> RowsOf(size_t i, int64_t part) const;
  Nf4Matrix PartOf(size_t i, const Nf4Matrix& whole, int64_t part) const;
  Shape PartShape(size_t i) const;
  int64_t PartBytes(size_t i) const;

  std::shared_ptr<Parameter> weight_;
  bool double_quantized_;
  std::vector<Shape> shapes_;
  QuantizedCut cut_;
  int64_t chunks_ = 1;
  std::vector<std::shared_ptr<Parameter>> codes_;
};

// f(weight): the layer's matrices, one after the other, in `dtype`. What f's operations save of it
// for backward is the 4-bit weight, which is dequantised again there.
Tensor WithDequantized(const QuantizedLayer& layer, DType dtype,
                       const std::function<Tensor(const Tensor& weight)>& f);

// What QuantizedLinear and QuantizedBranchLinear share: the parameter bias [out_features], or none,
// is that of the layer that this one was made of.
template <class Interface>
class QuantizedWeight : public QuantizedLayer, public Interface {
 public:
  const std::shared_ptr<Parameter>& bias() const { return bias_; }  // null without one

 protected:
  QuantizedWeight(Parameter& weight, const std::shared_ptr<Parameter>& bias,
                  const QuantizeOptions& options);
  QuantizedWeight(const QuantizedWeight& whole, const QuantizedCut& cut);

 private:
  void ShareParameters();

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
// Whether a parameter of this name is the weight of one.
bool IsQuantizedWeight(std::string_view parameter);

// Puts a QuantizedLinear or QuantizedBranchLinear into the place of the nn::Linear or
// nn::BranchLinear at this path; of the base, if it has an adapter (nn::AddLora). Best before the
// model has memory: then the unquantised weight never has any. Throws ArgumentError if there is no
// such layer.
void QuantizeLinear(Module& model, const std::string& path, const QuantizeOptions& options = {});

}  // namespace lockstep::nn
