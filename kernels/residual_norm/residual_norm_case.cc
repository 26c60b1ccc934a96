#include "core/philox.h"
#include "kernels/dropout/dropout_mask.h"
#include "kernels/op_case/references.h"
#include "kernels/residual_norm/residual_norm.h"

namespace lockstep {
namespace {

constexpr double kEps = 1e-5;
constexpr uint64_t kSeed = 1337, kSite = HashName("h.0.mlp.dropout");
constexpr int64_t kStep = 12;

std::vector<RefTensor> Reference(NormKind kind, RefSpan in) {
  RefTensor sum = in[0];
  for (size_t i = 0; i < sum.data.size(); ++i) sum.data[i] += in[1].data[i];
  return {sum, NormReference(kind == NormKind::kLayerNorm, sum, in[2],
                             in.size() > 3 ? &in[3] : nullptr, kEps)};
}

OpSample Sample(NormKind kind, const std::string& name, const InputSpec& x, bool bias = true) {
  const Shape c = {x.shape[-1]};
  OpSample s;
  s.name = StrCat(kind == NormKind::kLayerNorm ? "layer_" : "rms_", name);
  s.inputs = {x, x, {.shape = c, .low = 0.5, .high = 1.5}};
  if (bias && kind == NormKind::kLayerNorm) s.inputs.push_back({.shape = c});
  s.run = [kind](TensorSpan in) {
    const auto [sum, y] =
        ops::ResidualNorm(kind, in[0], in[1], in[2], in.size() > 3 ? in[3] : Tensor(), kEps);
    return std::vector{sum, y};
  };
  s.reference = [kind](RefSpan in) { return Reference(kind, in); };
  return s;
}

// What a branch leaves open. The last input is its bias, if it has one.
struct Open {
  bool bias = false;
  double dropout = 0;
  int64_t first_sample = 0;
};

OpSample OpenSample(NormKind kind, const std::string& name, const InputSpec& x, const Open& open) {
  OpSample s = Sample(kind, name, x);
  if (open.bias) s.inputs.push_back({.shape = {x.shape[-1]}, .low = -2, .high = 2});
  s.run = [=](TensorSpan in) {
    StepState state(in[0].device(), kSeed);
    state.Begin(kStep, 0);
    state.SetFirstSample(open.first_sample);
    const TrainingScope scope(state);
    ops::Branch branch = in[1];
    if (open.bias) branch.bias = in.back();
    branch.dropout = open.dropout;
    branch.site = kSite;
    const Tensor bias = kind == NormKind::kLayerNorm ? in[3] : Tensor();
    const auto [sum, y] = ops::ResidualNorm(kind, in[0], branch, in[2], bias, kEps);
    return std::vector{sum, y};
  };
  s.reference = [=](RefSpan in) {
    std::vector<RefTensor> complete(in.begin(), in.end());
    std::vector<double>& branch = complete[1].data;
    const int64_t c = in[0].shape[-1], samples = in[0].shape.ndim() > 1 ? in[0].shape[0] : 1;
    for (size_t i = 0; i < branch.size(); ++i) {
      if (open.bias) branch[i] += in.back().data[i % static_cast<size_t>(c)];
      const uint64_t place =
          static_cast<uint64_t>(open.first_sample) * (branch.size() / samples) + i;
      const bool keep =
          ToUniform(Philox(kSeed).At(StepStream(kSite, kStep), place)) >= open.dropout;
      branch[i] = keep ? branch[i] / (1 - open.dropout) : 0;
    }
    if (open.bias) complete.pop_back();
    return Reference(kind, complete);
  };
  return s;
}

// Only the norm of the sum is used: the gradient of the sum itself is zero.
OpSample NormOnly(NormKind kind) {
  OpSample s = Sample(kind, "norm_only", {.shape = {3, 7}});
  s.run = [kind](TensorSpan in) {
    const Tensor bias = in.size() > 3 ? in[3] : Tensor();
    return ops::ResidualNorm(kind, in[0], in[1], in[2], bias, kEps).second;
  };
  s.reference = [kind](RefSpan in) { return Reference(kind, in)[1]; };
  return s;
}

// An RMS norm's sample without its weight, input 2.
OpSample WithoutWeight(OpSample s) {
  const Shape c = s.inputs[2].shape;
  s.name += "_without_weight";
  s.inputs.erase(s.inputs.begin() + 2);
  s.run = [run = s.run](TensorSpan in) {
    std::vector<Tensor> all(in.begin(), in.end());
    all.insert(all.begin() + 2, Tensor());
    return run(all);
  };
  s.reference = [c, reference = s.reference](RefSpan in) {
    RefTensor ones(c);
    ones.data.assign(ones.data.size(), 1);
    std::vector<RefTensor> all(in.begin(), in.end());
    all.insert(all.begin() + 2, ones);
    return reference(all);
  };
  return s;
}

// The gradient reaches x through both inputs.
OpSample SameTwice(NormKind kind) {
  OpSample s = Sample(kind, "same_twice", {.shape = {5, 6}});
  s.run = [kind](TensorSpan in) {
    const Tensor bias = in.size() > 3 ? in[3] : Tensor();
    const auto [a, b] = ops::ResidualNorm(kind, in[0], in[0], in[2], bias, kEps);
    const auto [sum, y] = ops::ResidualNorm(kind, a, in[1], in[2], bias, kEps);
    return std::vector{sum, y, b};
  };
  s.reference = [kind](RefSpan in) {
    std::vector<RefTensor> first(in.begin(), in.end()), second = first;
    first[1] = in[0];
    const std::vector<RefTensor> inner = Reference(kind, first);
    second[0] = inner[0];
    std::vector<RefTensor> out = Reference(kind, second);
    out.push_back(inner[1]);
    return out;
  };
  return s;
}

void AddOpen(NormKind kind, std::vector<OpSample>& samples) {
  const InputSpec odd{.shape = {3, 5, 37}}, strided{.shape = {6, 9}, .non_contiguous = true};
  const auto add = [&](const std::string& name, const InputSpec& x, const Open& open) {
    samples.push_back(OpenSample(kind, name, x, open));
  };
  add("branch_bias", odd, {.bias = true});
  add("dropout", odd, {.dropout = 0.2});
  add("branch_bias_dropout", odd, {.bias = true, .dropout = 0.5});
  add("branch_bias_dropout_empty", {.shape = {0, 5}}, {.bias = true, .dropout = 0.5});
  add("branch_bias_dropout_of_one_row", {.shape = {24}}, {.bias = true, .dropout = 0.25});
  add("branch_bias_dropout_strided", strided, {.bias = true, .dropout = 0.5});
  add("branch_bias_many_row_blocks", {.shape = {1100, 16}}, {.bias = true});
  add("dropout_many_row_blocks", {.shape = {2, 550, 16}}, {.bias = true, .dropout = 0.1});
  add("dropout_from_sample_5", {.shape = {2, 3, 1100}}, {.dropout = 0.5, .first_sample = 5});
  // CUDA's backward has blocks of up to 3, 7 and 16 warps, and several blocks for a longer row.
  for (const int64_t c : {600, 1608, 2056, 4120}) {
    OpSample s = OpenSample(kind, StrCat("dropout_of_", c, "_columns"), {.shape = {2, 10, c}},
                            {.bias = true, .dropout = 0.25});
    s.finite_differences = false;  // slow; the others have them
    samples.push_back(s);
  }
  OpSample mixed =
      OpenSample(kind, "branch_bias_of_f32", {.shape = {4, 24}}, {.bias = true, .dropout = 0.5});
  for (size_t i = 2; i < mixed.inputs.size(); ++i) mixed.inputs[i].dtype = DType::kF32;
  samples.push_back(mixed);
}

void AddBenchmarks(NormKind kind, std::vector<OpSample>& samples) {
  const InputSpec x{.shape = {8, 1024, 768}};
  constexpr double kSize = 8.0 * 1024 * 768;
  const auto add = [&](OpSample s, double backward_elements) {
    s.benchmark = {
        .flops = kSize * 9, .elements = kSize * 4, .backward_elements = kSize * backward_elements};
    samples.push_back(s);
  };
  add(Sample(kind, "gpt2", x), 4);
  add(OpenSample(kind, "gpt2_branch_bias", x, {.bias = true}), 4);
  add(OpenSample(kind, "gpt2_branch_bias_dropout", x, {.bias = true, .dropout = 0.1}), 5);
}

std::vector<OpSample> Samples() {
  std::vector<OpSample> samples;
  for (NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    samples.push_back(Sample(kind, "empty", {.shape = {0, 5}}));
    samples.push_back(Sample(kind, "one_element", {.shape = {1}, .low = 1, .high = 2}));
    samples.push_back(Sample(kind, "odd", {.shape = {3, 5, 37}}));
    samples.push_back(Sample(kind, "many_row_blocks", {.shape = {1100, 17}}));
    samples.push_back(Sample(kind, "strided", {.shape = {6, 9}, .non_contiguous = true}));
    samples.push_back(NormOnly(kind));
    samples.push_back(SameTwice(kind));
    OpSample mixed = Sample(kind, "weights_of_f32", {.shape = {4, 24}});
    for (size_t i = 2; i < mixed.inputs.size(); ++i) mixed.inputs[i].dtype = DType::kF32;
    samples.push_back(mixed);
    AddOpen(kind, samples);
    AddBenchmarks(kind, samples);
  }
  samples.push_back(Sample(NormKind::kLayerNorm, "no_bias", {.shape = {4, 16}}, false));
  const Open open{.bias = true, .dropout = 0.5};
  for (const Shape& shape : {Shape({0, 5}), Shape({3, 5, 37}), Shape({2, 10, 264})}) {
    samples.push_back(WithoutWeight(
        OpenSample(NormKind::kRmsNorm, StrCat("open_", shape.numel()), {.shape = shape}, open)));
  }
  samples.push_back(WithoutWeight(Sample(NormKind::kRmsNorm, "complete", {.shape = {1100, 17}})));
  return samples;
}

std::vector<ErrorSample> Errors() {
  constexpr NormKind kLayer = NormKind::kLayerNorm, kRms = NormKind::kRmsNorm;
  return {{"integers",
           [](Device d) {
             const Tensor x = Zeros(DType::kI32, d, 2, 3);
             ops::ResidualNorm(kLayer, x, x, Zeros(d, 3));
           },
           "residual_norm: x must be a floating [..., C] with C > 0, got i32[2, 3]"},
          {"shapes differ",
           [](Device d) { ops::ResidualNorm(kRms, Zeros(d, 2, 3), Zeros(d, 3), Zeros(d, 3)); },
           "residual_norm: the branch must match x (f32[2, 3] on "},
          {"weight too short",
           [](Device d) { ops::ResidualNorm(kRms, Zeros(d, 2, 4), Zeros(d, 2, 4), Zeros(d, 3)); },
           "residual_norm: weight must be f32[4]"},
          {"bias too long",
           [](Device d) {
             ops::ResidualNorm(kLayer, Zeros(d, 4), Zeros(d, 4), Zeros(d, 4), Zeros(d, 5));
           },
           "residual_norm: bias must be f32[4]"},
          {"bias of the branch too short",
           [](Device d) {
             ops::Branch branch = Zeros(d, 2, 4);
             branch.bias = Zeros(d, 3);
             ops::ResidualNorm(kRms, Zeros(d, 2, 4), branch, Zeros(d, 4));
           },
           "residual_norm: the branch's bias must be f32[4]"},
          {"no branch", [](Device d) { ops::ResidualNorm(kRms, Zeros(d, 4), {}, Zeros(d, 4)); },
           "residual_norm: the branch must match x (f32[4] on "},
          {"dropout of everything",
           [](Device d) {
             ops::Branch branch = Zeros(d, 4);
             branch.dropout = 1;
             ops::ResidualNorm(kRms, Zeros(d, 4), branch, Zeros(d, 4));
           },
           "residual_norm: the probability of the branch's dropout must be in [0, 1), got 1"},
          {"state on another device",
           [](Device d) {
             const StepState state(kMeta, kSeed);
             const TrainingScope scope(state);
             ops::Branch branch = Zeros(d, 4);
             branch.dropout = 0.5;
             ops::ResidualNorm(kRms, Zeros(d, 4), branch, Zeros(d, 4));
           },
           "the StepState of the TrainingScope on meta"},
          {"bias of an RMS norm",
           [](Device d) {
             ops::ResidualNorm(kRms, Zeros(d, 4), Zeros(d, 4), Zeros(d, 4), Zeros(d, 4));
           },
           "residual_norm: an RMS norm has no bias, got f32[4]"},
          {"negative eps",
           [](Device d) { ops::ResidualNorm(kRms, Zeros(d, 4), Zeros(d, 4), Zeros(d, 4), {}, -1); },
           "residual_norm: eps must not be negative, got -1"}};
}

const bool registered =
    RegisterOpCase({.name = "residual_norm", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
