#include "kernels/attention/attention.h"

#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "core/autograd/node.h"

namespace lockstep::ops {
namespace {

// What forward and backward share.
struct Call {
  Tensor q, k, v;  // [B, T, heads, D], possibly views of one tensor
  AttentionScores scores;
  AttentionDropout dropout;

  Call(const std::array<Tensor, 3>& x, const CausalAttentionOptions& options)
      : q(x[0]),
        k(x[1]),
        v(x[2]),
        scores(MakeAttentionScores("attention", options, q.dim(3), q.dim(0), q.dim(1), k.dim(1),
                                   q.device())),
        dropout(
            MakeAttentionDropout(options.dropout, options.site, q.device(), options.first_head)) {}
};

Tensor EmptyHeads(const Tensor& like) {
  return Tensor::Empty(like.shape(), like.dtype(), like.device());
}

// The number of heads of q, and of k and v each, in a joint tensor; 0: q, k and v are separate.
struct JointHeads {
  int64_t q = 0, kv = 0;
  int64_t all() const { return q + 2 * kv; }
};

// Splits qkv [B, T, (H + 2G) D] into q, k and v, or its gradient into theirs.
std::array<Tensor, 3> Split(const Tensor& qkv, JointHeads heads) {
  const int64_t n = heads.all();
  const Tensor all = qkv.Detach().View({qkv.dim(0), qkv.dim(1), n, qkv.dim(2) / n});
  return {all.Slice(2, 0, heads.q), all.Slice(2, heads.q, heads.q + heads.kv),
          all.Slice(2, heads.q + heads.kv, n)};
}

// `heads` of a joint tensor, the only input; else q, k and v are.
void Backward(JointHeads heads, AttentionScores scores, const AttentionDropout& dropout,
              const SavedTensors& saved, Gradients& grads) {
  AttentionBackwardArgs args{.scores = std::move(scores), .dropout = dropout};
  args.scores.first_key = saved[0];
  args.log_sum_exp = saved[1];
  std::array<Tensor*, 3> inputs{&args.q, &args.k, &args.v};
  std::array<Tensor*, 3> gradients{&args.dq, &args.dk, &args.dv};
  std::array<bool*, 3> accumulate{&args.accumulate_q, &args.accumulate_k, &args.accumulate_v};
  if (heads.q > 0) {
    const Tensor qkv = saved[3];
    const GradTarget target = grads.Open(0);
    const std::array<Tensor, 3> x = Split(qkv, heads), dx = Split(target.tensor, heads);
    for (size_t i = 0; i < 3; ++i) {
      *inputs[i] = x[i];
      *gradients[i] = dx[i];
      *accumulate[i] = target.accumulate;
    }
  } else {
    for (size_t i = 0; i < 3; ++i) {
      *inputs[i] = saved[3 + i];
      const GradTarget target = grads.Open(i);
      *gradients[i] = grads.needs(i) ? target.tensor : EmptyHeads(*inputs[i]);
      *accumulate[i] = target.accumulate;
    }
  }
  args.y = saved[2].View(args.q.shape());
  args.dy = grads[0].View(args.q.shape());
  attention_backward(CurrentStream(args.q.device()), args);
}

void RecordAttention(std::span<const Tensor* const> inputs, JointHeads heads, const Call& call,
                     std::span<const Tensor> x, const Tensor& log_sum_exp, Tensor* y) {
  AttentionScores scores = call.scores;
  std::vector<Kept> keep = {
      {std::exchange(scores.first_key, Tensor()), "the first keys of attention"},
      {log_sum_exp, "the log-sum-exp of attention"},
      {*y, "the output of attention"}};
  for (const Tensor& input : x) keep.push_back({input, "an input of attention"});
  RecordOp("attention", inputs, std::span(&y, 1), keep,
           [=, dropout = call.dropout](const SavedTensors& saved, Gradients& grads) {
             Backward(heads, scores, dropout, saved, grads);
           });
  if (call.dropout.evaluated()) *y = Evaluated(*y);
}

// y [B, T, H, D], and the log-sum-exp.
Tensor Forward(const Call& call, Tensor* log_sum_exp) {
  const Tensor& q = call.q;
  const Device device = q.device();
  const DType wide = AccumulationDType(q.dtype());
  const Tensor y = EmptyHeads(q);
  *log_sum_exp = Tensor::Empty({q.dim(0), q.dim(2), q.dim(1)}, wide, device);
  attention_forward(CurrentStream(device),
                    {q, call.k, call.v, call.scores, call.dropout, y, *log_sum_exp});
  return y;
}

}  // namespace

Tensor CausalAttention(const Tensor& qkv, int64_t n_head, int64_t n_kv_head,
                       const CausalAttentionOptions& options) {
  const JointHeads heads{n_head, n_kv_head == 0 ? n_head : n_kv_head};
  LS_CHECK(qkv.defined() && IsFloating(qkv.dtype()) && qkv.ndim() == 3,
           "attention: qkv must be a floating tensor [B, T, (n_head + 2 n_kv_head) D], got ",
           qkv.Describe());
  LS_CHECK(n_head > 0 && heads.kv > 0 && n_head % heads.kv == 0,
           "attention: n_head must be a positive multiple of n_kv_head, got ", n_head, " and ",
           heads.kv);
  LS_CHECK(qkv.dim(2) > 0 && qkv.dim(2) % heads.all() == 0,
           "attention: the last size of qkv must be a positive multiple of n_head + 2 n_kv_head = ",
           heads.all(), ", got ", qkv.Describe());
  const Tensor input = qkv.Detach().Contiguous();
  const Call call(Split(input, heads), options);
  Tensor log_sum_exp;
  Tensor y = Forward(call, &log_sum_exp).View({qkv.dim(0), qkv.dim(1), n_head * call.q.dim(3)});
  const Tensor* const inputs[] = {&qkv};
  RecordAttention(inputs, heads, call, std::span(&input, 1), log_sum_exp, &y);
  return y;
}

Tensor CausalAttention(const Tensor& q, const Tensor& k, const Tensor& v,
                       const CausalAttentionOptions& options) {
  LS_CHECK(q.defined() && IsFloating(q.dtype()) && q.ndim() == 4 && q.dim(3) > 0,
           "attention: q must be a floating tensor [B, T, H, D] with D > 0, got ", q.Describe());
  for (const Tensor* x : {&k, &v}) {
    LS_CHECK(x->defined() && x->ndim() == 4 && x->shape() == k.shape() && x->dim(0) == q.dim(0) &&
                 x->dim(1) >= q.dim(1) && x->dim(3) == q.dim(3),
             "attention: k and v must be [B, T, G, D] = [", q.dim(0), ", ", q.dim(1),
             " or more, G, ", q.dim(3), "], got ", k.Describe(), " and ", v.Describe());
    LS_CHECK(q.dim(1) > 0 || x->dim(1) == 0,
             "attention: no queries, but keys: these would have no gradient");
    LS_CHECK(x->dtype() == q.dtype() && x->device() == q.device(),
             "attention: q, k and v must have the same dtype and device, got ", q.Describe(),
             " and ", x->Describe());
  }
  LS_CHECK(k.dim(2) > 0 && q.dim(2) % k.dim(2) == 0 && q.dim(2) > 0,
           "attention: the heads of q must be a positive multiple of those of k and v, got ",
           q.dim(2), " and ", k.dim(2));
  const std::array<Tensor, 3> x{q.Detach().Contiguous(), k.Detach().Contiguous(),
                                v.Detach().Contiguous()};
  const Call call(x, options);
  Tensor log_sum_exp;
  Tensor y = Forward(call, &log_sum_exp);
  const Tensor* const inputs[] = {&q, &k, &v};
  RecordAttention(inputs, {}, call, x, log_sum_exp, &y);
  return y;
}

}  // namespace lockstep::ops

namespace lockstep {

AttentionDropout MakeAttentionDropout(double p, uint64_t site, Device device, int64_t first_head) {
  LS_CHECK(p >= 0 && p < 1, "attention: dropout must be in [0, 1), got ", p);
  AttentionDropout dropout{.p = p, .site = site, .first_head = first_head};
  const StepState* state = p == 0 ? nullptr : RandomState();
  if (state == nullptr) return dropout;
  LS_CHECK(state->device() == device, "attention: the step state is on ", state->device(),
           " and the inputs are on ", device, ": make the StepState on the model's device");
  // A copy: backward may run when the next micro-batch has changed the state.
  dropout.step_values = state->tensor().Clone();
  return dropout;
}

AttentionScores MakeAttentionScores(const char* op, const ops::CausalAttentionOptions& options,
                                    int64_t d, int64_t batches, int64_t queries, int64_t keys,
                                    Device device) {
  for (const auto& [name, value] :
       {std::pair("scale", options.scale), std::pair("softcap", options.softcap),
        std::pair("window", static_cast<double>(options.window))}) {
    LS_CHECK(value >= 0 && std::isfinite(value), op, ": ", name,
             " must be a positive number, or 0 for the default, got ", value);
  }
  AttentionScores scores{
      .scale = options.scale == 0 ? 1 / std::sqrt(static_cast<double>(d)) : options.scale,
      .softcap = options.softcap,
      .window = options.window};
  const Tensor& first_key = options.first_key;
  if (!first_key.defined()) return scores;
  LS_CHECK(first_key.dtype() == DType::kI32 && first_key.shape() == Shape({batches, queries}) &&
               first_key.device() == device,
           op, ": first_key must be i32[", batches, ", ", queries, "], a key's position for each ",
           "query, on ", device, ", got ", first_key.Describe());
  scores.first_key = first_key.Detach().Contiguous();
  if (!device.is_cpu()) return scores;
  const int32_t* value = scores.first_key.data<int32_t>();
  for (int64_t at = 0; at < batches * queries; ++at) {
    const int64_t b = at / queries, i = at % queries, position = keys - queries + i;
    LS_CHECK(value[at] >= 0 && value[at] <= position, op, ": first_key[", b, ", ", i, "] is ",
             value[at], ", but the query's own position is ", position,
             ": a document begins at or before each of its tokens");
    LS_CHECK(i == 0 || value[at] >= value[at - 1], op, ": first_key[", b, ", ", i, "] is ",
             value[at], " after ", value[at - 1],
             ": documents follow one another, so it must not decrease along a row");
  }
  return scores;
}

}  // namespace lockstep
