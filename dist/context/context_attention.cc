#include "dist/context/context_attention.h"

#include "core/autograd/node.h"
#include "core/autograd/saved_tensor.h"
#include "kernels/attention/attention.h"

namespace lockstep::dist {
namespace {

struct Heads {
  int64_t q, kv;  // kv: of keys, and as many of values

  int64_t all() const { return q + 2 * kv; }
  // [B, T, all() D] as [B, T, all(), D].
  Tensor Apart(const Tensor& qkv) const {
    return qkv.Detach().View({qkv.dim(0), qkv.dim(1), all(), qkv.dim(2) / all()});
  }
  Tensor Queries(const Tensor& apart) const { return apart.Slice(2, 0, q); }
  Tensor KeysAndValues(const Tensor& apart) const { return apart.Slice(2, q, all()); }
  // The keys of [B, T, 2 kv, D].
  Tensor Keys(const Tensor& kv_heads) const { return kv_heads.Slice(2, 0, kv); }
  Tensor Values(const Tensor& kv_heads) const { return kv_heads.Slice(2, kv, 2 * kv); }
};

// [B, T, 2 kv, D]
Tensor GatherKeys(const ContextRanks& ranks, const Heads& heads, const std::vector<Tensor>& qkv) {
  std::vector<Tensor> own;
  for (const Tensor& x : qkv) own.push_back(heads.KeysAndValues(heads.Apart(x)));
  return ranks.GatherChunks(own);
}

// What the queries of the rank's j-th chunk see: the chunks up to it.
Tensor Seen(const ContextRanks& ranks, const Tensor& whole, int64_t j) {
  return whole.Slice(1, 0, (ranks.PartAt(j) + 1) * (whole.dim(1) / ranks.chunks()));
}

// The scores of this rank's chunks, each [batch, length, ...].
std::vector<AttentionScores> ScoresOfChunks(const ContextRanks& ranks,
                                            ops::CausalAttentionOptions options, int64_t d,
                                            int64_t batch, int64_t length, Device device) {
  std::vector<Tensor> first_keys(static_cast<size_t>(ranks.own()));
  if (options.first_key.defined()) {
    LS_CHECK(options.first_key.shape() == Shape({batch, length * ranks.chunks()}),
             "context_attention: first_key must be i32[", batch, ", ", length * ranks.chunks(),
             "], of the whole sequence, got ", options.first_key.Describe());
    first_keys = ranks.Cut(options.first_key);
  }
  std::vector<AttentionScores> scores;
  for (int64_t j = 0; j < ranks.own(); ++j) {
    options.first_key = first_keys[static_cast<size_t>(j)];
    scores.push_back(MakeAttentionScores("context_attention", options, d, batch, length,
                                         (ranks.PartAt(j) + 1) * length, device));
  }
  return scores;
}

// The rank's j-th chunk of chunks that are concatenated along dimension 0.
Tensor ChunkOf(const ContextRanks& ranks, const Tensor& below, int64_t j) {
  const int64_t batch = below.dim(0) / ranks.own();
  return below.Slice(0, j * batch, (j + 1) * batch);
}

// `scores` of each chunk. Saved are y, the log-sum-exp, and the chunks of qkv.
void Backward(const ContextRanks& ranks, const Heads& heads,
              const std::vector<AttentionScores>& scores, const AttentionDropout& dropout,
              const SavedTensors& saved, Gradients& grads) {
  std::vector<Tensor> qkv, of_keys;
  for (size_t j = 0; j < grads.inputs(); ++j) qkv.push_back(saved[2 + j]);
  const Tensor whole = GatherKeys(ranks, heads, qkv);
  const Tensor y = saved[0], lse = saved[1], dy = grads[0].Contiguous();
  std::vector<GradTarget> targets;
  for (int64_t j = 0; j < ranks.own(); ++j) {
    const auto at = static_cast<size_t>(j);
    // Ranks must make the same calls: all chunks come from one tensor.
    LS_INVARIANT(grads.needs(at), "a chunk without a gradient");
    targets.push_back(grads.Open(at));
    const Tensor seen = Seen(ranks, whole, j);
    of_keys.push_back(Tensor::Empty(seen.shape(), seen.dtype(), seen.device()));
    AttentionBackwardArgs args;
    args.q = heads.Queries(heads.Apart(qkv[at]));
    args.k = heads.Keys(seen);
    args.v = heads.Values(seen);
    args.scores = scores[at];
    args.dropout = dropout;
    args.y = ChunkOf(ranks, y, j).View(args.q.shape());
    args.log_sum_exp = ChunkOf(ranks, lse, j);
    args.dy = ChunkOf(ranks, dy, j).View(args.q.shape());
    args.dq = heads.Queries(heads.Apart(targets[at].tensor));
    args.dk = heads.Keys(of_keys[at]);
    args.dv = heads.Values(of_keys[at]);
    args.accumulate_q = targets[at].accumulate;
    attention_backward(CurrentStream(args.q.device()), args);
  }
  const std::vector<Tensor> sums = ranks.SumForChunks(of_keys);
  for (size_t j = 0; j < sums.size(); ++j) {
    const Tensor place = heads.KeysAndValues(heads.Apart(targets[j].tensor));
    GradTarget{place, targets[j].accumulate}.Write(sums[j]);
  }
}

}  // namespace

Tensor ContextAttention(const ContextRanksPtr& ranks, const std::vector<Tensor>& qkv,
                        const nn::AttentionCall& call) {
  const Heads heads{call.n_head, call.n_kv_head};
  LS_CHECK(std::ssize(qkv) == ranks->own(), "context_attention takes this rank's ", ranks->own(),
           " chunks, got ", qkv.size());
  std::vector<Tensor> inputs;
  std::vector<const Tensor*> edges;
  for (const Tensor& x : qkv) {
    LS_CHECK(x.defined() && IsFloating(x.dtype()) && x.ndim() == 3 && x.shape() == qkv[0].shape() &&
                 x.dim(2) % heads.all() == 0,
             "context_attention: chunks must be floating tensors [B, T / chunks, ", heads.all(),
             " D] of one shape, got ", x.Describe());
    inputs.push_back(x.Detach().Contiguous());
    edges.push_back(&x);
  }
  const int64_t batch = qkv[0].dim(0), length = qkv[0].dim(1), d = qkv[0].dim(2) / heads.all();
  const Device device = qkv[0].device();
  const DType dtype = qkv[0].dtype();
  const AttentionDropout dropout = MakeAttentionDropout(call.options.dropout, call.options.site,
                                                        device, call.options.first_head);
  const std::vector<AttentionScores> scores =
      ScoresOfChunks(*ranks, call.options, d, batch, length, device);
  const Tensor whole = GatherKeys(*ranks, heads, inputs);
  Tensor y = Tensor::Empty({ranks->own() * batch, length, heads.q * d}, dtype, device);
  const Tensor log_sum_exp =
      Tensor::Empty({ranks->own() * batch, heads.q, length}, AccumulationDType(dtype), device);
  for (int64_t j = 0; j < ranks->own(); ++j) {
    const Tensor q = heads.Queries(heads.Apart(inputs[static_cast<size_t>(j)]));
    const Tensor seen = Seen(*ranks, whole, j);
    attention_forward(
        CurrentStream(device),
        {q, heads.Keys(seen), heads.Values(seen), scores[static_cast<size_t>(j)], dropout,
         ChunkOf(*ranks, y, j).View(q.shape()), ChunkOf(*ranks, log_sum_exp, j)});
  }
  std::vector<Kept> keep = {{y, "the output of context_attention"},
                            {log_sum_exp, "the log-sum-exp of context_attention"}};
  for (const Tensor& x : inputs) keep.push_back({x, "an input of context_attention"});
  const std::array<Tensor*, 1> outputs = {&y};
  RecordOp("context_attention", edges, outputs, keep,
           [=](const SavedTensors& saved, Gradients& grads) {
             Backward(*ranks, heads, scores, dropout, saved, grads);
           });
  return dropout.evaluated() ? Evaluated(y) : y;
}

}  // namespace lockstep::dist
