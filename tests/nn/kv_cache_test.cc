#include "nn/kv_cache.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/step_state.h"
#include "kernels/attention/attention.h"
#include "nn/attention/causal_self_attention.h"
#include "nn/transformer_block.h"
#include "tests/message_of.h"
#include "tests/nn/reference.h"

namespace lockstep::nn {
namespace {

using test::MessageOf;
using test::RandomTensor;
using testing::ElementsAre;
using testing::HasSubstr;

double Difference(const Tensor& a, const Tensor& b) {
  return test::Difference(test::ToMatrix(a), test::ToMatrix(b));
}

// x [1, T, C] goes through `layer`, a branch or a block, in pieces of these lengths, as sequence
// `sequence` of the cache.
template <class L>
Tensor InPieces(L& layer, KvCache& cache, int64_t sequence, const Tensor& x,
                const std::vector<int64_t>& lengths) {
  std::vector<double> out;
  const int64_t before = cache.length(sequence);
  int64_t done = 0;
  for (int64_t n : lengths) {
    const KvCacheScope scope(cache, {sequence}, n, kCpu);
    const Tensor y = Complete(layer(x.Slice(1, done, done + n)));
    for (double v : y.ToVector<double>()) out.push_back(v);
    scope.Commit();
    done += n;
  }
  EXPECT_EQ(cache.length(sequence), before + done);
  return Tensor::FromVector(out, {1, done, x.dim(2)});
}

TEST(KvCacheTest, AttentionInPiecesIsAttentionAtOnce) {
  CausalSelfAttention attention({.n_embd = 12, .n_head = 3});
  attention.Materialize(kCpu, 1, DType::kF64);
  test::Randomize(attention, 2);
  const Tensor x = RandomTensor({1, 10, 12}, 3);
  const NoGrad no_grad;
  const Tensor whole = Complete(attention(x));
  KvCache cache(3, 10);
  int64_t sequence = 0;
  for (const std::vector<int64_t>& lengths :
       std::vector<std::vector<int64_t>>{{10}, {4, 1, 1, 1, 1, 1, 1}, {1, 4, 5}}) {
    EXPECT_LT(Difference(InPieces(attention, cache, sequence++, x, lengths), whole), 1e-13);
  }
  // A cleared sequence starts again, whatever was there.
  cache.Clear(1);
  const Tensor other = RandomTensor({1, 10, 12}, 4);
  EXPECT_LT(Difference(InPieces(attention, cache, 1, other, {3, 7}), Complete(attention(other))),
            1e-13);
  // One that is truncated goes on from there.
  cache.Truncate(2, 4);
  EXPECT_EQ(cache.length(2), 4);
  EXPECT_LT(Difference(InPieces(attention, cache, 2, x.Slice(1, 4, 10).Contiguous(), {2, 4}),
                       whole.Slice(1, 4, 10).Contiguous()),
            1e-13);
}

// A text's first tokens and the later ones go through different kernels.
TEST(KvCacheTest, AWindowASoftCapAndAScaleHoldInPieces) {
  const Tensor q = RandomTensor({1, 10, 4, 6}, 1), k = RandomTensor({1, 10, 2, 6}, 2),
               v = RandomTensor({1, 10, 2, 6}, 3);
  const ops::CausalAttentionOptions options{.scale = 0.9, .softcap = 0.7, .window = 4};
  const NoGrad no_grad;
  const Tensor whole = ops::CausalAttention(q, k, v, options);
  for (const std::vector<int64_t>& lengths :
       std::vector<std::vector<int64_t>>{{7, 1, 1, 1}, {2, 5, 3}}) {
    KvCache cache(1, 10);
    int64_t done = 0;
    for (const int64_t n : lengths) {
      const KvCacheScope scope(cache, {0}, n, kCpu);
      const auto piece = [&](const Tensor& x) { return x.Slice(1, done, done + n); };
      KvCacheScope* const current = KvCacheScope::Current();
      const Tensor y = current->Attend(&cache, piece(q), piece(k), piece(v), options);
      EXPECT_LT(Difference(y, piece(whole)), 1e-13);
      scope.Commit();
      done += n;
    }
  }
}

// Rows of a batch that are at different positions, in another order than their sequences.
TEST(KvCacheTest, SequencesOfDifferentLengthsShareABatch) {
  TransformerBlock block({.n_embd = 12, .n_head = 2});
  block.Materialize(kCpu, 1, DType::kF64);
  test::Randomize(block, 2);
  const NoGrad no_grad;
  KvCache cache(4, 6);
  const std::vector<Tensor> texts = {RandomTensor({1, 6, 12}, 5), RandomTensor({1, 3, 12}, 6)};
  InPieces(block, cache, 2, texts[0].Slice(1, 0, 5), {5});
  InPieces(block, cache, 0, texts[1].Slice(1, 0, 2), {2});
  std::vector<double> last;
  for (const auto& [text, n] : {std::pair(texts[0], 6), std::pair(texts[1], 3)}) {
    for (double v : text.Slice(1, n - 1, n).ToVector<double>()) last.push_back(v);
  }
  const KvCacheScope scope(cache, {2, 0}, 1, kCpu);
  EXPECT_THAT(std::vector<int64_t>(scope.first_positions().begin(), scope.first_positions().end()),
              ElementsAre(5, 2));
  const Tensor y = Complete(block(Tensor::FromVector(last, {2, 1, 12})));
  scope.Commit();
  EXPECT_EQ(cache.length(2), 6);
  EXPECT_EQ(cache.length(0), 3);
  EXPECT_EQ(cache.length(1), 0);
  const KvCacheScope* outer = KvCacheScope::Current();
  EXPECT_EQ(outer, &scope);
  KvCache fresh(1, 6);
  const Tensor whole = [&] {
    const KvCacheScope whole_scope(fresh, {0}, 6, kCpu);
    return Complete(block(texts[0]));
  }();
  EXPECT_EQ(KvCacheScope::Current(), outer);
  EXPECT_LT(Difference(y.Slice(0, 0, 1), whole.Slice(1, 5, 6)), 1e-13);
}

TEST(KvCacheTest, TakesItsMemoryOnce) {
  CausalSelfAttention attention({.n_embd = 12, .n_head = 3});
  attention.Materialize(kCpu, 1);
  KvCache cache(2, 7);
  EXPECT_EQ(cache.bytes(), 0);
  for (int i = 0; i < 7; ++i) {
    const KvCacheScope scope(cache, {1}, 1, kCpu);
    attention(Tensor::Zeros({1, 1, 12}, DType::kF32));
    scope.Commit();
    EXPECT_EQ(cache.bytes(), 2 * 2 * 7 * 12 * 4);  // k and v, sequences, positions, width, f32
  }
}

// It would keep its keys after those of the first, as if the model had twice as many layers.
TEST(KvCacheTest, ASecondPassInOneScopeIsRefused) {
  CausalSelfAttention first({.n_embd = 4, .n_head = 1}), second({.n_embd = 4, .n_head = 1});
  first.Materialize(kCpu, 1);
  second.Materialize(kCpu, 2);
  const Tensor x = Tensor::Zeros({1, 1, 4}, DType::kF32);
  const auto pass = [&] { second(first(x)); };
  const auto expected = HasSubstr(
      "a second forward pass in one KvCacheScope: make a scope for each "
      "pass, and Commit() it");
  KvCache cache(1, 5);
  {
    const KvCacheScope scope(cache, {0}, 1, kCpu);
    pass();
    EXPECT_THAT(MessageOf(pass), expected) << "while the cache learns how many layers there are";
    scope.Commit();
    EXPECT_THAT(MessageOf([&] { scope.Commit(); }), HasSubstr("was committed already"));
    EXPECT_THAT(MessageOf(pass), expected);
  }
  EXPECT_EQ(cache.length(0), 1);
  const int64_t bytes = cache.bytes();
  {
    const KvCacheScope scope(cache, {0}, 1, kCpu);
    pass();
    EXPECT_THAT(MessageOf(pass), expected);
  }
  EXPECT_EQ(cache.bytes(), bytes);
  const KvCacheScope scope(cache, {0}, 1, kCpu);
  EXPECT_THAT(MessageOf([&] { second(x); }),
              HasSubstr("the model's layers run in a different order than in the first pass"));
}

TEST(KvCacheTest, APassThatIsNotCommittedLeavesNothing) {
  CausalSelfAttention attention({.n_embd = 4, .n_head = 1});
  attention.Materialize(kCpu, 1);
  KvCache cache(1, 3);
  {
    const KvCacheScope scope(cache, {0}, 2, kCpu);
    attention(Tensor::Zeros({1, 2, 4}, DType::kF32));
  }
  EXPECT_EQ(cache.length(0), 0);
  EXPECT_EQ(KvCacheScope::Current(), nullptr);
}

TEST(KvCacheTest, NoGradientIsRecorded) {
  CausalSelfAttention attention({.n_embd = 4, .n_head = 1});
  attention.Materialize(kCpu, 1);
  KvCache cache(1, 3);
  const KvCacheScope scope(cache, {0}, 1, kCpu);
  EXPECT_FALSE(Complete(attention(Tensor::Zeros({1, 1, 4}, DType::kF32))).requires_grad());
}

TEST(AtPositionsTest, CallsOncePerRunOfEqualLengths) {
  std::vector<std::pair<int64_t, int64_t>> calls;  // rows, first position
  const auto f = [&](const Tensor& part, int64_t first) {
    calls.emplace_back(part.dim(0), first);
    return part;
  };
  const Tensor x = RandomTensor({4, 1, 2}, 1);
  EXPECT_EQ(AtPositions(x, f).ToVector<double>(), x.ToVector<double>());
  EXPECT_THAT(calls, ElementsAre(std::pair(4, 0)));
  KvCache cache(4, 5);
  for (int64_t sequence : {0, 0, 1, 1, 3}) KvCacheScope(cache, {sequence}, 1, kCpu).Commit();
  calls.clear();
  const KvCacheScope scope(cache, {2, 0, 1, 3}, 1, kCpu);
  EXPECT_EQ(AtPositions(x, f).ToVector<double>(), x.ToVector<double>());
  EXPECT_THAT(calls, ElementsAre(std::pair(1, 0), std::pair(2, 2), std::pair(1, 1)));
}

TEST(KvCacheTest, ExplainsBadUse) {
  KvCache cache(2, 3);
  const auto scope = [&](std::vector<int64_t> sequences, int64_t tokens) {
    return MessageOf([&] { KvCacheScope(cache, sequences, tokens, kCpu); });
  };
  EXPECT_THAT(MessageOf([] { KvCache(0, 3); }), HasSubstr("at least one sequence"));
  EXPECT_THAT(MessageOf([] { KvCache(1, 0); }), HasSubstr("one position"));
  EXPECT_THAT(MessageOf([&] { cache.length(2); }), HasSubstr("sequence 2 of a cache of 2"));
  EXPECT_THAT(MessageOf([&] { cache.Clear(-1); }), HasSubstr("sequence -1 of a cache of 2"));
  EXPECT_THAT(MessageOf([&] { cache.Truncate(1, 1); }), HasSubstr("has 0 tokens"));
  EXPECT_THAT(scope({2}, 1), HasSubstr("sequence 2 of a cache of 2"));
  EXPECT_THAT(scope({}, 1), HasSubstr("needs tokens"));
  EXPECT_THAT(scope({0}, 0), HasSubstr("needs tokens"));
  EXPECT_THAT(scope({1, 1}, 1), HasSubstr("in the batch twice"));
  EXPECT_THAT(scope({0}, 4), HasSubstr("4 more do not fit"));
  KvCacheScope(cache, {1}, 1, kCpu).Commit();
  EXPECT_THAT(scope({0, 1}, 2), HasSubstr("must not mix new sequences and ones that continue"));
  EXPECT_EQ(scope({0, 1}, 1), "no error");
  EXPECT_EQ(KvCacheScope::Current(), nullptr);
  const KvCacheScope good(cache, {0}, 2, kCpu);
  CausalSelfAttention attention({.n_embd = 4, .n_head = 1});
  attention.Materialize(kCpu, 1);
  EXPECT_THAT(MessageOf([&] {
                attention(Tensor::Zeros({1, 1, 4}, DType::kF32));
              }),
              HasSubstr("keys must be [1, 2, G, D]"));
}

}  // namespace
}  // namespace lockstep::nn
