#include "nn/lora/quantized_linear.h"

#include <numeric>

#include "kernels/gelu/gelu.h"
#include "nn/lora/lora.h"

namespace lockstep::nn {
namespace {

constexpr char kBuffer[] = "weight.nf4.";

// Frees what a parameter without memory counts as on the meta device, where memory is planned.
void Shrink(Parameter& p) {
  if (!p.device().is_meta()) return;
  const Tensor one = Tensor::Empty({1}, p.value().dtype(), kMeta);
  const Shape& shape = p.logical_shape();
  p.SetValue(one.View({1, 1}).Expand(shape));
}

}  // namespace

QuantizedLayer::QuantizedLayer(Parameter& weight, const QuantizeOptions& options)
    : weight_(std::make_shared<Parameter>(weight.logical_shape(), Initializer(), weight.decay())),
      double_quantized_(options.double_quantized) {
  const std::vector<int64_t> rows =
      options.rows.empty() ? std::vector{out_features()} : options.rows;
  LS_CHECK(std::accumulate(rows.begin(), rows.end(), int64_t{0}) == out_features(),
           "QuantizedLinear: the matrices of a weight of shape ", weight.logical_shape(),
           " must have ", out_features(), " rows together");
  LS_CHECK(weight.layout().is_whole(),
           "QuantizedLinear: a weight that is sharded cannot be quantised: quantise first");
  for (int64_t n : rows) shapes_.push_back({n, in_features()});
  Shrink(*weight_);
  Shrink(weight);
}

void QuantizedLayer::AddMatrices(
    const Parameter& weight, const std::function<Tensor&(const std::string&, const Tensor&)>& add) {
  const Tensor value = weight.value().Detach();
  int64_t begin = 0;
  for (const Shape& shape : shapes_) {
    // One zero, repeated: what Materialize resets to takes no memory.
    const int64_t bytes =
        Nf4Matrix{.shape = shape, .double_quantized = double_quantized_}.layout().bytes;
    const Tensor zero = Tensor::Zeros({1}, DType::kU8);
    data_.push_back(&add(StrCat(kBuffer, data_.size()), zero.Expand({bytes})));
    const int64_t end = begin + shape[0];
    if (!value.device().is_meta()) {
      *data_.back() = ops::Nf4Quantize(value.Slice(0, begin, end), double_quantized_).data;
    }
    begin = end;
  }
}

std::vector<Nf4Matrix> QuantizedLayer::matrices() const {
  std::vector<Nf4Matrix> out;
  for (size_t i = 0; i < shapes_.size(); ++i) out.push_back(matrix(i));
  return out;
}

void QuantizedLayer::SetMatrix(size_t i, const Nf4Matrix& matrix) {
  LS_CHECK(i < shapes_.size() && matrix.shape == shapes_[i] &&
               matrix.double_quantized == double_quantized_,
           "QuantizedLinear: matrix ", i, " cannot become one of shape ", matrix.shape,
           matrix.double_quantized ? ", double quantised" : ", with f32 scales");
  data_[i]->CopyFrom(matrix.data);
}

template <class Interface>
QuantizedWeight<Interface>::QuantizedWeight(Parameter& weight,
                                            const std::shared_ptr<Parameter>& bias,
                                            const QuantizeOptions& options)
    : QuantizedLayer(weight, options), bias_(bias) {
  AddMatrices(weight, [&](const std::string& name, const Tensor& value) -> Tensor& {
    return this->AddBuffer(name, value);
  });
  if (bias) this->ShareParameter("bias", bias);
}

template class QuantizedWeight<Layer>;
template class QuantizedWeight<BranchLayer>;

QuantizedLinear::QuantizedLinear(const Linear& linear, const QuantizeOptions& options)
    : QuantizedWeight(*linear.weight(), linear.bias(), options), activation_(linear.activation()) {}

Tensor QuantizedLinear::Forward(const Tensor& x) {
  const Tensor y = ops::Nf4Linear(x, matrices(), bias() ? bias()->value() : Tensor());
  return activation_ == Activation::kGelu ? ops::Gelu(y) : y;
}

QuantizedBranchLinear::QuantizedBranchLinear(const BranchLinear& linear,
                                             const QuantizeOptions& options)
    : QuantizedWeight(*linear.weight(), linear.bias(), options) {}

ops::Branch QuantizedBranchLinear::Forward(ops::Branch x) {
  ops::Branch y = ops::Nf4Linear(ops::Complete(x), matrices());
  if (bias()) y.bias = OpenBias(*bias());
  return y;
}

std::vector<std::pair<std::string, QuantizedLayer*>> QuantizedLayers(const Module& model) {
  std::vector<std::pair<std::string, QuantizedLayer*>> out;
  for (const auto& [path, module] : const_cast<Module&>(model).NamedModules()) {
    if (auto* layer = dynamic_cast<QuantizedLayer*>(module)) out.emplace_back(path, layer);
  }
  return out;
}

int64_t NumQuantizedWeights(const Module& model) {
  int64_t n = 0;
  for (const auto& [path, layer] : QuantizedLayers(model))
    n += layer->weight().logical_shape().numel();
  return n;
}

bool IsQuantizedWeight(const std::string& buffer) {
  return buffer.find(StrCat(".", kBuffer)) != buffer.npos;
}

void QuantizeLinear(Module& model, const std::string& path, const QuantizeOptions& options) {
  // An adapter comes before its base, which has the same path.
  LoraLinear* adapter = nullptr;
  LoraBranchLinear* branch_adapter = nullptr;
  for (const auto& [at, module] : model.NamedModules()) {
    if (at != path) continue;
    std::shared_ptr<Module> quantized;
    if (const auto* linear = dynamic_cast<const Linear*>(module)) {
      quantized = std::make_shared<QuantizedLinear>(*linear, options);
    } else if (const auto* branch = dynamic_cast<const BranchLinear*>(module)) {
      quantized = std::make_shared<QuantizedBranchLinear>(*branch, options);
    } else {
      if (auto* found = dynamic_cast<LoraLinear*>(module)) adapter = found;
      if (auto* found = dynamic_cast<LoraBranchLinear*>(module)) branch_adapter = found;
      continue;
    }
    if (adapter == nullptr && branch_adapter == nullptr) return model.ReplaceChild(path, quantized);
    adapter != nullptr ? adapter->base().Replace(quantized)
                       : branch_adapter->base().Replace(quantized);
    return;
  }
  throw ArgumentError(StrCat("QuantizeLinear: there is no linear layer at '", path, "'"));
}

}  // namespace lockstep::nn
