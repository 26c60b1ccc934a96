#include "kernels/low_rank_update/low_rank_update.h"
#include "kernels/op_case/op_case.h"

namespace lockstep {
namespace {

// Columns of y, a rank, 0 for none, and a scale.
struct Block {
  int64_t columns, rank;
  double scale = 1;
};

// y and x begin with `rows`. In place: y is a result that nothing else sees.
OpSample Sample(const std::string& name, const std::vector<int64_t>& rows,
                const std::vector<Block>& blocks, bool in_place = false) {
  int64_t n = 0, k = 0;
  for (const Block& block : blocks) n += block.columns, k += block.rank;
  const auto with = [&](int64_t last) {
    std::vector<int64_t> dims = rows;
    dims.push_back(last);
    return Shape(dims);
  };
  OpSample s;
  s.name = name;
  s.inputs = {{.shape = with(n), .dtype = {}}, {.shape = with(k), .dtype = {}}};
  for (const Block& block : blocks) {
    if (block.rank > 0) s.inputs.push_back({.shape = {block.columns, block.rank}, .dtype = {}});
  }
  s.run = [blocks, in_place](TensorSpan in) {
    std::vector<ops::LowRankBlock> given;
    size_t next = 2;
    for (const Block& block : blocks) {
      given.push_back({block.rank > 0 ? in[next++] : Tensor(), block.columns, block.scale});
    }
    return ops::LowRankUpdate(in_place ? in[0].Clone() : in[0], in[1], given);
  };
  s.reference = [blocks, n, k](RefSpan in) {
    RefTensor y = in[0];
    const int64_t m = n > 0 ? static_cast<int64_t>(y.data.size()) / n : 0;
    int64_t column = 0, rank = 0;
    size_t next = 2;
    for (const Block& block : blocks) {
      for (int64_t i = 0; block.rank > 0 && i < m; ++i) {
        for (int64_t j = 0; j < block.columns; ++j) {
          double sum = 0;
          for (int64_t l = 0; l < block.rank; ++l) {
            sum += in[1].data[static_cast<size_t>(i * k + rank + l)] *
                   in[next].data[static_cast<size_t>(j * block.rank + l)];
          }
          y.data[static_cast<size_t>(i * n + column + j)] += block.scale * sum;
        }
      }
      if (block.rank > 0) ++next;
      column += block.columns;
      rank += block.rank;
    }
    return y;
  };
  return s;
}

OpSample Benchmark(const std::string& name, int64_t m, const std::vector<Block>& blocks) {
  OpSample s = Sample(name, {m}, blocks, /*in_place=*/true);
  double n = 0, k = 0, weights = 0;
  for (const Block& block : blocks) {
    n += static_cast<double>(block.columns);
    k += static_cast<double>(block.rank);
    weights += static_cast<double>(block.columns * block.rank);
  }
  const auto rows = static_cast<double>(m);
  s.benchmark = {.flops = 2 * rows * weights, .elements = 2 * rows * n + rows * k + weights};
  return s;
}

std::vector<OpSample> Samples() {
  OpSample transposed = Sample("non_contiguous", {5}, {{4, 6, 0.5}});
  for (InputSpec& input : transposed.inputs) input.non_contiguous = true;
  OpSample tiles = Sample("several_tiles", {300}, {{70, 16, 2}, {60, 17, -0.5}}, true);
  tiles.finite_differences = false;  // slow, and the other samples have them
  return {Sample("empty", {0}, {{3, 4}}),
          Sample("nothing_added", {2}, {{3, 0}}),
          Sample("no_outputs", {2}, {{0, 4}}),
          Sample("one", {1}, {{1, 1}}),
          Sample("vector", {}, {{5, 3, 2}}),
          Sample("odd", {2, 3}, {{7, 5, 0.25}}),
          Sample("in_place", {6}, {{5, 2, 4}}, true),
          Sample("blocks", {2, 3}, {{5, 2, 0.5}, {3, 1, 2}, {4, 3, -1}}),
          Sample("blocks_in_place", {7}, {{5, 2, 0.5}, {3, 0}, {4, 3, -1}}, true),
          transposed,
          tiles,
          Benchmark("gpt2_c_attn_rank_16", 4096, {{2304, 16}}),
          Benchmark("llama_3_8b_c_attn_rank_16", 2048, {{4096, 16}, {1024, 16}, {1024, 16}})};
}

std::vector<ErrorSample> Errors() {
  return {
      {"other_rows",
       [](Device d) {
         ops::LowRankUpdate(Zeros(d, 3, 4), Zeros(d, 2, 5), {{Zeros(d, 4, 5), 4}});
       },
       "low_rank_update: x must be [..., K] with the rows of y"},
      {"wrong_block",
       [](Device d) {
         ops::LowRankUpdate(Zeros(d, 3, 4), Zeros(d, 3, 5), {{Zeros(d, 5, 4), 4}});
       },
       "low_rank_update: b must be f32[4, rank]"},
      {"wrong_ranks",
       [](Device d) {
         ops::LowRankUpdate(Zeros(d, 3, 4), Zeros(d, 3, 5), {{Zeros(d, 4, 2), 4}});
       },
       "low_rank_update: the blocks have 4 columns and ranks of 2 together"},
      {"mixed",
       [](Device d) {
         ops::LowRankUpdate(Zeros(d, 3, 4), Zeros(DType::kBF16, d, 3, 5), {{Zeros(d, 4, 5), 4}});
       },
       "low_rank_update: all must have the same dtype and device"}};
}

const bool registered =
    RegisterOpCase({.name = "low_rank_update", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
