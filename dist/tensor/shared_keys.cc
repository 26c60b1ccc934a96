#include "dist/tensor/shared_keys.h"

#include <algorithm>
#include <numeric>

#include "core/autograd/node.h"
#include "kernels/concat/concat.h"

namespace lockstep::dist {
namespace {

// The heads of a layer, and what a rank has of them.
struct Heads {
  int64_t ranks, rank;
  int64_t q, kv, copies;  // in all; of each key head
  int64_t d;              // elements of a head

  int64_t queries() const { return q / ranks * d; }  // elements of a token
  // How many ranks have copies of the same key head.
  int64_t sharing() const { return std::max<int64_t>(1, ranks / kv); }
  int64_t own() const { return std::max<int64_t>(1, kv / ranks); }  // key heads
  int64_t own_copies() const { return copies / sharing(); }         // of each of them

  // [B, T, n] to [B, T, 2, kv elements]: keys and values of a fused tensor.
  Tensor KeysAndValues(const Tensor& fused) const {
    const Tensor both = fused.Slice(2, queries(), fused.dim(2));
    return both.Contiguous().View({both.dim(0), both.dim(1), 2, both.dim(2) / 2});
  }
};

// This rank's key heads, whole: [B, T, 2, own, 1, D].
Tensor OwnHeads(const TensorRanks& ranks, const Heads& h, const Tensor& qkv) {
  Tensor kv = h.KeysAndValues(qkv);
  const int64_t batch = kv.dim(0), t = kv.dim(1);
  if (h.sharing() > 1) {
    const Tensor all =
        ranks.Gather(kv, "keys and values").View({h.ranks, batch * t * 2, kv.dim(3)});
    kv = all.Transpose(0, 1).Contiguous().View({batch, t, 2, h.kv * h.d});
    const int64_t begin = h.rank / h.sharing() * h.d;
    kv = kv.Slice(3, begin, begin + h.d).Contiguous();
  }
  return kv.View({batch, t, 2, h.own(), 1, h.d});
}

void Backward(const TensorRanks& ranks, const Heads& h, Gradients& grads) {
  const Tensor dy = grads[0].Contiguous();
  const int64_t batch = dy.dim(0), t = dy.dim(1);
  const DType wide = AccumulationDType(dy.dtype());
  const Tensor copies = h.KeysAndValues(dy).View({batch * t * 2 * h.own(), h.own_copies(), h.d});
  Tensor sum = AddInPairs(h.own_copies(),
                          [&](int64_t i) { return copies.Slice(1, i, i + 1).Clone().To(wide); });
  if (h.sharing() > 1) {
    const Tensor all = ranks.Gather(sum, "gradients of keys and values");
    const int64_t first = h.rank / h.sharing() * h.sharing(), rows = h.d / h.sharing();
    sum = AddInPairs(h.sharing(), [&](int64_t r) {
            return all.Slice(0, first + r, first + r + 1).View({batch * t * 2, h.d});
          }).Slice(1, (h.rank - first) * rows, (h.rank - first + 1) * rows);
  }
  const int64_t elements = h.kv * h.d / h.ranks;
  const GradTarget to = grads.Open(0);
  const auto write = [&](int64_t begin, const Tensor& part) {
    GradTarget{to.tensor.Slice(2, begin, begin + part.dim(2)), to.accumulate}.Write(part);
  };
  write(0, dy.Slice(2, 0, h.queries()));
  write(h.queries(), sum.Contiguous().View({batch, t, 2 * elements}));
}

}  // namespace

int64_t KeyCopies(int64_t n_head, int64_t n_kv_head, int64_t parts) {
  const int64_t of_heads = std::gcd(n_head, parts);
  return of_heads % n_kv_head == 0 ? of_heads / n_kv_head : 1;
}

Tensor CopyKeys(const TensorRanksPtr& ranks, const Tensor& qkv, int64_t n_head, int64_t n_kv_head,
                int64_t copies) {
  const Heads h{ranks->size(), ranks->rank(),
                n_head,        n_kv_head,
                copies,        qkv.dim(2) * ranks->size() / (n_head + 2 * n_kv_head)};
  const Tensor own = qkv.Detach().Contiguous(), heads = OwnHeads(*ranks, h, own);
  Shape shape = heads.shape();
  shape[4] = h.own_copies();
  const Tensor kv = heads.Expand(shape).Contiguous().View(
      {qkv.dim(0), qkv.dim(1), 2 * h.own() * h.own_copies() * h.d});
  Tensor y = ops::Concat({own.Slice(2, 0, h.queries()), kv}, 2);
  RecordOp("copy_keys", {&qkv}, {&y}, {},
           [ranks, h](const SavedTensors&, Gradients& grads) { Backward(*ranks, h, grads); });
  return y;
}

void ShareHeads(nn::CausalSelfAttention& attention, const TensorRanksPtr& ranks) {
  const int64_t q = attention.n_head(), kv = attention.n_kv_head();
  const int64_t copies = KeyCopies(q, kv, ranks->parts());
  if (copies == 1) return attention.KeepHeads(ranks->size(), ranks->rank());
  attention.KeepHeads(ranks->size(), ranks->rank(), copies,
                      [=](const Tensor& qkv) { return CopyKeys(ranks, qkv, q, kv, copies); });
}

}  // namespace lockstep::dist
