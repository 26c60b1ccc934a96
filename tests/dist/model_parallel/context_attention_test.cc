// Attention of chunks of a sequence, on one rank and on two, is attention of the sequence: with a
// window, a soft cap, a scale and packed documents, which reach across the borders of chunks.
#include "dist/context/context_attention.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "core/autograd/engine.h"
#include "kernels/attention/attention.h"
#include "tests/dist/in_process.h"
#include "tests/dist/model_parallel/random_tensors.h"
#include "tests/message_of.h"

namespace lockstep::dist {
namespace {

constexpr int64_t kBatch = 2, kLength = 96, kHeads = 4, kKeyHeads = 2, kWidth = 6, kPairs = 2;
constexpr int64_t kChunks = 2 * kPairs, kChunk = kLength / kChunks;

Tensor Qkv() { return Random({kBatch, kLength, (kHeads + 2 * kKeyHeads) * kWidth}, 1); }
Tensor OutputGradient() { return Random({kBatch, kLength, kHeads * kWidth}, 2); }

ops::CausalAttentionOptions Options() {
  std::vector<int32_t> first_key;
  for (int32_t i = 0; i < kLength; ++i) first_key.push_back(i < 5 ? 0 : (i < 61 ? 5 : 61));
  for (int32_t i = 0; i < kLength; ++i) first_key.push_back(i < 48 ? 0 : 48);
  return {.scale = 0.7,
          .softcap = 1.5,
          .window = 30,
          .first_key = Tensor::FromVector(first_key, {kBatch, kLength}, kCpu)};
}

// By the number of a chunk: its y, then the gradient of its qkv.
using Results = std::map<int64_t, std::vector<std::vector<double>>>;

Tensor ChunkOf(const Tensor& whole, int64_t number) {
  return whole.Slice(1, number * kChunk, (number + 1) * kChunk).Contiguous();
}

void Attend(ProcessGroup* group, Results& results) {
  const auto ranks = std::make_shared<const ContextRanks>(group, kPairs);
  std::vector<Tensor> qkv;
  for (const Tensor& chunk : ranks->Cut(Qkv())) qkv.push_back(LeafOf(chunk));
  const nn::AttentionCall call{kHeads, kKeyHeads, Options(), nullptr};
  const Tensor y = ContextAttention(ranks, qkv, call);
  const Tensor dy = Tensor::Empty(y.shape(), y.dtype());
  const std::vector<Tensor> gradients = ranks->Cut(OutputGradient());
  for (int64_t j = 0; j < ranks->own(); ++j) {
    dy.Slice(0, j * kBatch, (j + 1) * kBatch).CopyFrom(gradients[static_cast<size_t>(j)]);
  }
  Backward(y, dy);
  for (int64_t j = 0; j < ranks->own(); ++j) {
    const Tensor own = y.Detach().Slice(0, j * kBatch, (j + 1) * kBatch).Contiguous();
    results[ranks->PartAt(j)] = {own.ToVector<double>(),
                                 qkv[static_cast<size_t>(j)].grad().ToVector<double>()};
  }
}

TEST(ContextAttention, OfChunksIsThatOfTheSequence) {
  const Tensor qkv = LeafOf(Qkv());
  const Tensor y = ops::CausalAttention(qkv, kHeads, kKeyHeads, Options());
  Backward(y, OutputGradient());
  Results one;
  Attend(nullptr, one);
  ASSERT_EQ(one.size(), static_cast<size_t>(kChunks));
  for (const auto& [number, results] : one) {
    const std::vector<std::vector<double>> want = {ChunkOf(y.Detach(), number).ToVector<double>(),
                                                   ChunkOf(qkv.grad(), number).ToVector<double>()};
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_THAT(results[i], testing::Pointwise(testing::DoubleNear(1e-12), want[i]))
          << (i == 0 ? "y" : "the gradient") << " of chunk " << number;
    }
  }
  std::vector<Results> of_ranks(2);
  RunInProcess(
      2, [&](ProcessGroup& group) { Attend(&group, of_ranks[static_cast<size_t>(group.rank())]); });
  of_ranks[0].merge(of_ranks[1]);
  EXPECT_EQ(of_ranks[0], one);
}

TEST(ContextAttention, WantsTheFirstKeysOfTheWholeSequence) {
  const auto ranks = std::make_shared<const ContextRanks>(nullptr, kPairs);
  nn::AttentionCall call{kHeads, kKeyHeads, Options(), nullptr};
  call.options.first_key = ChunkOf(call.options.first_key, 0);
  EXPECT_THAT(test::MessageOf([&] { ContextAttention(ranks, ranks->Cut(Qkv()), call); }),
              testing::HasSubstr("context_attention: first_key must be i32[2, 96], of the whole "
                                 "sequence, got i32[2, 24]"));
}

}  // namespace
}  // namespace lockstep::dist
