#include <cmath>

#include "kernels/masked_attention/masked_attention.h"
#include "kernels/op_case/op_case.h"

namespace lockstep {
namespace {

struct Sizes {
  int64_t b, s, t, h, g, d, e;
};

// The element of a mask that broadcasting puts at (b, h, s, t).
double MaskAt(const RefTensor& mask, std::initializer_list<int64_t> place) {
  int64_t offset = 0;
  const int64_t* at = place.begin() + (4 - mask.shape.ndim());
  for (int i = 0; i < mask.shape.ndim(); ++i) {
    offset = offset * mask.shape[i] + (mask.shape[i] == 1 ? 0 : at[i]);
  }
  return mask.data[offset];
}

// in: q, k, v, and perhaps a mask: bool as 0 and 1, or numbers to be added.
RefTensor Reference(RefSpan in, const Sizes& z, bool boolean, bool causal, double scale) {
  RefTensor y({z.b, z.s, z.h, z.e});
  for (int64_t b = 0; b < z.b; ++b) {
    for (int64_t i = 0; i < z.s; ++i) {
      for (int64_t h = 0; h < z.h; ++h) {
        const int64_t g = h / (z.h / z.g);
        std::vector<double> score(z.t);
        double largest = -INFINITY, sum = 0;
        for (int64_t j = 0; j < z.t; ++j) {
          for (int64_t c = 0; c < z.d; ++c) {
            score[j] += scale * in[0].data[((b * z.s + i) * z.h + h) * z.d + c] *
                        in[1].data[((b * z.t + j) * z.g + g) * z.d + c];
          }
          const double mask = in.size() > 3 ? MaskAt(in[3], {b, h, i, j}) : boolean;
          if (!boolean) score[j] += mask;
          const bool hidden = (boolean && mask == 0) || (causal && j > i + z.t - z.s);
          if (hidden) score[j] = -INFINITY;
          largest = std::max(largest, score[j]);
        }
        if (largest == -INFINITY) continue;
        for (double& x : score) sum += x = std::exp(x - largest);
        for (int64_t j = 0; j < z.t; ++j) {
          for (int64_t c = 0; c < z.e; ++c) {
            y.data[((b * z.s + i) * z.h + h) * z.e + c] +=
                score[j] / sum * in[2].data[((b * z.t + j) * z.g + g) * z.e + c];
          }
        }
      }
    }
  }
  return y;
}

enum class Mask { kNone, kBool, kAdded };

OpSample Sample(const std::string& name, const Sizes& z, Mask mask = Mask::kNone,
                const Shape& mask_shape = {}, bool causal = false, double scale = 0,
                bool non_contiguous = false) {
  const double used = scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(z.d));
  OpSample s;
  s.name = name;
  for (const Shape& shape :
       {Shape{z.b, z.s, z.h, z.d}, Shape{z.b, z.t, z.g, z.d}, Shape{z.b, z.t, z.g, z.e}}) {
    s.inputs.push_back({.shape = shape, .non_contiguous = non_contiguous});
  }
  if (mask == Mask::kBool) {
    s.inputs.push_back({.shape = mask_shape, .low = 0, .high = 2, .index = true});
  } else if (mask == Mask::kAdded) {
    s.inputs.push_back({.shape = mask_shape});
  }
  s.run = [=](TensorSpan in) {
    ops::AttentionOptions options{.causal = causal};
    if (mask != Mask::kNone) options.mask = mask == Mask::kBool ? in[3].To(DType::kBool) : in[3];
    if (scale != 0) options.scale = scale;
    return ops::Attention(in[0], in[1], in[2], options);
  };
  s.reference = [=](RefSpan in) { return Reference(in, z, mask != Mask::kAdded, causal, used); };
  return s;
}

std::vector<OpSample> Samples() {
  constexpr Mask kNone = Mask::kNone, kBool = Mask::kBool, kAdded = Mask::kAdded;
  OpSample large = Sample("large", {8, 1024, 1024, 12, 12, 64, 64}, kBool, {1024, 1024});
  large.benchmark = {.flops = 4.0 * 8 * 12 * 1024 * 1024 * 64, .elements = 4.0 * 8 * 1024 * 768};
  return {Sample("empty", {0, 3, 5, 2, 2, 4, 4}), Sample("no_queries", {2, 0, 5, 2, 2, 4, 4}),
          Sample("one", {1, 1, 1, 1, 1, 1, 1}), Sample("plain", {2, 5, 5, 3, 3, 7, 7}),
          Sample("cross", {2, 3, 7, 4, 2, 5, 3}),
          Sample("causal", {2, 5, 5, 2, 1, 4, 4}, kNone, {}, true),
          Sample("causal_last_queries", {1, 3, 7, 2, 2, 4, 4}, kNone, {}, true),
          Sample("scaled", {1, 3, 4, 2, 2, 4, 4}, kNone, {}, false, 0.25),
          // Some queries see no key.
          Sample("keys_hidden", {3, 5, 2, 2, 2, 4, 4}, kBool, {3, 2, 5, 2}),
          Sample("padding", {3, 4, 6, 2, 2, 4, 4}, kBool, {3, 1, 1, 6}),
          Sample("padding_causal", {3, 6, 6, 2, 2, 4, 4}, kBool, {3, 1, 1, 6}, true),
          Sample("mask_of_matrix", {2, 4, 6, 4, 2, 4, 4}, kBool, {4, 6}),
          Sample("bias", {2, 4, 6, 2, 2, 4, 4}, kAdded, {2, 1, 4, 6}),
          Sample("bias_of_heads", {2, 4, 6, 4, 2, 4, 4}, kAdded, {1, 4, 4, 6}, false, 0.5),
          Sample("transposed", {2, 4, 6, 2, 2, 5, 2}, kNone, {}, false, 0, true), large};
}

std::vector<ErrorSample> Errors() {
  const auto run = [](const Shape& q, const Shape& k, const Shape& v, const Shape& mask = {},
                      DType mask_dtype = DType::kBool, bool causal = false) {
    return [=](Device d) {
      const auto zeros = [d](const Shape& s) { return Tensor::Zeros(s, DType::kF32, d); };
      ops::Attention(zeros(q), zeros(k), zeros(v),
                     {.mask = Tensor::Zeros(mask, mask_dtype, d), .causal = causal});
    };
  };
  const Shape q = {2, 3, 4, 5}, k = {2, 7, 2, 5};
  return {
      {"dimensions", run({2, 3, 4}, k, k),
       "attention: q must be a floating tensor [B, S, H, D], got f32[2, 3, 4] on cpu"},
      {"width", run(q, {2, 7, 2, 6}, k), "attention: k must be [B, T, G, D] with T > 0"},
      {"no_keys", run(q, {2, 0, 2, 5}, {2, 0, 2, 5}), "with T > 0"},
      {"lengths", run(q, k, {2, 6, 2, 5}), "attention: v must be [B, T, G, E], of the same B, T"},
      {"heads", run(q, {2, 7, 3, 5}, {2, 7, 3, 5}),
       "attention: the 4 heads of q must be a multiple of the 3 of k and v"},
      {"mask_shape", run(q, k, k, {2, 2, 4, 3, 7}),
       "attention: the mask must broadcast to the scores [B, H, S, T] = [2, 4, 3, 7] on cpu, got "
       "bool[2, 2, 4, 3, 7] on cpu"},
      // Which would be taken for one per head where there are as many heads as sequences.
      {"mask_of_three_dimensions", run({4, 3, 4, 5}, {4, 7, 2, 5}, {4, 7, 2, 5}, {4, 3, 7}),
       "a mask of three dimensions, here bool[4, 3, 7] on cpu, might be one per sequence, [B, S, "
       "T], or one per head, [H, S, T]: write mask.Unsqueeze(1) for the first, mask.Unsqueeze(0) "
       "for the second"},
      {"mask_dtype", run(q, k, k, {3, 7}, DType::kI32),
       "the mask must be bool or floating, got i32[3, 7] on cpu: write mask.To(DType::kBool)"},
      {"more_queries", run({2, 8, 2, 5}, k, k, {}, DType::kBool, true),
       "attention: causal needs a key for each query, got 8 queries and 7 keys"}};
}

const bool registered =
    RegisterOpCase({.name = "masked_attention", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
