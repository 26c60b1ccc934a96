#include "kernels/expert_dispatch/expert_dispatch.h"
#include "kernels/op_case/op_case.h"

namespace lockstep {
namespace {

// The pairs in the order of their experts: pair = token * k + slot.
std::vector<int64_t> SortedPairs(const RefTensor& experts, int64_t n_expert) {
  std::vector<int64_t> pairs;
  for (int64_t e = 0; e < n_expert; ++e) {
    for (size_t i = 0; i < experts.data.size(); ++i) {
      if (experts.data[i] == static_cast<double>(e)) pairs.push_back(static_cast<int64_t>(i));
    }
  }
  return pairs;
}

InputSpec Experts(int64_t n, int64_t k, int64_t n_expert) {
  return {
      .shape = {n, k}, .low = 0, .high = static_cast<double>(n_expert), .index = true, .dtype = {}};
}

// A number for each row and pair, and the load of two batches.
OpSample Order(const std::string& name, int64_t n, int64_t k, int64_t n_expert) {
  OpSample s;
  s.name = "order_" + name;
  s.inputs = {Experts(n, k, n_expert)};
  s.run = [n_expert](TensorSpan in) {
    const ExpertOrder order = ops::SortByExpert(in[0], n_expert);
    const Tensor load = Tensor::Zeros({n_expert}, DType::kI64, in[0].device());
    ops::CountRows(order, load);
    ops::CountRows(order, load);
    return std::vector{order.offsets, order.rows, order.places, load};
  };
  s.reference = [n, k, n_expert](RefSpan in) {
    RefTensor offsets({n_expert + 1}), rows({n * k}), places({n, k}), load({n_expert});
    const std::vector<int64_t> pairs = SortedPairs(in[0], n_expert);
    for (size_t row = 0; row < pairs.size(); ++row) {
      rows.data[row] = static_cast<double>(pairs[row]);
      places.data[static_cast<size_t>(pairs[row])] = static_cast<double>(row);
      load.data[static_cast<size_t>(in[0].data[static_cast<size_t>(pairs[row])])] += 2;
    }
    for (int64_t e = 0; e < n_expert; ++e) {
      offsets.data[e + 1] = offsets.data[e] + load.data[e] / 2;
    }
    return std::vector{offsets, rows, places, load};
  };
  return s;
}

OpSample Dispatch(const std::string& name, int64_t n, int64_t c, int64_t k, int64_t n_expert) {
  OpSample s;
  s.name = "dispatch_" + name;
  s.inputs = {{.shape = {n, c}, .dtype = {}}, Experts(n, k, n_expert)};
  s.run = [n_expert](TensorSpan in) {
    return ops::Dispatch(in[0], ops::SortByExpert(in[1], n_expert));
  };
  s.reference = [=](RefSpan in) {
    RefTensor y({n * k, c});
    const std::vector<int64_t> pairs = SortedPairs(in[1], n_expert);
    for (int64_t row = 0; row < n * k; ++row) {
      for (int64_t i = 0; i < c; ++i) {
        y.data[row * c + i] = in[0].data[pairs[static_cast<size_t>(row)] / k * c + i];
      }
    }
    return y;
  };
  return s;
}

OpSample Combine(const std::string& name, int64_t n, int64_t c, int64_t k, int64_t n_expert) {
  OpSample s;
  s.name = "combine_" + name;
  s.inputs = {{.shape = {n * k, c}, .dtype = {}},
              Experts(n, k, n_expert),
              {.shape = {n, k}, .low = 0, .high = 1, .dtype = {}}};
  s.run = [n_expert](TensorSpan in) {
    const DType wide = AccumulationDType(in[0].dtype());
    return ops::Combine(in[0], in[2].To(wide), ops::SortByExpert(in[1], n_expert));
  };
  s.reference = [=](RefSpan in) {
    RefTensor y({n, c});
    const std::vector<int64_t> pairs = SortedPairs(in[1], n_expert);
    for (int64_t row = 0; row < n * k; ++row) {
      const int64_t pair = pairs[static_cast<size_t>(row)];
      for (int64_t i = 0; i < c; ++i) {
        y.data[pair / k * c + i] += in[2].data[pair] * in[0].data[row * c + i];
      }
    }
    return y;
  };
  return s;
}

std::vector<OpSample> Samples() {
  std::vector<OpSample> s = {
      Order("empty", 0, 2, 3),
      Order("one", 1, 1, 1),
      Order("odd", 13, 3, 5),
      Order("many_experts", 40, 8, 300),
      Order("many_tokens", 1500, 2, 8),
      Dispatch("empty", 0, 4, 2, 3),
      Dispatch("no_width", 3, 0, 2, 3),
      Dispatch("one", 1, 1, 1, 1),
      Dispatch("odd", 7, 5, 3, 4),
      Dispatch("packs", 9, 64, 2, 8),
      Dispatch("large", 200, 700, 2, 8),
      Combine("empty", 0, 4, 2, 3),
      Combine("one", 1, 1, 1, 1),
      Combine("odd", 7, 5, 3, 4),
      Combine("packs", 9, 64, 2, 8),
      Combine("large", 100, 700, 2, 8),
  };
  for (OpSample sample :
       {Dispatch("non_contiguous", 6, 4, 2, 3), Combine("non_contiguous", 6, 4, 2, 3)}) {
    for (InputSpec& input : sample.inputs) input.non_contiguous = true;
    s.push_back(sample);
  }
  constexpr int64_t k = 2;
  OpSample dispatch = Dispatch("mixtral", 4096, 4096, k, 8);
  OpSample combine = Combine("mixtral", 4096, 4096, k, 8);
  constexpr double kMoved = 4096.0 * 4096 * (1 + k);
  dispatch.benchmark = {.elements = kMoved, .backward_elements = kMoved};
  combine.benchmark = {.elements = kMoved};
  s.push_back(dispatch);
  s.push_back(combine);
  return s;
}

std::vector<ErrorSample> Errors() {
  const auto order = [=](Device d) { return ops::SortByExpert(Zeros(DType::kI32, d, 3, 2), 4); };
  return {{"wrong_experts", [=](Device d) { ops::SortByExpert(Zeros(DType::kI32, d, 3), 4); },
           "sort_by_expert: the experts must be i32 [N, k], got i32[3]"},
          {"no_experts", [=](Device d) { ops::SortByExpert(Zeros(DType::kI32, d, 3, 2), 0); },
           "sort_by_expert: there must be an expert, got 0"},
          {"wrong_tokens", [=](Device d) { ops::Dispatch(Zeros(d, 4, 5), order(d)); },
           "dispatch: x must be a floating [3, C], got f32[4, 5]"},
          {"wrong_rows", [=](Device d) { ops::Combine(Zeros(d, 3, 5), Zeros(d, 3, 2), order(d)); },
           "combine: y must be a floating [6, C], got f32[3, 5]"},
          {"wrong_gates",
           [=](Device d) {
             ops::Combine(Zeros(DType::kBF16, d, 6, 5), Zeros(DType::kBF16, d, 3, 2), order(d));
           },
           "combine: the gates must be f32[3, 2], got bf16[3, 2]"},
          {"wrong_load", [=](Device d) { ops::CountRows(order(d), Zeros(d, 4)); },
           "count_rows: the load must be a contiguous i64[4], got f32[4]"}};
}

const bool registered =
    RegisterOpCase({.name = "expert_dispatch", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
