#include "core/cuda/device.h"
#include "core/error.h"
#include "kernels/attention/cudnn_plan.h"

namespace lockstep::cuda {

namespace {

CudnnAttentionProblem::Strides StridesOf(const Tensor& x) {
  return {x.strides()[0], x.strides()[1], x.strides()[2]};
}

}  // namespace

CudnnAttentionProblem::CudnnAttentionProblem(const AttentionForwardArgs& args)
    : batch(args.q.dim(0)),
      length(args.q.dim(1)),
      heads(args.q.dim(2)),
      kv_heads(args.k.dim(2)),
      d(args.q.dim(3)),
      q(StridesOf(args.q)),
      k(StridesOf(args.k)),
      v(StridesOf(args.v)),
      y(StridesOf(args.y)) {
  LS_INVARIANT(args.scores.plain(), "attention: cuDNN's graphs only scale scores");
}

CudnnAttentionProblem::CudnnAttentionProblem(const AttentionBackwardArgs& args)
    : CudnnAttentionProblem(
          AttentionForwardArgs{args.q, args.k, args.v, args.scores, {}, args.y, args.log_sum_exp}) {
  backward = true;
  dy = StridesOf(args.dy);
  dq = StridesOf(args.dq);
  dk = StridesOf(args.dk);
  dv = StridesOf(args.dv);
}

CudnnSlices FitWorkspace(const CudnnAttentionProblem& whole, int64_t most,
                         const std::function<int64_t(const CudnnAttentionProblem&)>& workspace) {
  const auto fits = [&](const CudnnSlices& sliced) {
    const CudnnAttentionProblem& p = sliced.problem;
    const int64_t scores = 2 * p.batch * p.heads * p.length * p.length;
    // The statistics of a slice, in f32, begin at a multiple of 16 bytes.
    const bool aligned = sliced.slices.parts() == 1 || p.batch * p.heads * p.length % 4 == 0;
    if (!aligned || scores > most) return false;
    const int64_t bytes = workspace(p);
    if (bytes < scores) {
      throw Error(
          "the workspace of its backward has no room for the gradient of the scores: it adds with "
          "atomics, in any order");
    }
    return bytes <= most;
  };
  CudnnSlices sliced{{}, whole};
  for (int64_t parts = 1; parts <= whole.batch; ++parts) {
    if (whole.batch % parts != 0) continue;
    sliced.slices.batches = parts;
    sliced.problem.batch = whole.batch / parts;
    if (fits(sliced)) return sliced;
  }
  for (int64_t groups = 2; groups <= whole.kv_heads; ++groups) {
    if (whole.kv_heads % groups != 0) continue;
    sliced.slices.groups = groups;
    sliced.problem.heads = whole.heads / groups;
    sliced.problem.kv_heads = whole.kv_heads / groups;
    if (fits(sliced)) return sliced;
  }
  throw Error(StrCat("even for one key head of one sample the workspace of its backward would be ",
                     "more than ", most, " bytes"));
}

namespace {

using Problem = CudnnAttentionProblem;
using Sizes = CudnnGraph::Sizes;
using Value = CudnnGraph::Value;

using Description = CudnnAttentionPlan::Description;

// Heads of q, k, v and their like as cuDNN counts dimensions, [B, H, T, D], or with the last two
// exchanged.
Value Heads(CudnnGraph& g, const Problem& p, int64_t heads, const Problem::Strides& s) {
  return g.Memory({p.batch, heads, p.length, p.d}, {s.batch, s.head, s.row, 1},
                  CUDNN_DATA_BFLOAT16);
}
Value TransposedHeads(CudnnGraph& g, const Problem& p, int64_t heads, const Problem::Strides& s) {
  return g.Memory({p.batch, heads, p.d, p.length}, {s.batch, s.head, 1, s.row},
                  CUDNN_DATA_BFLOAT16);
}

// One f32 per query, [B, H, T, 1].
Value Rows(CudnnGraph& g, const Problem& p) {
  return g.Memory({p.batch, p.heads, p.length, 1}, {p.heads * p.length, p.length, 1, 1},
                  CUDNN_DATA_FLOAT);
}

Sizes ScoreSizes(const Problem& p) { return {p.batch, p.heads, p.length, p.length}; }

// Scores of later keys become minus infinity. cuDNN recognises attention by the shape of its graph,
// so the operations, here and below, are exactly those of NVIDIA's own description of it.
Value Causal(CudnnGraph& g, Value scores, Value minus_infinity) {
  const Value row = g.Index(scores, 2), column = g.Index(scores, 3);
  const Value seen = g.Virtual(g.sizes(scores), CUDNN_DATA_BOOLEAN);
  g.Pointwise(CUDNN_POINTWISE_CMP_GE, row, column, CudnnGraph::kNone, seen, CUDNN_DATA_BOOLEAN);
  return g.Pointwise(CUDNN_POINTWISE_BINARY_SELECT, scores, minus_infinity, seen);
}

Description DescribeForward(const Problem& p) {
  CudnnGraph g;
  const Value q = Heads(g, p, p.heads, p.q), k = TransposedHeads(g, p, p.kv_heads, p.k);
  const Value v = Heads(g, p, p.kv_heads, p.v), y = Heads(g, p, p.heads, p.y);
  const Value log_sum_exp = Rows(g, p);
  const Value scale = g.Scalar(), minus_infinity = g.Scalar();
  const Sizes rows{p.batch, p.heads, p.length, 1};

  const Value products = g.Virtual(ScoreSizes(p));
  g.Matmul(q, k, products);
  const Value s = Causal(g, g.Pointwise(CUDNN_POINTWISE_MUL, products, scale), minus_infinity);
  const Value largest = g.Virtual(rows), sum = g.Virtual(rows);
  g.Reduce(CUDNN_REDUCE_TENSOR_MAX, s, largest);
  const Value e = g.Pointwise(CUDNN_POINTWISE_EXP, g.Pointwise(CUDNN_POINTWISE_SUB, s, largest));
  g.Reduce(CUDNN_REDUCE_TENSOR_ADD, e, sum);
  g.Pointwise(CUDNN_POINTWISE_ADD, largest, g.Pointwise(CUDNN_POINTWISE_LOG, sum),
              CudnnGraph::kNone, log_sum_exp);
  const Value probabilities = g.Virtual(ScoreSizes(p), CUDNN_DATA_BFLOAT16);
  g.Pointwise(CUDNN_POINTWISE_DIV, e, sum, CudnnGraph::kNone, probabilities);
  g.Matmul(probabilities, v, y);
  return {std::move(g), {q, k, v, y, log_sum_exp, scale, minus_infinity}};
}

// result = x^T `by`, [B, H, T, D], for each head of q, added up over the heads that share one of k.
void MultiplyTransposed(CudnnGraph& g, const Problem& p, Value x, Value by, Value result) {
  const auto [b, h, m, n] = g.sizes(x);
  const Value transposed = g.Virtual({b, h, n, m}, {h * m * n, m * n, 1, n}, CUDNN_DATA_BFLOAT16);
  g.Reshape(x, transposed);
  if (p.heads == p.kv_heads) return g.Matmul(transposed, by, result);
  const Value of_all_heads = g.Virtual({b, h, n, p.d}, CUDNN_DATA_BFLOAT16);
  g.Matmul(transposed, by, of_all_heads);
  g.Reduce(CUDNN_REDUCE_TENSOR_ADD, of_all_heads, result);
}

Description DescribeBackward(const Problem& p) {
  CudnnGraph g;
  const Value q = Heads(g, p, p.heads, p.q), k = TransposedHeads(g, p, p.kv_heads, p.k);
  const Value v = TransposedHeads(g, p, p.kv_heads, p.v), y = Heads(g, p, p.heads, p.y);
  const Value log_sum_exp = Rows(g, p), dy = Heads(g, p, p.heads, p.dy);
  const Value dq = Heads(g, p, p.heads, p.dq), dk = Heads(g, p, p.kv_heads, p.dk);
  const Value dv = Heads(g, p, p.kv_heads, p.dv), delta = Rows(g, p);
  const Value scale = g.Scalar(), minus_infinity = g.Scalar(), one = g.Scalar();

  // delta_i = sum_d dy_id y_id
  const Value sum = g.Virtual({p.batch, p.heads, p.length, 1});
  g.Reduce(CUDNN_REDUCE_TENSOR_ADD, g.Pointwise(CUDNN_POINTWISE_MUL, dy, y), sum);
  g.Pointwise(CUDNN_POINTWISE_MUL, sum, one, CudnnGraph::kNone, delta);

  // The probabilities, and dv
  const Value products = g.Virtual(ScoreSizes(p));
  g.Matmul(q, k, products);
  const Value s = g.Pointwise(CUDNN_POINTWISE_SUB,
                              g.Pointwise(CUDNN_POINTWISE_MUL, products, scale), log_sum_exp);
  const Value probabilities = g.Pointwise(CUDNN_POINTWISE_EXP, Causal(g, s, minus_infinity));
  MultiplyTransposed(g, p, probabilities, dy, dv);

  // The scores' gradient, and dk
  const Value dp = g.Virtual(ScoreSizes(p));
  g.Matmul(dy, v, dp);
  const Value ds = g.Pointwise(
      CUDNN_POINTWISE_MUL,
      g.Pointwise(CUDNN_POINTWISE_MUL, g.Pointwise(CUDNN_POINTWISE_SUB, dp, delta), probabilities),
      scale);
  MultiplyTransposed(g, p, ds, q, dk);

  // dq directly: with a separate f32 sum this would be cuDNN's backward with atomics.
  const Value keys = g.Virtual({p.batch, p.kv_heads, p.length, p.d},
                               {p.k.batch, p.k.head, p.k.row, 1}, CUDNN_DATA_BFLOAT16);
  g.Reshape(k, keys);
  g.Matmul(ds, keys, dq);
  return {std::move(g),
          {q, k, v, y, log_sum_exp, dy, dq, dk, dv, delta, scale, minus_infinity, one}};
}

Description Describe(const Problem& p) {
  return p.backward ? DescribeBackward(p) : DescribeForward(p);
}

}  // namespace

CudnnAttentionPlan::CudnnAttentionPlan(const CudnnAttentionProblem& problem,
                                       const CudnnTarget& target)
    : CudnnAttentionPlan(Describe(problem), target) {}

CudnnChoice AskCudnnAttention(const CudnnAttentionProblem& problem, const std::string& properties) {
  if (Simulated()) throw Error("a simulated GPU has no cuDNN");
  const CudnnAttentionPlan made(problem, {.properties = properties});
  return {made.plan.workspace_bytes(), made.plan.engine()};
}

}  // namespace lockstep::cuda
