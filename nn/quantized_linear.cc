#include "nn/quantized_linear.h"

#include <numeric>

#include "kernels/gelu/gelu.h"

namespace lockstep::nn {

template <class Interface>
QuantizedWeight<Interface>::QuantizedWeight(const std::shared_ptr<Parameter>& weight,
                                            const std::shared_ptr<Parameter>& bias,
                                            const QuantizeOptions& options)
    : double_quantized_(options.double_quantized), bias_(bias) {
  const int64_t out = weight->logical_shape()[0], in = weight->logical_shape()[1];
  const std::vector<int64_t> rows = options.rows.empty() ? std::vector{out} : options.rows;
  LS_CHECK(std::accumulate(rows.begin(), rows.end(), int64_t{0}) == out,
           "QuantizedLinear: the matrices of a weight of shape ", weight->logical_shape(),
           " must have ", out, " rows together");
  LS_CHECK(weight->layout().is_whole(),
           "QuantizedLinear: a weight that ranks share out cannot be quantised: quantise first");
  const Tensor value = weight->value().Detach();
  int64_t begin = 0;
  for (int64_t n : rows) {
    shapes_.push_back({n, in});
    const Nf4Matrix empty = Nf4Matrix::Empty(shapes_.back(), double_quantized_, kMeta);
    // One zero, repeated: what Materialize resets to takes no memory.
    const Tensor zeros = Tensor::Zeros({1}, DType::kU8).Expand(empty.data.shape());
    data_.push_back(&this->AddBuffer(StrCat("weight.nf4.", data_.size()), zeros));
    if (value.defined()) {
      *data_.back() = ops::Nf4Quantize(value.Slice(0, begin, begin + n), double_quantized_).data;
    }
    begin += n;
  }
  if (bias) this->ShareParameter("bias", bias);
}

template <class Interface>
int64_t QuantizedWeight<Interface>::out_features() const {
  int64_t rows = 0;
  for (const Shape& shape : shapes_) rows += shape[0];
  return rows;
}

template <class Interface>
void QuantizedWeight<Interface>::SetMatrix(size_t i, const Nf4Matrix& matrix) {
  LS_CHECK(i < shapes_.size() && matrix.shape == shapes_[i] &&
               matrix.double_quantized == double_quantized_,
           "QuantizedLinear: matrix ", i, " cannot become one of shape ", matrix.shape,
           matrix.double_quantized ? ", double quantised" : ", with f32 scales");
  data_[i]->CopyFrom(matrix.data);
}

template <class Interface>
std::vector<Nf4Matrix> QuantizedWeight<Interface>::weight() const {
  std::vector<Nf4Matrix> out;
  for (size_t i = 0; i < shapes_.size(); ++i) out.push_back(matrix(i));
  return out;
}

template class QuantizedWeight<Layer>;
template class QuantizedWeight<BranchLayer>;

QuantizedLinear::QuantizedLinear(const Linear& linear, const QuantizeOptions& options)
    : QuantizedWeight(linear.weight(), linear.bias(), options), activation_(linear.activation()) {}

Tensor QuantizedLinear::Forward(const Tensor& x) {
  const Tensor y = ops::Nf4Linear(x, weight(), bias() ? bias()->value() : Tensor());
  return activation_ == Activation::kGelu ? ops::Gelu(y) : y;
}

QuantizedBranchLinear::QuantizedBranchLinear(const BranchLinear& linear,
                                             const QuantizeOptions& options)
    : QuantizedWeight(linear.weight(), linear.bias(), options) {}

ops::Branch QuantizedBranchLinear::Forward(ops::Branch x) {
  ops::Branch y = ops::Nf4Linear(ops::Complete(x), weight());
  if (bias()) y.bias = OpenBias(*bias());
  return y;
}

}  // namespace lockstep::nn
