// Attention over tiles of 64 queries x 64 keys, in vectors of kVectorBytes. Included only by
// attention_cpu.cc, once per instruction set, inside a namespace and a target of its own: hence no
// #pragma once, no other includes, and nothing from the standard library. Results do not depend on
// the vector width: lanes never interact, and every sum runs in the order of its index.
//
// Tiles hold scores transposed, [key][query]. So one transposed copy of the queries serves all
// keys, and the softmax over keys runs down columns, whose lanes are independent queries.
#ifdef LOCKSTEP_ATTENTION_VECTOR_BYTES

#include "kernels/attention/attention_vector_cpu.h"

// ---- Tiles. ----

// One tile: queries [i0, i0 + queries), keys [j0, j0 + keys). Key r of the tile is seen by its
// queries FirstQuery(r) <= c < EndQuery(r) only, because of the diagonal and the window.
struct Tile {
  int64_t i0, queries, j0, keys, window;  // window: 0: none

  bool diagonal() const { return i0 < j0 + kTile - 1; }
  // May be beyond the tile's queries, or before them.
  int64_t EndQuery(int64_t r) const { return window > 0 ? r + window - (i0 - j0) : 2 * kTile; }
  // May be beyond the tile's queries.
  int64_t FirstQuery(int64_t r) const {
    const int64_t c = r - (i0 - j0);
    return diagonal() && c > 0 ? c : 0;
  }
  // Keys that the query vectors [c, c + lanes) see at all.
  int64_t KeysSeen(int64_t c, int64_t lanes) const {
    const int64_t seen = c + lanes + (i0 - j0);
    if (!diagonal() || seen >= keys) return keys;
    return seen > 0 ? seen : 0;
  }
};

template <class T>
inline Vec<T> Iota() {
  Vec<T> v;
  for (int i = 0; i < kLanes<T>; ++i) v[i] = static_cast<T>(i);
  return v;
}

// Row r of a tile, columns [c, c + lanes): `x` where the query sees the key.
template <class T>
inline Vec<T> Mask(const Tile& tile, int64_t r, int64_t c, Vec<T> x, T otherwise) {
  const int64_t first = tile.FirstQuery(r), end = tile.EndQuery(r);
  if (c < first) x = Iota<T>() + static_cast<T>(c - first) >= Vec<T>{} ? x : Vec<T>{} + otherwise;
  if (c + kLanes<T> <= end) return x;
  return Iota<T>() + static_cast<T>(c - end) < Vec<T>{} ? x : Vec<T>{} + otherwise;
}

// scores [keys, queries] = K Q^T, or the same product of V and dY^T; what is masked is not written.
template <class T>
inline void Scores(const Tile& tile, int64_t d, const T* k, int64_t ld, const T* qt, T* scores) {
  constexpr int64_t kColumns = 2 * kLanes<T>;
  Product(tile.keys, tile.queries, k, ld, int64_t{1}, qt, kTile, scores, kTile, false,
          [&](int64_t r) {
            return Range{0, d, tile.FirstQuery(r) / kColumns * kColumns};
          });
}

// out [queries, d] = P^T X, or += that, for P [keys, queries], X [keys, d].
template <class T>
inline void ByQuery(const Tile& tile, int64_t d, const T* p, const T* x, int64_t ld,
                    bool accumulate, T* out) {
  Product(tile.queries, d, p, int64_t{1}, kTile, x, ld, out, ld, accumulate, [&](int64_t c) {
    return Range{0, tile.KeysSeen(c, kRows), 0};
  });
}

// out [keys, d] = P X, or += that, for P [keys, queries], X [queries, d].
template <class T>
inline void ByKey(const Tile& tile, int64_t d, const T* p, const T* x, int64_t ld, bool accumulate,
                  T* out) {
  Product(tile.keys, d, p, kTile, int64_t{1}, x, ld, out, ld, accumulate, [&](int64_t r) {
    return Range{tile.FirstQuery(r), tile.queries, 0};
  });
}

// softcap tanh(scores / softcap); 0: nothing.
template <class T>
inline void SoftCap(const Tile& tile, T softcap, T* scores) {
  if (softcap == 0) return;
  const T inverse = 1 / softcap;
  for (int64_t c = 0; c < tile.queries; c += kLanes<T>) {
    for (int64_t r = 0; r < tile.KeysSeen(c, kLanes<T>); ++r) {
      T* at = scores + r * kTile + c;
      Store(at, TanhVector(Load(at) * inverse) * softcap);
    }
  }
}

// The running softmax: scores become exp(scores - max), and max, sum and the factor by which
// earlier sums and outputs shrink follow. `first`: there are none.
template <class T>
inline void OnlineSoftmax(const Tile& tile, bool first, T* scores, T* max, T* sum, T* shrink) {
  constexpr T kMinusInfinity = -__builtin_huge_val();
  for (int64_t c = 0; c < tile.queries; c += kLanes<T>) {
    const int64_t seen = tile.KeysSeen(c, kLanes<T>);
    Vec<T> largest = first ? Vec<T>{} + kMinusInfinity : Load(max + c);
    const Vec<T> before = largest;
    for (int64_t r = 0; r < seen; ++r) {
      const Vec<T> s = Mask(tile, r, c, Load(scores + r * kTile + c), kMinusInfinity);
      largest = s > largest ? s : largest;
    }
    // A query may see no key of its first tiles.
    const Vec<T> shift = largest > kMinusInfinity ? largest : Vec<T>{};
    Vec<T> total = {};
    for (int64_t r = 0; r < seen; ++r) {
      T* at = scores + r * kTile + c;
      const Vec<T> p = ExpVector(Mask(tile, r, c, Load(at), kMinusInfinity) - shift);
      Store(at, p);
      total += p;
    }
    for (int64_t r = seen; r < tile.keys; ++r) Store(scores + r * kTile + c, Vec<T>{});
    if (!first) {
      const Vec<T> factor = ExpVector(before - shift);
      Store(shrink + c, factor);
      total = Fma(Load(sum + c), factor, total);
    }
    Store(max + c, largest);
    Store(sum + c, total);
  }
}

// 1 / (1 - p) where dropout keeps, else 0: [keys, queries]. Masked elements hold either.
template <class T>
inline void DropoutMask(const Tile& tile, const HeadDropout& dropout, T* mask) {
  const T kept = static_cast<T>(1 / (1 - dropout.p));
  const Philox random(dropout.seed);
  uint32_t words[4][kTile] = {};
  // Four neighbouring keys, from a multiple of 4 on, share random numbers.
  for (int64_t key = tile.j0 / 4 * 4; key < tile.j0 + tile.keys; key += 4) {
    const int64_t r = key - tile.j0, first = tile.FirstQuery(r > 0 ? r : 0);
    QueryRandom(random, dropout.stream, tile.i0, first, key / 4, words);
    for (int64_t row = r < 0 ? -r : 0; row < 4 && r + row < kTile; ++row) {
      T* out = mask + (r + row) * kTile;
      for (int64_t c = 0; c < kTile; ++c) {
        out[c] = DropoutKeeps(words[row][c], dropout.threshold) ? kept : T(0);
      }
    }
  }
}

// x [keys, queries] *= y.
template <class T>
inline void MultiplyTile(const Tile& tile, const T* y, T* x) {
  for (int64_t r = 0; r < tile.keys; ++r) {
    for (int64_t c = 0; c < tile.queries; c += kLanes<T>) {
      const int64_t at = r * kTile + c;
      Store(x + at, Load(x + at) * Load(y + at));
    }
  }
}

// ---- Forward: some queries of one head. ----

template <class T, class X>
void ForwardHead(const Head<T, X>& head, const QueryRange& run, Buffers<T>& buffers) {
  const int64_t begin = run.begin, end = run.end;
  const int64_t d = head.d, ld = RoundUp(d, kLanes<T>), blocks = DivideUp(end - begin, kTile);
  buffers.Reset(kTile * ld * 3 + blocks * (kTile * ld * 2 + 2 * kTile) + 2 * kTile * kTile + kTile);
  T* const rows = buffers.Take(kTile * ld);
  T* const k = buffers.Take(kTile * ld);
  T* const v = buffers.Take(kTile * ld);
  T* const scores = buffers.Take(kTile * kTile);
  T* const mask = buffers.Take(kTile * kTile);
  T* const shrink = buffers.Take(kTile);
  T* const qt = buffers.Take(blocks * kTile * ld);
  T* const y = buffers.Take(blocks * kTile * ld);
  T* const max = buffers.Take(blocks * kTile);
  T* const sum = buffers.Take(blocks * kTile);
  const auto rows_at = [&](int64_t i) { return end - i < kTile ? end - i : kTile; };
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t i = begin + block * kTile;
    TransposeRows(head.q.Row(i), head.q.stride, rows_at(i), d, ld, static_cast<T>(head.scale), rows,
                  qt + block * kTile * ld);
  }

  for (int64_t j = run.FirstTile(begin, head.window); j < end; j += kTile) {
    const int64_t keys = rows_at(j);
    Pack(head.k.Row(j), head.k.stride, keys, RoundUp(keys, kRows), d, ld, k);
    Pack(head.v.Row(j), head.v.stride, keys, RoundUp(keys, kRows), d, ld, v);
    for (int64_t block = j > begin ? (j - begin) / kTile : 0; block < blocks; ++block) {
      const int64_t i = begin + block * kTile;
      const int64_t first_tile = run.FirstTile(i, head.window);
      if (j < first_tile) continue;
      const bool first = j == first_tile;
      const Tile tile{i, rows_at(i), j, keys, head.window};
      T* const out = y + block * kTile * ld;
      Scores(tile, d, k, ld, qt + block * kTile * ld, scores);
      SoftCap(tile, static_cast<T>(head.softcap), scores);
      OnlineSoftmax(tile, first, scores, max + block * kTile, sum + block * kTile, shrink);
      if (!first) {
        for (int64_t c = 0; c < tile.queries; ++c) {
          for (int64_t l = 0; l < ld; l += kLanes<T>) {
            Store(out + c * ld + l, Load(out + c * ld + l) * shrink[c]);
          }
        }
      }
      if (head.dropout.p > 0) {
        DropoutMask(tile, head.dropout, mask);
        MultiplyTile(tile, mask, scores);
      }
      ByQuery(tile, d, scores, v, ld, !first, out);
    }
  }
  for (int64_t i = begin; i < end; ++i) {
    const T total = sum[i - begin];
    head.log_sum_exp[i - head.first] = max[i - begin] + Log(total);
    const T inverse = T(1) / total;
    const T* in = y + (i - begin) * ld;
    X* out = head.y.Row(i);
    for (int64_t l = 0; l < d; ++l) out[l] = Narrow<X>(in[l] * inverse);
  }
}

// ---- Backward: one key head with all of its query heads. ----

// A tile of backward. P = exp(S - log-sum-exp); with Z the mask of dropout, dV += (P Z)^T dY and
// dS = P (Z dP - delta), where dP = dY V^T and delta_i = sum_l dy_il y_il; a soft cap makes S from
// t = tanh(scores / softcap) and multiplies dS by 1 - t^2.
template <class T>
struct BackwardTile {
  T *k, *v, *dk, *dv;           // [keys, ld]
  T *q, *dy, *dq;               // [queries, ld]
  T *qt, *dyt;                  // [d, kTile], qt scaled
  T *log_sum_exp, *delta;       // [queries]
  T *scores, *d_scores, *mask;  // [keys, queries]

  // Adds to dk and dv, and to dq, unless this is the `first` tile of these queries, which starts
  // it.
  template <class X>
  void Run(const Tile& tile, const Head<T, X>& head, int64_t ld, bool first) const {
    const int64_t d = head.d;
    const HeadDropout& dropout = head.dropout;
    const T softcap = static_cast<T>(head.softcap), inverse = softcap > 0 ? 1 / softcap : 0;
    Scores(tile, d, k, ld, qt, scores);
    Scores(tile, d, v, ld, dyt, d_scores);
    const bool drop = dropout.p > 0;
    if (drop) DropoutMask(tile, dropout, mask);
    for (int64_t c = 0; c < tile.queries; c += kLanes<T>) {
      const int64_t seen = tile.KeysSeen(c, kLanes<T>);
      const Vec<T> shift = Load(log_sum_exp + c), minus = -Load(delta + c);
      // Products continue to the end of a block of rows, where other keys may follow.
      for (int64_t r = 0; r < RoundUp(tile.keys, kRows); ++r) {
        const int64_t at = r * kTile + c;
        if (r >= seen) {
          Store(scores + at, Vec<T>{});
          Store(d_scores + at, Vec<T>{});
          continue;
        }
        Vec<T> s = Load(scores + at), t = {};
        if (softcap > 0) {
          t = TanhVector(s * inverse);
          s = t * softcap;
        }
        const Vec<T> p = Mask(tile, r, c, ExpVector(s - shift), T(0));
        const Vec<T> z = drop ? Load(mask + at) : Vec<T>{} + T(1);
        Vec<T> ds = p * Fma(Load(d_scores + at), z, minus);
        if (softcap > 0) ds *= Fma(-t, t, Broadcast(T(1)));
        Store(scores + at, drop ? p * z : p);
        Store(d_scores + at, Mask(tile, r, c, ds, T(0)));
      }
    }
    ByKey(tile, d, scores, dy, ld, true, dv);
    ByKey(tile, d, d_scores, q, ld, true, dk);
    ByQuery(tile, d, d_scores, k, ld, !first, dq);
  }
};

template <class T, class X>
inline void PutRows(const T* from, int64_t ld, int64_t n, int64_t d, T factor, bool accumulate,
                    X* to, int64_t stride) {
  for (int64_t i = 0; i < n; ++i) {
    const T* in = from + i * ld;
    X* out = to + i * stride;
    if (accumulate) {
      for (int64_t l = 0; l < d; ++l) out[l] = Narrow<X>(Widen<T>(out[l]) + in[l] * factor);
    } else {
      for (int64_t l = 0; l < d; ++l) out[l] = Narrow<X>(in[l] * factor);
    }
  }
}

// heads: the query heads that share k and v, n of them. length: of the keys. runs: of queries, a
// range.
template <class T, class X, class Runs>
void BackwardHeads(const Head<T, X>* heads, int64_t n, int64_t length, const Runs& runs,
                   Buffers<T>& buffers) {
  const int64_t d = heads->d, ld = RoundUp(d, kLanes<T>);
  const int64_t padded = RoundUp(length, kTile) + kRows, whole = padded * ld;
  const T scale = static_cast<T>(heads->scale);
  buffers.Reset(4 * whole + 6 * kTile * ld + 3 * kTile * kTile + 2 * kTile);
  T* const k = buffers.Take(whole);
  T* const v = buffers.Take(whole);
  T* const dk = buffers.Take(whole);
  T* const dv = buffers.Take(whole);
  BackwardTile<T> t;
  for (T** p : {&t.q, &t.dy, &t.dq, &t.qt, &t.dyt}) *p = buffers.Take(kTile * ld);
  T* const yt = buffers.Take(kTile * ld);
  for (T** p : {&t.scores, &t.d_scores, &t.mask}) *p = buffers.Take(kTile * kTile);
  for (T** p : {&t.log_sum_exp, &t.delta}) *p = buffers.Take(kTile);
  Pack(heads->k.Row(0), heads->k.stride, length, padded, d, ld, k);
  Pack(heads->v.Row(0), heads->v.stride, length, padded, d, ld, v);
  for (int64_t at = 0; at < whole; ++at) dk[at] = dv[at] = 0;

  const auto run_head = [&](const Head<T, X>* head, const QueryRange& run) {
    for (int64_t i = run.begin; i < run.end; i += kTile) {
      const int64_t queries = run.end - i < kTile ? run.end - i : kTile;
      Pack(head->q.Row(i), head->q.stride, queries, kTile, d, ld, t.q);
      Pack(head->dy.Row(i), head->dy.stride, queries, kTile, d, ld, t.dy);
      TransposeTile(t.q, ld, d, scale, t.qt);
      TransposeTile(t.dy, ld, d, T(1), t.dyt);
      T* const rows = t.dq;  // which is not in use yet
      TransposeRows(head->y.Row(i), head->y.stride, queries, d, ld, T(1), rows, yt);
      for (int64_t c = 0; c < kTile; c += kLanes<T>) {
        Vec<T> delta = {};
        for (int64_t l = 0; l < d; ++l) {
          delta = Fma(Load(t.dyt + l * kTile + c), Load(yt + l * kTile + c), delta);
        }
        Store(t.delta + c, delta);
      }
      for (int64_t c = 0; c < kTile; ++c) {
        t.log_sum_exp[c] = c < queries ? head->log_sum_exp[i - head->first + c] : T(0);
      }
      const int64_t first_tile = run.FirstTile(i, head->window);
      for (int64_t j = first_tile; j < i + queries; j += kTile) {
        t.k = k + j * ld;
        t.v = v + j * ld;
        t.dk = dk + j * ld;
        t.dv = dv + j * ld;
        const int64_t keys = run.end - j < kTile ? run.end - j : kTile;
        t.Run({i, queries, j, keys, head->window}, *head, ld, j == first_tile);
      }
      PutRows(t.dq, ld, queries, d, scale, head->accumulate_q, head->dq.Row(i), head->dq.stride);
    }
  };
  for (const Head<T, X>* head = heads; head < heads + n; ++head) {
    for (const QueryRange& run : runs) run_head(head, run);
  }
  PutRows(dk, ld, length, d, scale, heads->accumulate_k, heads->dk.Row(0), heads->dk.stride);
  PutRows(dv, ld, length, d, T(1), heads->accumulate_v, heads->dv.Row(0), heads->dv.stride);
}

#endif  // LOCKSTEP_ATTENTION_VECTOR_BYTES
