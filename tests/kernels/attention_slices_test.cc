// Attention's backward in slices: how many a workspace needs, and that they give the bits of the
// whole.
#include "kernels/attention/attention_slices.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/philox.h"
#include "kernels/attention/attention_kernels.h"
#include "kernels/attention/cudnn_attention.h"
#include "tests/gpu_test.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

using cuda::CudnnAttentionProblem;
using cuda::FitWorkspace;
using test::kGpu;
using testing::HasSubstr;

CudnnAttentionProblem Problem(int64_t batch, int64_t length, int64_t heads, int64_t kv_heads) {
  CudnnAttentionProblem p;
  p.backward = true;
  p.batch = batch;
  p.length = length;
  p.heads = heads;
  p.kv_heads = kv_heads;
  p.d = 64;
  return p;
}

// What cuDNN's backward without atomics needs on Hopper (engine 6 of 9.19), and the gradients of
// each query head's key and value where they are shared.
int64_t Workspace(const CudnnAttentionProblem& p) {
  const auto up = [](int64_t x, int64_t to) { return (x + to - 1) / to * to; };
  const int64_t shared = p.heads == p.kv_heads ? 0 : 4 * p.batch * p.heads * p.length * p.d;
  return 2 * p.batch * p.heads * up(p.length, 128) * up(p.length, 64) + 256 + shared;
}

TEST(FitWorkspace, SlicesTheBatchThenTheKeyHeads) {
  constexpr int64_t kMiB = 1 << 20;
  struct Case {
    CudnnAttentionProblem problem;
    int64_t most, batches, groups;
  };
  for (const auto& [problem, most, batches, groups] :
       {Case{Problem(8, 1024, 12, 12), 256 * kMiB, 1, 1},    // 192 MiB
        Case{Problem(16, 1024, 12, 12), 256 * kMiB, 2, 1},   // 384
        Case{Problem(64, 1024, 12, 12), 1024 * kMiB, 2, 1},  // 1536
        Case{Problem(12, 1024, 12, 12), 100 * kMiB, 3, 1},
        Case{Problem(7, 1024, 12, 12), 100 * kMiB, 7, 1},
        Case{Problem(2, 8192, 32, 8), 1024 * kMiB, 2, 8},
        Case{Problem(1, 4096, 32, 8), 1024 * kMiB, 1, 2}}) {
    SCOPED_TRACE(StrCat("B ", problem.batch, ", T ", problem.length));
    const auto [slices, slice] = FitWorkspace(problem, most, Workspace);
    EXPECT_EQ(slices.batches, batches);
    EXPECT_EQ(slices.groups, groups);
    EXPECT_EQ(slice.batch, problem.batch / batches);
    EXPECT_EQ(slice.heads, problem.heads / groups);
    EXPECT_EQ(slice.kv_heads, problem.kv_heads / groups);
    EXPECT_LE(Workspace(slice), most);
  }
}

TEST(FitWorkspace, SaysWhereNoSliceFits) {
  EXPECT_THAT(test::MessageOf<Error>(
                  [] { FitWorkspace(Problem(1, 32768, 16, 16), int64_t{1} << 30, Workspace); }),
              HasSubstr("even for one key head of one sample"));
}

// A workspace without room for the gradient of the scores is that of the backward with atomics.
TEST(FitWorkspace, RefusesABackwardWithAtomics) {
  EXPECT_THAT(test::MessageOf<Error>([] {
                FitWorkspace(Problem(8, 1024, 12, 12), int64_t{1} << 30,
                             [](const CudnnAttentionProblem&) { return int64_t{256}; });
              }),
              HasSubstr("adds with atomics"));
}

// The statistics of a slice must begin at a multiple of 16 bytes: at T 5 those of one sample of
// three heads do not.
TEST(FitWorkspace, SlicesBeginWhereCudnnCanRead) {
  const auto scores = [](const CudnnAttentionProblem& p) {
    return 2 * p.batch * p.heads * p.length * p.length;
  };
  const int64_t whole = scores(Problem(8, 5, 3, 3));
  EXPECT_EQ(FitWorkspace(Problem(8, 5, 3, 3), whole / 2, scores).slices.batches, 2);
  EXPECT_THAT(test::MessageOf<Error>([&] { FitWorkspace(Problem(8, 5, 3, 3), whole / 4, scores); }),
              HasSubstr("even for one"));
}

class AttentionSlicesTest : public test::GpuTest {};

Tensor Values(const Shape& shape, uint64_t stream) {
  const Philox random(11);
  std::vector<float> values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(ToUniform(random.At(stream, i)) * 4 - 2);
  }
  return Tensor::FromVector(values, shape).To(DType::kBF16).To(kGpu);
}

// dq, dk, dv by flash kernels, in these slices; with `documents` both rows are packed, differently.
std::vector<std::vector<float>> Gradients(AttentionSlices slices, bool documents = false) {
  constexpr int64_t kBatch = 2, kLength = 68, kHeads = 4, kKeyHeads = 2, kD = 16;
  const Tensor qkv = Values({kBatch, kLength, kHeads + 2 * kKeyHeads, kD}, 1);
  const Tensor dqkv = Tensor::Zeros(qkv.shape(), DType::kBF16, kGpu);
  AttentionBackwardArgs args;
  args.q = qkv.Slice(2, 0, kHeads);
  args.k = qkv.Slice(2, kHeads, kHeads + kKeyHeads);
  args.v = qkv.Slice(2, kHeads + kKeyHeads, kHeads + 2 * kKeyHeads);
  args.dq = dqkv.Slice(2, 0, kHeads);
  args.dk = dqkv.Slice(2, kHeads, kHeads + kKeyHeads);
  args.dv = dqkv.Slice(2, kHeads + kKeyHeads, kHeads + 2 * kKeyHeads);
  args.scores.scale = 0.25;
  if (documents) {
    std::vector<int32_t> first_key(static_cast<size_t>(kBatch * kLength), 0);
    std::fill(first_key.begin() + 50, first_key.begin() + kLength, 50);
    std::fill(first_key.begin() + kLength + 7, first_key.end(), 7);
    args.scores.first_key = Tensor::FromVector(first_key, {kBatch, kLength}, kGpu);
  }
  args.y = Tensor::Empty(args.q.shape(), DType::kBF16, kGpu);
  args.log_sum_exp = Tensor::Empty({kBatch, kHeads, kLength}, DType::kF32, kGpu);
  args.dy = Values(args.q.shape(), 2);
  const Stream stream = CurrentStream(kGpu);
  cuda::FlashAttentionForward(stream,
                              {args.q, args.k, args.v, args.scores, {}, args.y, args.log_sum_exp});
  for (int64_t i = 0; i < slices.parts(); ++i) {
    AttentionBackwardArgs slice = SliceOf(args, slices, i);
    slice.y = slice.y.Contiguous();  // which flash kernels require
    slice.dy = slice.dy.Contiguous();
    cuda::FlashAttentionBackward(stream, slice);
  }
  std::vector<std::vector<float>> gradients;
  for (const Tensor& x : {args.dq, args.dk, args.dv}) {
    gradients.push_back(x.Contiguous().To(kCpu).To(DType::kF32).ToVector<float>());
  }
  return gradients;
}

TEST_F(AttentionSlicesTest, GiveTheBitsOfTheWhole) {
  for (const bool documents : {false, true}) {
    const auto whole = Gradients({}, documents);
    for (const auto& gradient : whole) EXPECT_NE(gradient.back(), 0);
    for (const AttentionSlices slices : {AttentionSlices{2, 1}, AttentionSlices{2, 2}}) {
      EXPECT_EQ(Gradients(slices, documents), whole)
          << slices.batches << " x " << slices.groups << (documents ? " with documents" : "");
    }
  }
}

TEST_F(AttentionSlicesTest, GroupsOfSeveralBatchesAreRefused) {
  EXPECT_THROW(Gradients({1, 2}), Error);
}

}  // namespace
}  // namespace lockstep
