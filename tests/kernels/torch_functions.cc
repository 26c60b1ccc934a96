#include "tests/kernels/torch_functions.h"

#include <limits>
#include <span>

#include "core/io/json.h"
#include "lockstep/lockstep.h"

namespace lockstep::test {

bool TorchCall::Has(const char* key) const { return args.contains(key); }

double TorchCall::Number(const char* key) const {
  const Json& value = args.at(key);
  return value.is_string() ? std::stod(value.get<std::string>()) : value.get<double>();
}

int64_t TorchCall::Int(const char* key) const { return args.at(key).get<int64_t>(); }
bool TorchCall::Flag(const char* key) const { return Has(key) && args.at(key).get<bool>(); }
std::string TorchCall::Text(const char* key) const { return args.at(key).get<std::string>(); }

std::vector<int64_t> TorchCall::Ints(const char* key) const {
  if (!Has(key)) return {};
  if (args.at(key).is_number()) return {Int(key)};
  return args.at(key).get<std::vector<int64_t>>();
}

std::vector<int> TorchCall::Dims(const char* key) const {
  const std::vector<int64_t> dims = Ints(key);
  return {dims.begin(), dims.end()};
}

Shape TorchCall::Sizes(const char* key) const { return Shape(std::span<const int64_t>(Ints(key))); }

namespace {

using Call = TorchCall;
using Tensors = std::vector<Tensor>;

int Dim(const Call& c, const char* key = "dim") { return static_cast<int>(c.Int(key)); }

Size2 TwoSizes(const Call& c, const char* key) {
  const std::vector<int64_t> sizes = c.Ints(key);
  return {sizes.at(0), sizes.at(1)};
}

DType DTypeNamed(const Call& c) {
  const std::string name = c.Text("dtype");
  if (name == "int64") return DType::kI64;
  if (name == "int32") return DType::kI32;
  if (name == "bool") return DType::kBool;
  return c.dtype;
}

Reduction ReductionNamed(const Call& c) {
  const std::string name = c.Text("reduction");
  return name == "none" ? Reduction::kNone : name == "sum" ? Reduction::kSum : Reduction::kMean;
}

TorchFunction Unary(Tensor (*f)(const Tensor&)) {
  return [f](const Call& c) { return Tensors{f(c.x.at(0))}; };
}

TorchFunction Pair(Tensor (*f)(const Tensor&, const Tensor&)) {
  return [f](const Call& c) { return Tensors{f(c.x.at(0), c.x.at(1))}; };
}

// Of two tensors, a tensor and a number ("other"), or a number ("self") and a tensor.
template <class F>
TorchFunction Binary(const F& f) {
  return [f](const Call& c) {
    const Tensor& x = c.x.at(0);
    if (c.Has("self")) return Tensors{f(c.Number("self"), x)};
    return Tensors{c.Has("other") ? f(x, c.Number("other")) : f(x, c.x.at(1))};
  };
}

// Of two tensors, or a tensor and a number ("other").
TorchFunction WithOther(Tensor (*tensors)(const Tensor&, const Tensor&),
                        Tensor (*number)(const Tensor&, double)) {
  return [=](const Call& c) {
    const Tensor& x = c.x.at(0);
    return Tensors{c.Has("other") ? number(x, c.Number("other")) : tensors(x, c.x.at(1))};
  };
}

TorchFunction Reduced(Tensor (*f)(const Tensor&, const ops::Dims&, bool)) {
  return [f](const Call& c) { return Tensors{f(c.x.at(0), c.Dims(), c.Flag("keepdim"))}; };
}

TorchFunction Spread(Tensor (*f)(const Tensor&, const ops::Dims&, int, bool)) {
  return [f](const Call& c) {
    return Tensors{f(c.x.at(0), c.Dims(), Dim(c, "correction"), c.Flag("keepdim"))};
  };
}

// torch.max and torch.min of one dimension: values and where they are.
TorchFunction ExtremeOf(Tensor (*value)(const Tensor&, const ops::Dims&, bool),
                        Tensor (*index)(const Tensor&, const ops::Dims&, bool)) {
  return [=](const Call& c) {
    const bool keep = c.Flag("keepdim");
    return Tensors{value(c.x.at(0), c.Dims(), keep), index(c.x.at(0), c.Dims(), keep)};
  };
}

Tensors Both(ops::ValuesAndIndices pair) { return {pair.values, pair.indices}; }

TorchFunction Loss(Tensor (*f)(const Tensor&, const Tensor&, Reduction)) {
  return [f](const Call& c) { return Tensors{f(c.x.at(0), c.x.at(1), ReductionNamed(c))}; };
}

// Classes as targets.
template <class F>
TorchFunction ClassLoss(const F& f) {
  return [f](const Call& c) {
    if (!c.Has("ignore_index")) return Tensors{f(c.x.at(0), c.x.at(1), ReductionNamed(c))};
    return Tensors{f(c.x.at(0), c.x.at(1), ReductionNamed(c), c.Int("ignore_index"))};
  };
}

Tensor Clamp(const Call& c) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double low = c.Has("min") ? c.Number("min") : -kInfinity;
  return ops::Clamp(c.x.at(0), low, c.Has("max") ? c.Number("max") : kInfinity);
}

Tensor Gelu(const Call& c) {
  if (!c.Has("approximate")) return ops::Gelu(c.x.at(0));
  return ops::Gelu(c.x.at(0), c.Text("approximate") == "tanh" ? GeluForm::kTanh : GeluForm::kExact);
}

Tensor Pow(const Call& c) {
  if (c.Has("self")) return ops::Pow(c.Number("self"), c.x.at(0));
  if (c.Has("exponent")) return ops::Pow(c.x.at(0), c.Number("exponent"));
  return ops::Pow(c.x.at(0), c.x.at(1));
}

// torch's pairs begin at the last dimension.
Tensor Pad(const Call& c) {
  const Tensor& x = c.x.at(0);
  const std::vector<int64_t> pad = c.Ints("pad");
  std::vector<std::pair<int64_t, int64_t>> margins(static_cast<size_t>(x.ndim()));
  for (size_t i = 0; 2 * i < pad.size(); ++i) {
    margins.at(margins.size() - 1 - i) = {pad.at(2 * i), pad.at(2 * i + 1)};
  }
  return ops::Pad(x, margins, c.Number("value"));
}

Tensor Arange(const Call& c) {
  return ops::Arange(c.Number("start"), c.Number("end"), c.Number("step"), DTypeNamed(c));
}

Tensor LayerNorm(const Call& c) {
  return ops::LayerNorm(c.x.at(0), c.x.at(1), c.Optional(2), c.Number("eps"));
}

Tensor RmsNorm(const Call& c) {
  if (!c.Has("eps")) return ops::RmsNorm(c.x.at(0), c.x.at(1));
  return ops::RmsNorm(c.x.at(0), c.x.at(1), c.Number("eps"));
}

Tensor Conv2d(const Call& c) {
  return ops::Conv2d(c.x.at(0), c.x.at(1), c.Optional(2),
                     {.stride = TwoSizes(c, "stride"),
                      .padding = TwoSizes(c, "padding"),
                      .dilation = TwoSizes(c, "dilation"),
                      .groups = c.Int("groups")});
}

Tensor MaxPool2d(const Call& c) {
  return ops::MaxPool2d(c.x.at(0), {.kernel = TwoSizes(c, "kernel_size"),
                                    .stride = TwoSizes(c, "stride"),
                                    .padding = TwoSizes(c, "padding"),
                                    .dilation = TwoSizes(c, "dilation"),
                                    .ceil_mode = c.Flag("ceil_mode")});
}

Tensor AvgPool2d(const Call& c) {
  return ops::AvgPool2d(c.x.at(0), {.kernel = TwoSizes(c, "kernel_size"),
                                    .stride = TwoSizes(c, "stride"),
                                    .padding = TwoSizes(c, "padding"),
                                    .ceil_mode = c.Flag("ceil_mode"),
                                    .count_include_pad = c.Flag("count_include_pad")});
}

// x, running mean, running variance, weight and bias; the statistics as they are afterwards.
Tensors BatchNorm(const Call& c) {
  const Tensor mean = c.x.at(1).Clone(), var = c.x.at(2).Clone();
  const Tensor y = ops::BatchNorm(c.x.at(0), c.Optional(3), c.Optional(4), {mean, var, {}},
                                  {.training = c.Flag("training"),
                                   .eps = c.Number("eps"),
                                   .momentum = c.Number("momentum"),
                                   .exchange = {}});
  return {y, mean, var};
}

// torch has the heads before the positions.
Tensor Attention(const Call& c) {
  const auto swapped = [](const Tensor& x) { return x.Transpose(1, 2); };
  ops::AttentionOptions options;
  options.mask = c.Optional(3);
  options.causal = c.Flag("is_causal");
  if (c.Has("scale")) options.scale = c.Number("scale");
  return swapped(
      ops::Attention(swapped(c.x.at(0)), swapped(c.x.at(1)), swapped(c.x.at(2)), options));
}

// A function of one call that gives one tensor.
TorchFunction One(Tensor (*f)(const Call&)) {
  return [f](const Call& c) { return Tensors{f(c)}; };
}

}  // namespace

const std::map<std::string, TorchFunction>& TorchFunctions() {
  static const std::map<std::string, TorchFunction> functions = {
      {"torch.abs", Unary(ops::Abs)},
      {"torch.ceil", Unary(ops::Ceil)},
      {"torch.cos", Unary(ops::Cos)},
      {"torch.erf", Unary(ops::Erf)},
      {"torch.exp", Unary(ops::Exp)},
      {"torch.expm1", Unary(ops::Expm1)},
      {"torch.floor", Unary(ops::Floor)},
      {"torch.neg", One([](const Call& c) { return -c.x.at(0); })},
      {"torch.round", Unary(ops::Round)},
      {"torch.sigmoid", Unary(ops::Sigmoid)},
      {"torch.sign", Unary(ops::Sign)},
      {"torch.sin", Unary(ops::Sin)},
      {"torch.square", Unary(ops::Square)},
      {"torch.tanh", Unary(ops::Tanh)},
      {"torch.isfinite", Unary(ops::IsFinite)},
      {"torch.isnan", Unary(ops::IsNan)},
      {"torch.sqrt", Unary(ops::Sqrt)},
      {"torch.rsqrt", Unary(ops::Rsqrt)},
      {"torch.log", Unary(ops::Log)},
      {"torch.log1p", Unary(ops::Log1p)},
      {"torch.reciprocal", Unary(ops::Reciprocal)},
      {"torch.nn.functional.relu", Unary(ops::Relu)},
      {"torch.nn.functional.silu", Unary(ops::Silu)},
      {"torch.nn.functional.softplus", Unary(ops::Softplus)},
      {"torch.nn.functional.gelu", One(Gelu)},
      {"torch.nn.functional.elu", One([](const Call& c) {
         return c.Has("alpha") ? ops::Elu(c.x.at(0), c.Number("alpha")) : ops::Elu(c.x.at(0));
       })},
      {"torch.nn.functional.leaky_relu", One([](const Call& c) {
         if (!c.Has("negative_slope")) return ops::LeakyRelu(c.x.at(0));
         return ops::LeakyRelu(c.x.at(0), c.Number("negative_slope"));
       })},
      {"torch.clamp", One(Clamp)},
      {"torch.pow", One(Pow)},
      {"torch.add", Binary([](const auto& a, const auto& b) { return a + b; })},
      {"torch.sub", Binary([](const auto& a, const auto& b) { return a - b; })},
      {"torch.mul", Binary([](const auto& a, const auto& b) { return a * b; })},
      {"torch.div", Binary([](const auto& a, const auto& b) { return a / b; })},
      {"torch.maximum", WithOther(ops::Maximum, ops::Maximum)},
      {"torch.minimum", WithOther(ops::Minimum, ops::Minimum)},
      {"torch.eq", WithOther(ops::Equal, ops::Equal)},
      {"torch.ne", WithOther(ops::NotEqual, ops::NotEqual)},
      {"torch.lt", WithOther(ops::Less, ops::Less)},
      {"torch.le", WithOther(ops::LessEqual, ops::LessEqual)},
      {"torch.gt", WithOther(ops::Greater, ops::Greater)},
      {"torch.ge", WithOther(ops::GreaterEqual, ops::GreaterEqual)},
      {"torch.logical_and", Pair(ops::LogicalAnd)},
      {"torch.logical_or", Pair(ops::LogicalOr)},
      {"torch.logical_not", Unary(ops::LogicalNot)},
      {"torch.where", One([](const Call& c) {
         if (c.Has("other")) return ops::Where(c.x.at(0), c.x.at(1), c.Number("other"));
         return ops::Where(c.x.at(0), c.x.at(1), c.x.at(2));
       })},
      {"torch.Tensor.to", One([](const Call& c) { return c.x.at(0).To(DTypeNamed(c)); })},

      {"torch.sum", Reduced(ops::Sum)},
      {"torch.mean", Reduced(ops::Mean)},
      {"torch.logsumexp", Reduced(ops::LogSumExp)},
      {"torch.prod", Reduced(ops::Prod)},
      {"torch.any", Reduced(ops::Any)},
      {"torch.all", Reduced(ops::All)},
      {"torch.amax", Reduced(ops::Max)},
      {"torch.amin", Reduced(ops::Min)},
      {"torch.argmax", Reduced(ops::ArgMax)},
      {"torch.argmin", Reduced(ops::ArgMin)},
      {"torch.max", ExtremeOf(ops::Max, ops::ArgMax)},
      {"torch.min", ExtremeOf(ops::Min, ops::ArgMin)},
      {"torch.var", Spread(ops::Var)},
      {"torch.std", Spread(ops::Std)},
      {"torch.linalg.vector_norm", One([](const Call& c) {
         return ops::Norm(c.x.at(0), c.Number("ord"), c.Dims(), c.Flag("keepdim"));
       })},
      {"torch.cumsum", One([](const Call& c) { return ops::CumSum(c.x.at(0), Dim(c)); })},
      {"torch.topk",
       [](const Call& c) {
         const bool largest = !c.Has("largest") || c.Flag("largest");
         return Both(ops::TopK(c.x.at(0), c.Int("k"), Dim(c), largest));
       }},
      {"torch.sort",
       [](const Call& c) { return Both(ops::Sort(c.x.at(0), Dim(c), c.Flag("descending"))); }},

      {"torch.index_select",
       One([](const Call& c) { return ops::IndexSelect(c.x.at(0), Dim(c), c.x.at(1)); })},
      {"torch.gather",
       One([](const Call& c) { return ops::Gather(c.x.at(0), Dim(c), c.x.at(1)); })},
      {"torch.scatter",
       One([](const Call& c) { return ops::Scatter(c.x.at(0), Dim(c), c.x.at(1), c.x.at(2)); })},
      {"torch.scatter_add",
       One([](const Call& c) { return ops::ScatterAdd(c.x.at(0), Dim(c), c.x.at(1), c.x.at(2)); })},
      {"torch.nn.functional.one_hot", One([](const Call& c) {
         return ops::OneHot(c.x.at(0), c.Int("num_classes"), DType::kI64);
       })},
      {"torch.nn.functional.embedding", Pair(ops::Embedding)},

      {"torch.permute", One([](const Call& c) { return c.x.at(0).Permute(c.Dims("dims")); })},
      {"torch.transpose",
       One([](const Call& c) { return c.x.at(0).Transpose(Dim(c, "dim0"), Dim(c, "dim1")); })},
      {"torch.reshape", One([](const Call& c) { return c.x.at(0).Reshape(c.Sizes("shape")); })},
      {"torch.Tensor.expand", One([](const Call& c) { return c.x.at(0).Expand(c.Sizes("size")); })},
      {"torch.broadcast_to", One([](const Call& c) { return c.x.at(0).Expand(c.Sizes("size")); })},
      {"torch.unsqueeze", One([](const Call& c) { return c.x.at(0).Unsqueeze(Dim(c)); })},
      {"torch.squeeze", One([](const Call& c) { return c.x.at(0).Squeeze(Dim(c)); })},
      {"torch.narrow", One([](const Call& c) {
         return c.x.at(0).Slice(Dim(c), c.Int("start"), c.Int("start") + c.Int("length"));
       })},
      {"torch.split",
       [](const Call& c) { return c.x.at(0).Split(c.Ints("split_size_or_sections"), Dim(c)); }},
      {"torch.chunk", [](const Call& c) { return c.x.at(0).Chunk(c.Int("chunks"), Dim(c)); }},
      {"torch.tril", One([](const Call& c) { return ops::Tril(c.x.at(0), c.Int("diagonal")); })},
      {"torch.triu", One([](const Call& c) { return ops::Triu(c.x.at(0), c.Int("diagonal")); })},
      {"torch.cat", One([](const Call& c) { return ops::Concat(c.x, Dim(c)); })},
      {"torch.stack", One([](const Call& c) { return ops::Stack(c.x, Dim(c)); })},
      {"torch.nn.functional.pad", One(Pad)},
      {"torch.arange", One(Arange)},
      {"torch.linspace", One([](const Call& c) {
         return ops::Linspace(c.Number("start"), c.Number("end"), c.Int("steps"), c.dtype);
       })},
      {"torch.eye", One([](const Call& c) { return ops::Eye(c.Int("n"), c.dtype); })},
      {"torch.full", One([](const Call& c) {
         return Tensor::Full(c.Sizes("size"), c.Number("fill_value"), c.dtype);
       })},

      {"torch.matmul", Pair(ops::MatMul)},
      {"torch.nn.functional.linear",
       One([](const Call& c) { return ops::Linear(c.x.at(0), c.x.at(1), c.Optional(2)); })},
      {"torch.nn.functional.mse_loss", Loss(ops::MseLoss)},
      {"torch.nn.functional.l1_loss", Loss(ops::L1Loss)},
      {"torch.nn.functional.binary_cross_entropy_with_logits", Loss(ops::BceWithLogits)},
      {"torch.nn.functional.nll_loss",
       ClassLoss([](const auto&... a) { return ops::NllLoss(a...); })},
      {"torch.nn.functional.cross_entropy",
       ClassLoss([](const auto&... a) { return ops::SoftmaxCrossEntropy(a...); })},
      {"torch.softmax", Unary(ops::Softmax)},
      {"torch.log_softmax", Unary(ops::LogSoftmax)},
      {"torch.nn.functional.layer_norm", One(LayerNorm)},
      {"torch.nn.functional.rms_norm", One(RmsNorm)},
      {"torch.nn.functional.conv2d", One(Conv2d)},
      {"torch.nn.functional.max_pool2d", One(MaxPool2d)},
      {"torch.nn.functional.avg_pool2d", One(AvgPool2d)},
      {"torch.nn.functional.adaptive_avg_pool2d", One([](const Call& c) {
         return ops::AdaptiveAvgPool2d(c.x.at(0), TwoSizes(c, "output_size"));
       })},
      {"torch.nn.functional.batch_norm", BatchNorm},
      {"torch.nn.functional.scaled_dot_product_attention", One(Attention)},
  };
  return functions;
}

}  // namespace lockstep::test
