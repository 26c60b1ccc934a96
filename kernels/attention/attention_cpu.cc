#include <algorithm>
#include <iterator>
#include <vector>

#include "core/round_up.h"
#include "kernels/attention/attention.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/philox.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/vector.h"

namespace lockstep::cpu {
namespace {

constexpr int64_t kTile = 64;

template <class T, class X>
inline T Widen(X x) {
  return Convert<T>(x);
}
template <class X, class T>
inline X Narrow(T x) {
  return Convert<X>(x);
}

// The rows of one head of one sample, from position `first` on.
template <class X>
struct Rows {
  X* data = nullptr;
  int64_t stride = 0;  // from one position to the next
  int64_t first = 0;

  Rows() = default;
  Rows(const Tensor& x, int64_t batch, int64_t head, int64_t first = 0) : first(first) {
    if (!x.defined()) return;
    data = x.data<X>() + batch * x.strides()[0] + head * x.strides()[2];
    stride = x.strides()[1];
  }
  X* Row(int64_t i) const { return data + (i - first) * stride; }
};

// Queries [begin, end) that see no key before `first_key`: of one document, if rows are packed.
// Tiles of keys begin there, so that a document's sums do not depend on where in a row it is.
struct QueryRange {
  int64_t begin, end, first_key;

  // Where the first tile of keys begins that a query from i on sees.
  int64_t FirstTile(int64_t i, int64_t window) const {
    const int64_t lowest = window > 0 ? i - window + 1 : 0;
    return lowest <= first_key ? first_key : first_key + (lowest - first_key) / kTile * kTile;
  }
};

struct HeadDropout {
  double p = 0;
  uint64_t seed = 0, stream = 0;
  uint32_t threshold = 0;
};

// out[w][c] = random(stream, (i0 + c) << 32 | low).v[w] for c from `first` on, or from before it.
void QueryRandom(const Philox& random, uint64_t stream, int64_t i0, int64_t first, int64_t low,
                 uint32_t (*out)[kTile]) {
#ifdef __AVX2__
  constexpr int64_t kLanes = 8, kGroups = 4;
  for (int64_t c = first / (kLanes * kGroups) * (kLanes * kGroups); c < kTile;
       c += kLanes * kGroups) {
    internal::PhiloxWords words[kGroups];
    for (int64_t g = 0; g < kGroups; ++g) {
      const __m256i query = _mm256_set1_epi32(static_cast<int>(i0 + c + g * kLanes));
      words[g] = {_mm256_set1_epi32(static_cast<int>(low)),
                  _mm256_add_epi32(query, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)),
                  _mm256_set1_epi32(static_cast<int>(stream)),
                  _mm256_set1_epi32(static_cast<int>(stream >> 32))};
    }
    internal::PhiloxRounds(random, words);
    for (int64_t g = 0; g < kGroups; ++g) {
      const internal::PhiloxWords& w = words[g];
      int word = 0;
      for (const __m256i& x : {w.c0, w.c1, w.c2, w.c3}) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out[word++] + c + g * kLanes), x);
      }
    }
  }
#else
  for (int64_t c = first; c < kTile; ++c) {
    const uint64_t counter = static_cast<uint64_t>(i0 + c) << 32 | static_cast<uint64_t>(low);
    const Philox::Block x = random(stream, counter);
    for (int word = 0; word < 4; ++word) out[word][c] = x.v[word];
  }
#endif
}

// T computes, X is stored.
template <class T, class X>
struct Head {
  Rows<X> q, k, v, y, dy, dq, dk, dv;
  int64_t first = 0;         // the position of the first query
  T* log_sum_exp = nullptr;  // of the queries
  bool accumulate_q = false, accumulate_k = false, accumulate_v = false;
  int64_t d = 0;
  double scale = 1, softcap = 0;
  int64_t window = 0;
  HeadDropout dropout;
};

// One thread's memory for tiles, handed out piece by piece.
template <class T>
class Buffers {
 public:
  void Reset(int64_t total) {
    next_ = memory_.Get(total);
    end_ = next_ + total;
  }
  T* Take(int64_t n) {
    T* const p = next_;
    next_ += n;
    LS_INVARIANT(next_ <= end_);
    return p;
  }

 private:
  Scratch<T> memory_;
  T *next_ = nullptr, *end_ = nullptr;
};

namespace avx2 {
#define LOCKSTEP_ATTENTION_VECTOR_BYTES 32
#include "kernels/attention/attention_tile_cpu.h"
#undef LOCKSTEP_ATTENTION_VECTOR_BYTES
}  // namespace avx2

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl")
namespace avx512 {
#define LOCKSTEP_ATTENTION_VECTOR_BYTES 64
#include "kernels/attention/attention_tile_cpu.h"
#undef LOCKSTEP_ATTENTION_VECTOR_BYTES
}  // namespace avx512
#pragma GCC pop_options

#else
namespace avx512 = avx2;
#endif

// Calls f(computing type, stored type).
template <class F>
void Dispatch(const Tensor& q, const F& f) {
  DispatchFloat("attention", q.dtype(),
                [&]<class X>(TypeTag<X>) { f(TypeTag<Acc<X>>(), TypeTag<X>()); });
}

HeadDropout MakeDropout(const AttentionDropout& dropout, int64_t batch, int64_t head) {
  HeadDropout out;
  if (!dropout.step_values.defined()) return out;
  const auto& step = *static_cast<const StepValues*>(dropout.step_values.raw_data());
  out.p = dropout.p;
  out.seed = step.seed;
  out.stream = AttentionDropoutStream(dropout.site, step.step, step.first_sample + batch,
                                      dropout.first_head + head);
  out.threshold = DropoutThreshold(dropout.p);
  return out;
}

// Shared by forward and backward. Head h of q attends to head h / group of k and v.
template <class T, class X, class Args>
Head<T, X> MakeHead(const Args& args, int64_t batch, int64_t head) {
  const int64_t group = args.q.dim(2) / args.k.dim(2), queries = args.q.dim(1);
  Head<T, X> h;
  h.first = args.k.dim(1) - queries;
  h.q = Rows<X>(args.q, batch, head, h.first);
  h.k = Rows<X>(args.k, batch, head / group);
  h.v = Rows<X>(args.v, batch, head / group);
  h.y = Rows<X>(args.y, batch, head, h.first);
  h.log_sum_exp = args.log_sum_exp.template data<T>() + (batch * args.q.dim(2) + head) * queries;
  h.d = args.q.dim(3);
  h.scale = args.scores.scale;
  h.softcap = args.scores.softcap;
  h.window = args.scores.window;
  h.dropout = MakeDropout(args.dropout, batch, head);
  return h;
}

// All queries of one sample.
template <class Args>
std::vector<QueryRange> RunsOf(const Args& args, int64_t batch) {
  const int64_t queries = args.q.dim(1), length = args.k.dim(1), first = length - queries;
  if (queries == 0) return {};
  if (!args.scores.first_key.defined()) return {{first, length, 0}};
  const int32_t* first_key = args.scores.first_key.template data<int32_t>() + batch * queries;
  std::vector<QueryRange> runs;
  for (int64_t i = first; i < length; ++i) {
    const int64_t key = first_key[i - first];
    if (runs.empty() || runs.back().first_key != key) runs.push_back({i, i, key});
    ++runs.back().end;
  }
  return runs;
}

// A call's worth of queries of each head of a sample.
struct Piece {
  int64_t batch;
  QueryRange run;
};

std::vector<Piece> PiecesOf(const AttentionForwardArgs& args) {
  // Queries of a piece: more of them reuse the keys they share, fewer divide better among threads.
  constexpr int64_t kQueries = 2 * kTile;
  std::vector<Piece> pieces;
  for (int64_t batch = 0; batch < args.q.dim(0); ++batch) {
    for (const QueryRange& run : RunsOf(args, batch)) {
      for (int64_t i = run.begin; i < run.end; i += kQueries) {
        pieces.push_back({batch, {i, std::min(run.end, i + kQueries), run.first_key}});
      }
    }
  }
  // Those that see the most keys go first.
  const auto keys = [](const Piece& piece) { return piece.run.end - piece.run.first_key; };
  std::stable_sort(pieces.begin(), pieces.end(),
                   [&](const Piece& a, const Piece& b) { return keys(a) > keys(b); });
  return pieces;
}

void AttentionForwardCpu(Stream, const AttentionForwardArgs& args) {
  const int64_t heads = args.q.dim(2);
  const std::vector<Piece> pieces = PiecesOf(args);
  Dispatch(args.q, [&]<class T, class X>(TypeTag<T>, TypeTag<X>) {
    const auto run = HasAvx512() ? avx512::ForwardHead<T, X> : avx2::ForwardHead<T, X>;
    ParallelForEach(std::ssize(pieces) * heads, 1, [&](int64_t at) {
      static thread_local Buffers<T> buffers;
      const Piece& piece = pieces[static_cast<size_t>(at / heads)];
      run(MakeHead<T, X>(args, piece.batch, at % heads), piece.run, buffers);
    });
  });
}

void AttentionBackwardCpu(Stream, const AttentionBackwardArgs& args) {
  const int64_t heads = args.k.dim(2), group = args.q.dim(2) / heads, length = args.k.dim(1);
  if (length == 0) return;
  Dispatch(args.q, [&]<class T, class X>(TypeTag<T>, TypeTag<X>) {
    const auto run = HasAvx512() ? avx512::BackwardHeads<T, X, std::vector<QueryRange>>
                                 : avx2::BackwardHeads<T, X, std::vector<QueryRange>>;
    ParallelForEach(args.q.dim(0) * heads, 1, [&](int64_t at) {
      static thread_local Buffers<T> buffers;
      static thread_local std::vector<Head<T, X>> members;
      const int64_t batch = at / heads, key_head = at % heads;
      members.clear();
      for (int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
        Head<T, X> h = MakeHead<T, X>(args, batch, head);
        h.dy = Rows<X>(args.dy, batch, head, h.first);
        h.dq = Rows<X>(args.dq, batch, head, h.first);
        h.dk = Rows<X>(args.dk, batch, key_head);
        h.dv = Rows<X>(args.dv, batch, key_head);
        h.accumulate_q = args.accumulate_q;
        h.accumulate_k = args.accumulate_k;
        h.accumulate_v = args.accumulate_v;
        members.push_back(h);
      }
      run(members.data(), group, length, RunsOf(args, batch), buffers);
    });
  });
}

LS_REGISTER(attention_forward, DeviceType::kCpu, AttentionForwardCpu);
LS_REGISTER(attention_backward, DeviceType::kCpu, AttentionBackwardCpu);

}  // namespace
}  // namespace lockstep::cpu
