#include "kernels/grouped_linear/grouped_linear.h"
#include "kernels/op_case/op_case.h"

namespace lockstep {
namespace {

std::vector<int32_t> OffsetsOf(const std::vector<int32_t>& sizes) {
  std::vector<int32_t> offsets = {0};
  for (const int32_t size : sizes) offsets.push_back(offsets.back() + size);
  return offsets;
}

Tensor OffsetsOn(Device device, const std::vector<int32_t>& offsets) {
  if (device.is_meta()) {
    return Tensor::Empty({static_cast<int64_t>(offsets.size())}, DType::kI32, device);
  }
  return Tensor::FromVector(offsets, {static_cast<int64_t>(offsets.size())}, device);
}

// x [R, K], weight [E, N, K]; groups of these sizes.
OpSample Sample(const std::string& name, const std::vector<int32_t>& sizes, int64_t n, int64_t k) {
  const std::vector<int32_t> offsets = OffsetsOf(sizes);
  const auto groups = static_cast<int64_t>(sizes.size());
  OpSample s;
  s.name = name;
  s.inputs = {{.shape = {offsets.back(), k}, .dtype = {}}, {.shape = {groups, n, k}, .dtype = {}}};
  s.run = [offsets](TensorSpan in) {
    return ops::GroupedLinear(in[0], in[1], OffsetsOn(in[0].device(), offsets));
  };
  s.reference = [offsets, n, k](RefSpan in) {
    RefTensor y({offsets.back(), n});
    for (size_t e = 0; e + 1 < offsets.size(); ++e) {
      for (int64_t row = offsets[e]; row < offsets[e + 1]; ++row) {
        for (int64_t j = 0; j < n; ++j) {
          const double* weight = in[1].data.data() + (static_cast<int64_t>(e) * n + j) * k;
          for (int64_t l = 0; l < k; ++l) {
            y.data[row * n + j] += in[0].data[row * k + l] * weight[l];
          }
        }
      }
    }
    return y;
  };
  return s;
}

OpSample Benchmark(const std::string& name, int64_t groups, int32_t rows, int64_t n, int64_t k) {
  OpSample s = Sample(name, std::vector<int32_t>(static_cast<size_t>(groups), rows), n, k);
  s.benchmark = {.flops = 2.0 * static_cast<double>(groups * rows) * static_cast<double>(n * k),
                 .elements = static_cast<double>(groups * (rows * (n + k) + n * k))};
  return s;
}

std::vector<OpSample> Samples() {
  OpSample transposed = Sample("non_contiguous", {3, 0, 2}, 4, 6);
  for (InputSpec& input : transposed.inputs) input.non_contiguous = true;
  OpSample tiles = Sample("several_tiles", {70, 33, 0, 130}, 70, 90);
  tiles.finite_differences = false;  // slow, and the other samples have them
  // On tensor cores: tiles of 128 rows and columns, and more steps than are copied ahead.
  OpSample large = Sample("large_tiles", {70, 0, 200}, 136, 72);
  large.finite_differences = false;
  OpSample deep = Sample("deep", {5, 40}, 40, 200);
  deep.finite_differences = false;
  return {
      Sample("empty", {0}, 3, 4),
      Sample("empty_groups", {0, 0, 0}, 3, 4),
      Sample("no_outputs", {2, 1}, 0, 4),
      Sample("no_inputs", {2, 1}, 3, 0),
      Sample("one", {1}, 1, 1),
      Sample("odd", {3, 0, 5, 1}, 7, 5),
      Sample("first_and_last_empty", {0, 4, 0}, 6, 3),
      Sample("whole_packs", {7, 8, 9}, 16, 24),
      Sample("one_row_each", {1, 1, 1, 1, 1}, 9, 33),
      // Groups that begin at each place of a tile of 32 rows.
      Sample("ragged", {31, 2, 32, 0, 33, 1, 64}, 5, 3),
      transposed,
      tiles,
      large,
      deep,
      Benchmark("small_experts", 8, 192, 256, 128),
      Benchmark("qwen3_30b_up", 128, 64, 1536, 2048),
      Benchmark("mixtral_down", 8, 256, 4096, 14336),
  };
}

std::vector<ErrorSample> Errors() {
  const auto run = [=](const Tensor& x, const Tensor& weight) {
    ops::GroupedLinear(x, weight, OffsetsOn(x.device(), {0, 1, 3}));
  };
  return {{"no_matrix", [=](Device d) { run(Zeros(d, 3), Zeros(d, 2, 4, 3)); },
           "grouped_linear: x must be a floating tensor [R, K], got f32[3]"},
          {"wrong_inputs", [=](Device d) { run(Zeros(d, 3, 5), Zeros(d, 2, 4, 3)); },
           "grouped_linear: weight must be [E, N, 5] (groups, out, in) for x of shape [3, 5], got "
           "f32[2, 4, 3]"},
          {"mixed", [=](Device d) { run(Zeros(d, 3, 5), Zeros(DType::kBF16, d, 2, 4, 5)); },
           "grouped_linear: x and weight must have the same dtype and device"},
          {"wrong_offsets", [=](Device d) { run(Zeros(d, 3, 5), Zeros(d, 3, 4, 5)); },
           "grouped_linear: the offsets must be i32[4]"}};
}

const bool registered =
    RegisterOpCase({.name = "grouped_linear", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
