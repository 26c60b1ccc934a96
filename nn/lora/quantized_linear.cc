#include "nn/lora/quantized_linear.h"

#include <cstring>
#include <numeric>

#include "core/autograd/saved_tensor.h"
#include "core/round_up.h"
#include "kernels/concat/concat.h"
#include "kernels/gelu/gelu.h"
#include "nn/lora/lora.h"

namespace lockstep::nn {
namespace {

constexpr char kCodes[] = "weight.nf4.";

// Frees what a parameter without memory counts as on the meta device, where memory is planned.
void Shrink(Parameter& p) {
  if (!p.device().is_meta()) return;
  const Tensor one = Tensor::Empty({1}, p.value().dtype(), kMeta);
  const Shape& shape = p.logical_shape();
  p.SetValue(one.View({1, 1}).Expand(shape));
}

// The values of some ranges of rows and some columns, as a matrix with f32 scales: each run of
// values is made of whole blocks.
Nf4Matrix Nf4Part(const Nf4Matrix& whole, const std::vector<std::pair<int64_t, int64_t>>& rows,
                  int64_t first_column, int64_t last_column) {
  const int64_t columns = last_column - first_column;
  std::vector<std::pair<int64_t, int64_t>> runs;  // of values: the first, and how many
  int64_t num_rows = 0;
  for (const auto& [begin, end] : rows) {
    num_rows += end - begin;
    if (columns == whole.columns()) {
      runs.emplace_back(begin * columns, (end - begin) * columns);
      continue;
    }
    for (int64_t r = begin; r < end; ++r) {
      runs.emplace_back(r * whole.columns() + first_column, columns);
    }
  }
  Nf4Matrix part = Nf4Matrix::Empty({num_rows, columns}, /*double_quantized=*/false);
  const Nf4Matrix::Layout from = whole.layout(), to = part.layout();
  const Tensor host = whole.data.To(kCpu);
  const auto* const data = static_cast<const std::byte*>(host.raw_data());
  auto* const out = static_cast<std::byte*>(part.data.raw_data());
  std::memset(out, 0, static_cast<size_t>(to.codes));
  const auto f32 = [&](int64_t at, int64_t i) {
    return reinterpret_cast<const float*>(data + at)[i];
  };
  auto* scale = reinterpret_cast<float*>(out + to.scales);
  std::byte* codes = out + to.codes;
  for (const auto& [first, count] : runs) {
    for (int64_t b = first / kNf4Block; b < (first + count) / kNf4Block; ++b) {
      if (!whole.double_quantized) {
        *scale++ = f32(from.scales, b);
        continue;
      }
      const auto q = static_cast<int64_t>(data[from.scales + b]);
      *scale++ = f32(from.map, q) * f32(from.group_scales, b / kNf4Group) + f32(from.offset, 0);
    }
    codes = std::copy_n(data + from.codes + first / 2, count / 2, codes);
  }
  return part;
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
  MakeCodes();
  Shrink(*weight_);
  Shrink(weight);
}

QuantizedLayer::QuantizedLayer(const QuantizedLayer& whole, const QuantizedCut& cut)
    : weight_(whole.weight_),
      double_quantized_(whole.double_quantized_),
      shapes_(whole.shapes_),
      cut_(cut) {
  for (const auto& codes : whole.codes_) {
    LS_CHECK(codes->value().device().is_meta(), "QuantizedLinear: '", codes->name(),
             "' has memory already: split a model across ranks before Materialize");
  }
  if (cut_.segments.empty()) cut_.segments.push_back(out_features());
  MakeCodes();
}

// Bytes are no numbers to train, and keep their type whatever the model's is.
void QuantizedLayer::MakeCodes() {
  for (size_t i = 0; i < shapes_.size(); ++i) {
    auto codes = std::make_shared<Parameter>(Shape({cut_.parts * PartBytes(i)}), Initializer(),
                                             /*decay=*/false);
    codes->Materialize(kMeta, DType::kU8, std::nullopt);
    codes->SetTrainable(false);
    codes_.push_back(std::move(codes));
  }
}

void QuantizedLayer::Quantize(const Parameter& weight) {
  const Tensor value = weight.value().Detach();
  if (value.device().is_meta()) return;
  int64_t begin = 0;
  for (size_t i = 0; i < shapes_.size(); ++i) {
    const int64_t end = begin + shapes_[i][0];
    codes_[i]->Materialize(value.device(), DType::kU8, std::nullopt);
    SetMatrix(i, ops::Nf4Quantize(value.Slice(0, begin, end), double_quantized_));
    begin = end;
  }
}

// The rows of a matrix that are in a part, as ranges. Each segment is within one matrix, so that
// all parts have equally many.
std::vector<std::pair<int64_t, int64_t>> QuantizedLayer::RowsOf(size_t i, int64_t part) const {
  const int64_t rows = shapes_[i][0];
  if (cut_.dim == 1 || cut_.parts == 1) return {{0, rows}};
  int64_t first = 0, begin = 0;  // of the matrix, and of the segment
  for (size_t j = 0; j < i; ++j) first += shapes_[j][0];
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const int64_t size : cut_.segments) {
    if (begin >= first && begin < first + rows) {
      LS_CHECK(begin + size <= first + rows && size % cut_.parts == 0, "a segment of ", size,
               " rows of the quantised weight '", weight_->name(), "', ", weight_->logical_shape(),
               ", cannot be cut into ", cut_.parts, " parts within a matrix of ", rows);
      const int64_t own = size / cut_.parts, at = begin - first + part * own;
      ranges.emplace_back(at, at + own);
    }
    begin += size;
  }
  return ranges;
}

Shape QuantizedLayer::PartShape(size_t i) const {
  int64_t rows = 0;
  for (const auto& [begin, end] : RowsOf(i, 0)) {
    rows += end - begin;
    const int64_t run = cut_.dim == 1 ? in_features() / cut_.parts : (end - begin) * in_features();
    LS_CHECK(cut_.parts == 1 || run % kNf4Block == 0, "a quantised weight of shape ",
             weight_->logical_shape(), " cannot be cut by its ", cut_.dim == 1 ? "columns" : "rows",
             " into ", cut_.parts, " parts, which would begin within a block of ", kNf4Block,
             " values that share a scale: use fewer tensor-parallel ranks (parallel.tp), or "
             "parallel.shard, which divides such weights across any ranks");
  }
  return {rows, in_features() / (cut_.dim == 1 ? cut_.parts : 1)};
}

int64_t QuantizedLayer::PartBytes(size_t i) const {
  constexpr int64_t kAlignment = 128;  // of the next part, and of ranges that ranks take
  const Nf4Matrix part{PartShape(i), double_quantized_ && cut_.parts == 1, {}};
  return RoundUp(part.layout().bytes, kAlignment * cut_.multiple);
}

Nf4Matrix QuantizedLayer::PartOf(size_t i, const Nf4Matrix& whole, int64_t part) const {
  if (cut_.parts == 1) return whole;
  const int64_t columns = PartShape(i)[1], first = cut_.dim == 1 ? part * columns : 0;
  return Nf4Part(whole, RowsOf(i, part), first, first + columns);
}

Nf4Matrix QuantizedLayer::matrix(size_t i) const {
  Nf4Matrix m{PartShape(i), double_quantized_ && cut_.parts == 1, {}};
  m.data = codes_[i]->value().Detach().Slice(0, 0, m.layout().bytes);
  return m;
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
  const Tensor parts = Tensor::Zeros(codes_[i]->logical_shape(), DType::kU8);
  const int64_t bytes = PartBytes(i);
  for (int64_t part = 0; part < cut_.parts; ++part) {
    const Tensor data = PartOf(i, matrix, part).data;
    parts.Slice(0, part * bytes, part * bytes + data.numel()).CopyFrom(data);
  }
  codes_[i]->part().Detach().CopyFrom(codes_[i]->PartOf(parts));
}

Tensor QuantizedLayer::ByChunks(const Tensor& x,
                                const std::function<Tensor(const Tensor& chunk)>& product) const {
  if (chunks_ == 1 || !GradEnabled()) return product(x);
  std::vector<Tensor> products;
  for (const Tensor& chunk : x.Chunk(chunks_, 0)) products.push_back(product(chunk));
  return ops::Concat(products);
}

Tensor WithDequantized(const QuantizedLayer& layer, DType dtype,
                       const std::function<Tensor(const Tensor& weight)>& f) {
  const std::vector<Nf4Matrix> matrices = layer.matrices();
  const auto dequantize = [dtype](std::span<const Nf4Matrix> from) {
    int64_t rows = 0, at = 0;
    for (const Nf4Matrix& m : from) rows += m.rows();
    const Device device = from[0].data.device();
    const Tensor all = Tensor::Empty({rows, from[0].columns()}, dtype, device);
    for (const Nf4Matrix& m : from) {
      nf4_dequantize(CurrentStream(device), {m, 0, 0, all.Slice(0, at, at + m.rows())});
      at += m.rows();
    }
    return all;
  };
  const Tensor weight = dequantize(matrices);
  struct Packed {
    std::vector<Nf4Matrix> matrices;  // but for their data
    std::vector<SavedTensor> data;    // of the matrices, or the saved tensor itself
  };
  const SavedTensorHooks hooks(
      [&](const Tensor& saved, const char* what) {
        Packed packed;
        if (!saved.storage().SameBlock(weight.storage())) {
          packed.data.emplace_back(saved, what);
          return std::any(std::move(packed));
        }
        packed.matrices = matrices;
        for (Nf4Matrix& m : packed.matrices) {
          packed.data.emplace_back(std::exchange(m.data, Tensor()), "a 4-bit weight");
        }
        return std::any(std::move(packed));
      },
      [dequantize](const std::any& any) {
        const auto& packed = std::any_cast<const Packed&>(any);
        if (packed.matrices.empty()) return packed.data[0].Unpack();
        std::vector<Nf4Matrix> matrices = packed.matrices;
        for (size_t i = 0; i < matrices.size(); ++i) matrices[i].data = packed.data[i].Unpack();
        return dequantize(matrices);
      });
  return f(weight);
}

template <class Interface>
QuantizedWeight<Interface>::QuantizedWeight(Parameter& weight,
                                            const std::shared_ptr<Parameter>& bias,
                                            const QuantizeOptions& options)
    : QuantizedLayer(weight, options), bias_(bias) {
  ShareParameters();
  Quantize(weight);
}

template <class Interface>
QuantizedWeight<Interface>::QuantizedWeight(const QuantizedWeight& whole, const QuantizedCut& cut)
    : QuantizedLayer(whole, cut), bias_(whole.bias_) {
  ShareParameters();
}

template <class Interface>
void QuantizedWeight<Interface>::ShareParameters() {
  for (size_t i = 0; i < codes().size(); ++i) {
    this->ShareParameter(StrCat(kCodes, i), codes()[i]);
  }
  if (bias_) this->ShareParameter("bias", bias_);
}

template class QuantizedWeight<Layer>;
template class QuantizedWeight<BranchLayer>;

QuantizedLinear::QuantizedLinear(const Linear& linear, const QuantizeOptions& options)
    : QuantizedWeight(*linear.weight(), linear.bias(), options), activation_(linear.activation()) {}

Tensor QuantizedLinear::Forward(const Tensor& x) {
  const Tensor y = ByChunks(x, [&](const Tensor& chunk) {
    return ops::Nf4Linear(chunk, matrices(), bias() ? bias()->value() : Tensor());
  });
  return activation_ == Activation::kGelu ? ops::Gelu(y) : y;
}

QuantizedBranchLinear::QuantizedBranchLinear(const BranchLinear& linear,
                                             const QuantizeOptions& options)
    : QuantizedWeight(*linear.weight(), linear.bias(), options) {}

ops::Branch QuantizedBranchLinear::Forward(ops::Branch x) {
  ops::Branch y = ByChunks(ops::Complete(x),
                           [&](const Tensor& chunk) { return ops::Nf4Linear(chunk, matrices()); });
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

bool IsQuantizedWeight(std::string_view parameter) {
  return parameter.find(StrCat(".", kCodes)) != parameter.npos;
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
