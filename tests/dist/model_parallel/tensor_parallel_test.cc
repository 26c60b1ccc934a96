// The layers of tensor parallelism: each against the plain operation in f64, and with equal bits on
// 1, 2 and 4 ranks.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "core/allocator.h"
#include "core/autograd/engine.h"
#include "core/step_state.h"
#include "dist/groups/agreement.h"
#include "dist/tensor/head_norm.h"
#include "dist/tensor/parallel_linear.h"
#include "dist/tensor/parallelize.h"
#include "dist/tensor/sequence.h"
#include "dist/tensor/vocabulary.h"
#include "kernels/dropout/dropout.h"
#include "kernels/linear/linear.h"
#include "kernels/linear_cross_entropy/linear_cross_entropy.h"
#include "tests/dist/gpu_ranks.h"
#include "tests/dist/in_process.h"
#include "tests/dist/model_parallel/random_tensors.h"

namespace lockstep::dist {
namespace {

constexpr int64_t kBatch = 2, kTokens = 16, kWidth = 24, kParts = 4;

using Results = std::map<std::string, Tensor>;  // whole

// This rank's part of a whole, as a leaf.
Tensor Part(const TensorRanks& ranks, const Tensor& whole, int dim,
            std::vector<int64_t> segments = {}) {
  return LeafOf(PartAlong(whole, dim, segments, ranks.size(), ranks.rank()));
}

ShardLayout VocabularyLayout(const TensorRanks& ranks, int64_t size) {
  return {.cuts = {{.axis = "tp",
                    .parts = ranks.size(),
                    .part = ranks.rank(),
                    .part_size = ranks.own() * ranks.VocabularyPart(size)}}};
}

// The whole of each rank's part.
Tensor Whole(const TensorRanks& ranks, const Tensor& part, int dim,
             std::vector<int64_t> segments = {}) {
  const Tensor all = ranks.Gather(part, "a result").To(kCpu);
  Shape shape = part.shape();
  shape[dim] *= ranks.size();
  if (segments.empty()) segments = {shape[dim]};
  const Tensor whole = Tensor::Empty(shape, part.dtype());
  for (int64_t r = 0; r < ranks.size(); ++r) {
    const Tensor from = all.Slice(0, r, r + 1).View(part.shape());
    int64_t begin = 0, at = 0;
    for (const int64_t size : segments) {
      const int64_t own = size / ranks.size();
      whole.Slice(dim, begin + r * own, begin + (r + 1) * own)
          .CopyFrom(from.Slice(dim, at, at + own));
      begin += size;
      at += own;
    }
  }
  return whole;
}

// The result of body on this many ranks; it must be the same on all.
Results On(int size, const std::function<Results(const TensorRanksPtr&)>& body) {
  std::vector<Results> of_ranks(static_cast<size_t>(size));
  RunInProcess(size, [&](ProcessGroup& group) {
    const auto ranks = std::make_shared<const TensorRanks>(size == 1 ? nullptr : &group, kParts);
    of_ranks[static_cast<size_t>(group.rank())] = body(ranks);
  });
  return of_ranks[0];
}

void ExpectSameBits(const Results& a, const Results& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, x] : a) {
    const Tensor& y = b.at(name);
    ASSERT_EQ(x.dtype(), y.dtype()) << what << ": " << name;
    ASSERT_EQ(x.shape(), y.shape()) << what << ": " << name;
    const Tensor p = x.Contiguous(), q = y.Contiguous();
    EXPECT_EQ(std::memcmp(p.raw_data(), q.raw_data(), static_cast<size_t>(p.bytes())), 0)
        << what << ": " << name;
  }
}

// Relative to the largest element.
void ExpectNear(const Results& a, const Results& reference, double tolerance) {
  ASSERT_EQ(a.size(), reference.size());
  for (const auto& [name, r] : reference) {
    const std::vector<double> want = r.To(DType::kF64).ToVector<double>();
    const std::vector<double> got = a.at(name).To(DType::kF64).ToVector<double>();
    ASSERT_EQ(want.size(), got.size()) << name;
    double largest = 0, error = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      largest = std::max(largest, std::abs(want[i]));
      error = std::max(error, std::abs(want[i] - got[i]));
    }
    EXPECT_GT(largest, 0) << name;
    EXPECT_LE(error, tolerance * largest) << name;
  }
}

void CheckOnRanks(const std::function<Results(const TensorRanksPtr&, DType)>& body,
                  const Results& reference) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    const auto run = [&](const TensorRanksPtr& ranks) { return body(ranks, dtype); };
    const Results alone = On(1, run);
    ExpectNear(alone, reference, dtype == DType::kF64 ? 1e-13 : dtype == DType::kF32 ? 2e-6 : 3e-2);
    for (const int size : {2, 4}) {
      ExpectSameBits(On(size, run), alone, StrCat(size, " ranks, ", dtype));
    }
  }
}

TEST(TensorParallel, ColumnThenRow) {
  constexpr int64_t kInner = 64;
  const std::vector<int64_t> segments = {40, 24};
  const auto x = [](DType d) { return Random({kBatch, kTokens, kWidth}, 1, d); };
  const auto w1 = [](DType d) { return Random({kInner, kWidth}, 2, d, 0.2); };
  const auto b1 = [](DType d) { return Random({kInner}, 3, d); };
  const auto w2 = [](DType d) { return Random({kWidth, kInner}, 4, d, 0.1); };
  const auto dy = [](DType d) { return Random({kBatch, kTokens, kWidth}, 5, d); };
  const DType f64 = DType::kF64;
  // Values as bf16 has them, so that one reference suits all dtypes.
  const auto rounded = [](const Tensor& t, DType d) { return t.To(DType::kBF16).To(d); };
  Results reference;
  {
    const Tensor rx = LeafOf(rounded(x(f64), f64)), rw1 = LeafOf(rounded(w1(f64), f64)),
                 rb1 = LeafOf(rounded(b1(f64), f64)), rw2 = LeafOf(rounded(w2(f64), f64));
    const Tensor h = ops::Linear(rx, rw1, rb1, Activation::kGelu);
    const Tensor y = ops::Linear(h, rw2);
    Backward(y, rounded(dy(f64), f64));
    reference = {{"y", y.Detach()},
                 {"dx", rx.grad()},
                 {"dw1", rw1.grad()},
                 {"db1", rb1.grad()},
                 {"dw2", rw2.grad()}};
  }
  const auto body = [&](const TensorRanksPtr& ranks, DType d) -> Results {
    const Tensor px = Part(*ranks, rounded(x(f64), d), 1);
    const Tensor pw1 = Part(*ranks, rounded(w1(f64), d), 0, segments);
    const Tensor pb1 = Part(*ranks, rounded(b1(f64), d), 0, segments);
    const Tensor pw2 = Part(*ranks, rounded(w2(f64), d), 1, segments);
    std::vector<int64_t> own = segments;
    for (int64_t& size : own) size /= ranks->size();
    const Tensor h = ColumnProduct(ranks, px, pw1, pb1, Activation::kGelu, own);
    EXPECT_EQ(h.shape(), Shape({kBatch, kTokens, kInner / ranks->size()}));
    // RowProduct has runs of the columns, as those of a gated activation or of heads are.
    const Tensor natural = Part(*ranks, Whole(*ranks, h.Detach(), 2, segments), 2);
    const Tensor pw2_natural = Part(*ranks, rounded(w2(f64), d), 1);
    const Tensor y = RowProduct(ranks, natural, pw2_natural);
    EXPECT_EQ(y.shape(), Shape({kBatch, kTokens / ranks->size(), kWidth}));
    Backward(y, Part(*ranks, rounded(dy(f64), d), 1).Detach());
    Backward(h, Part(*ranks, Whole(*ranks, natural.grad(), 2), 2, segments).Detach());
    return {{"y", Whole(*ranks, y.Detach(), 1)},
            {"dx", Whole(*ranks, px.grad(), 1)},
            {"dw1", Whole(*ranks, pw1.grad(), 0, segments)},
            {"db1", Whole(*ranks, pb1.grad(), 0, segments)},
            {"dw2", Whole(*ranks, pw2_natural.grad(), 1)}};
  };
  CheckOnRanks(body, reference);
}

TEST(TensorParallel, SequenceNormSumsOverTokensAndRanks) {
  const DType f64 = DType::kF64;
  const auto value = [](const Shape& shape, int seed, DType d) {
    return Random(shape, seed, DType::kF64).To(DType::kBF16).To(d);
  };
  const Shape stream{kBatch, kTokens, kWidth};
  const auto run = [&](const TensorRanksPtr& ranks, DType d, bool plain) -> Results {
    nn::ResidualNorm norm(kWidth, {});
    norm.Materialize(kCpu, 1, d);
    norm.weight()->value().Detach().CopyFrom(value({kWidth}, 1, d));
    norm.bias()->value().Detach().CopyFrom(value({kWidth}, 2, d));
    SequenceNorm parallel(norm, ranks);
    const Tensor x = Part(*ranks, value(stream, 3, d), 1);
    const Tensor branch = Part(*ranks, value(stream, 4, d), 1);
    const Tensor open_bias = LeafOf(value({kWidth}, 5, AccumulationDType(d)));
    nn::ResidualStream in(x, ops::Branch(branch));
    in.open.bias = open_bias;
    const auto [s, y] = plain ? norm(in) : parallel(in);
    const std::vector<Tensor> roots{s, y};
    const std::vector<Tensor> grads{Part(*ranks, value(stream, 6, d), 1).Detach(),
                                    Part(*ranks, value(stream, 7, d), 1).Detach()};
    Backward(roots, grads);
    return {{"s", Whole(*ranks, s.Detach(), 1)}, {"y", Whole(*ranks, y.Detach(), 1)},
            {"dx", Whole(*ranks, x.grad(), 1)},  {"dbranch", Whole(*ranks, branch.grad(), 1)},
            {"dweight", norm.weight()->grad()},  {"dbias", norm.bias()->grad()},
            {"dopen_bias", open_bias.grad()}};
  };
  const Results reference =
      On(1, [&](const TensorRanksPtr& ranks) { return run(ranks, f64, /*plain=*/true); });
  CheckOnRanks([&](const TensorRanksPtr& ranks, DType d) { return run(ranks, d, false); },
               reference);
}

TEST(TensorParallel, HeadNormSumsOverHeadsAndRanks) {
  constexpr int64_t kHeads = 8, kHead = 6;
  const Shape heads{kBatch, kTokens, kHeads, kHead};
  const auto value = [](const Shape& shape, int seed, DType d) {
    return Random(shape, seed, DType::kF64).To(DType::kBF16).To(d);
  };
  enum Kind { kPlain, kOfHeads, kOfHeadsInChunks };
  const auto run = [&](const TensorRanksPtr& ranks, DType d, Kind kind) -> Results {
    const auto plain = std::make_shared<nn::RmsNorm>(kHead);
    plain->Materialize(kCpu, 1, d);
    plain->weight()->value().Detach().CopyFrom(value({kHead}, 1, d));
    std::shared_ptr<nn::RmsNorm> norm = plain;
    if (kind != kPlain) norm = std::make_shared<HeadNorm>(*norm, ranks, /*dim=*/2);
    if (kind == kOfHeadsInChunks) {
      norm = std::make_shared<HeadNorm>(*norm, std::make_shared<TensorRanks>(nullptr, kBatch), 0);
    }
    const Tensor x = Part(*ranks, value(heads, 2, d), 2);
    const Tensor y = (*norm)(x);
    Backward(y, Part(*ranks, value(heads, 3, d), 2).Detach());
    return {{"y", Whole(*ranks, y.Detach(), 2)},
            {"dx", Whole(*ranks, x.grad(), 2)},
            {"dweight", plain->weight()->grad()}};
  };
  const Results reference =
      On(1, [&](const TensorRanksPtr& ranks) { return run(ranks, DType::kF64, kPlain); });
  for (const Kind kind : {kOfHeads, kOfHeadsInChunks}) {
    CheckOnRanks([&](const TensorRanksPtr& ranks, DType d) { return run(ranks, d, kind); },
                 reference);
  }
}

TEST(TensorParallel, DropoutHasTheMaskOfTheWholeSequence) {
  constexpr double kP = 0.4;
  const Tensor x = Random({kBatch, kTokens, kWidth}, 1, DType::kF32);
  const auto body = [&](const TensorRanksPtr& ranks) -> Results {
    StepState state(kCpu, 11);
    state.Begin(3, 0.1);
    const TrainingScope scope(state);
    state.SetFirstSample(6);
    SequenceDropout parallel(kP, ranks);
    parallel.AssignNames("drop");
    const Tensor part = Part(*ranks, x, 1);
    const Tensor y = parallel(part);
    Backward(y, Tensor::Full(y.shape(), 1, DType::kF32));
    return {{"y", Whole(*ranks, y.Detach(), 1)}, {"dx", Whole(*ranks, part.grad(), 1)}};
  };
  StepState state(kCpu, 11);
  state.Begin(3, 0.1);
  Results plain;
  {
    const TrainingScope scope(state);
    state.SetFirstSample(6);
    const Tensor leaf = LeafOf(x);
    const Tensor y = ops::Dropout(leaf, kP, HashName("drop"));
    Backward(y, Tensor::Full(y.shape(), 1, DType::kF32));
    plain = {{"y", y.Detach()}, {"dx", leaf.grad()}};
  }
  for (const int size : {1, 2, 4}) ExpectSameBits(On(size, body), plain, StrCat(size, " ranks"));
}

// Also where the last rank has fewer of them.
class TensorParallelVocabulary : public testing::TestWithParam<int64_t> {};

INSTANTIATE_TEST_SUITE_P(, TensorParallelVocabulary, testing::Values(40, 37));

TEST_P(TensorParallelVocabulary, EmbeddingTakesRowsAsTheyAre) {
  const int64_t vocabulary = GetParam();
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < kBatch * kTokens; ++i)
    ids.push_back(i * i % static_cast<int32_t>(vocabulary));
  const Tensor index = Tensor::FromVector(ids, {kBatch, kTokens});
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const bool with_positions : {true, false}) {
      const auto body = [&](const TensorRanksPtr& ranks) -> Results {
        nn::Embedding table(vocabulary, kWidth);
        table.Materialize(kCpu, 5, dtype);
        // A row of negative zeros must not become positive ones.
        table.weight()->value().Detach().Slice(0, 1, 2).Fill(-0.0);
        table.weight()->SetLayout(ranks->size() == 1 ? ShardLayout{}
                                                     : VocabularyLayout(*ranks, vocabulary));
        VocabularyEmbedding parallel(table, ranks);
        const Tensor positions = LeafOf(Random({kTokens + 3, kWidth}, 7, dtype));
        const Tensor y =
            with_positions ? parallel.AddPositions(index, positions, 0) : parallel(index);
        const Tensor dy = Random({kBatch, kTokens, kWidth}, 8, dtype);
        Backward(y, Part(*ranks, dy, 1).Detach());
        const NoGrad no_grad;
        const Tensor whole =
            with_positions ? parallel.AddPositions(index, positions, 2) : parallel(index);
        Results results{
            {"y", Whole(*ranks, y.Detach(), 1)},
            {"without graph", whole},
            {"dweight", ranks->GatherVocabulary(table.weight()->grad(), vocabulary, "a gradient")}};
        if (with_positions) results["dpositions"] = positions.grad();
        return results;
      };
      const Results alone = On(1, body);
      for (const int size : {2, 4}) ExpectSameBits(On(size, body), alone, StrCat(size, " ranks"));
    }
  }
}

TEST_P(TensorParallelVocabulary, LossInParts) {
  const int64_t vocabulary = GetParam();
  const DType f64 = DType::kF64;
  std::vector<int32_t> targets;
  for (int32_t i = 0; i < kBatch * kTokens; ++i) {
    targets.push_back(i % 5 == 3 ? -1 : i * 7 % static_cast<int32_t>(vocabulary));
  }
  const Tensor index = Tensor::FromVector(targets, {kBatch, kTokens});
  const auto x = [](DType d) {
    return Random({kBatch, kTokens, kWidth}, 1, DType::kF64).To(DType::kBF16).To(d);
  };
  const auto w = [&](DType d) {
    return Random({vocabulary, kWidth}, 2, DType::kF64).To(DType::kBF16).To(d);
  };
  for (const auto& [chunk, z_loss] : {std::pair<int64_t, double>(0, 0), {12, 0}, {12, 0.02}}) {
    Results reference;
    {
      const Tensor rx = LeafOf(x(f64)), rw = LeafOf(w(f64));
      const Tensor loss = ops::LinearCrossEntropy(rx, rw, index, Reduction::kSum, 0, -1, 0, z_loss);
      Backward(loss, Tensor::Full({}, 0.25, f64));
      reference = {{"loss", loss.Detach()}, {"dx", rx.grad()}, {"dw", rw.grad()}};
    }
    const auto body = [&, chunk = chunk, z_loss = z_loss](const TensorRanksPtr& ranks,
                                                          DType d) -> Results {
      const auto loss_of = [&](const Tensor& of, const Tensor& weight) {
        return VocabularyCrossEntropy(ranks, of, weight, vocabulary, index, chunk, -1, 0, z_loss);
      };
      const Tensor px = Part(*ranks, x(d), 1);
      const Tensor pw = LeafOf(
          VocabularyRowsOf(w(d), ranks->own() * ranks->VocabularyPart(vocabulary), ranks->rank()));
      const Tensor loss = loss_of(px, pw);
      Backward(loss, Tensor::Full({}, 0.25, AccumulationDType(d)));
      const NoGrad no_grad;
      EXPECT_EQ(loss_of(x(d), pw).Item(), loss.Item());
      const Tensor logits = VocabularyLogits(*ranks, x(d), pw, vocabulary);
      EXPECT_EQ(logits.shape(), Shape({kBatch, kTokens, vocabulary}));
      return {{"loss", loss.Detach()},
              {"dx", Whole(*ranks, px.grad(), 1)},
              {"dw", ranks->GatherVocabulary(pw.grad(), vocabulary, "a gradient")}};
    };
    CheckOnRanks(body, reference);
  }
}

// However many parts are joined: a log-sum-exp that was rounded in each part would show in every
// gradient, which are then up to 1.3 times as far from those in f64.
TEST(TensorParallel, ALossInPartsIsAsExactAsTheWhole) {
  constexpr int64_t kVocabulary = 32, kRows = 256;
  constexpr double kScale = 0.6;  // logits of about 3
  // Squared errors of the gradients of x and of the weight.
  const auto add_errors = [](const Tensor& got, const Tensor& exact, double* sum) {
    const auto a = got.To(DType::kF64).ToVector<double>(), b = exact.ToVector<double>();
    for (size_t i = 0; i < a.size(); ++i) *sum += (a[i] - b[i]) * (a[i] - b[i]);
  };
  double whole[2] = {}, in_parts[2] = {};
  for (int seed = 0; seed < 16; ++seed) {
    std::vector<int32_t> targets;
    for (int32_t i = 0; i < kRows; ++i) targets.push_back(i * 7 % 13);  // in the first half
    const Tensor index = Tensor::FromVector(targets, {1, kRows});
    const Tensor x = Random({1, kRows, kWidth}, 2 * seed, DType::kF32);
    const Tensor w = Random({kVocabulary, kWidth}, 2 * seed + 1, DType::kF32, kScale);
    const auto gradients = [&](DType dtype, int64_t parts) {
      const Tensor leaf_x = LeafOf(x.To(dtype)), leaf_w = LeafOf(w.To(dtype));
      const auto ranks = std::make_shared<TensorRanks>(nullptr, std::max<int64_t>(parts, 1));
      Backward(parts == 0 ? ops::LinearCrossEntropy(leaf_x, leaf_w, index, Reduction::kSum, 0)
                          : VocabularyCrossEntropy(ranks, leaf_x, leaf_w, kVocabulary, index, 0),
               Tensor::Full({}, 1, dtype));
      return std::pair(leaf_x.grad(), leaf_w.grad());
    };
    const auto exact = gradients(DType::kF64, 0);
    const auto one = gradients(DType::kF32, 0), eight = gradients(DType::kF32, 8);
    add_errors(one.first, exact.first, &whole[0]);
    add_errors(one.second, exact.second, &whole[1]);
    add_errors(eight.first, exact.first, &in_parts[0]);
    add_errors(eight.second, exact.second, &in_parts[1]);
  }
  for (const int i : {0, 1}) {
    EXPECT_GT(whole[i], 0);
    EXPECT_LT(std::sqrt(in_parts[i]), 1.1 * std::sqrt(whole[i])) << (i == 0 ? "x" : "weight");
  }
}

// Also the masks of dropout, and the classes of a row's target.
TEST(TensorParallel, GpusComputeWhatTheCpuComputes) {
  SKIP_WITHOUT_GPUS(2);
  constexpr int64_t kVocabulary = 40;
  std::vector<int32_t> targets;
  for (int32_t i = 0; i < kBatch * kTokens; ++i) targets.push_back(i % 5 == 3 ? -1 : i * 7 % 40);
  const auto body = [&](const TensorRanksPtr& ranks, Device device) -> Results {
    const auto part = [&](const Shape& shape, int seed, int dim) {
      return LeafOf(
          PartAlong(Random(shape, seed, DType::kF32), dim, {}, ranks->size(), ranks->rank())
              .To(device));
    };
    StepState state(device, 11);
    state.Begin(3, 0.1);
    const TrainingScope scope(state);
    state.SetFirstSample(6);
    nn::ResidualNorm norm(kWidth, {});
    norm.Materialize(device, 1);
    SequenceNorm parallel(norm, ranks);
    const Tensor x = part({kBatch, kTokens, kWidth}, 1, 1);
    const Tensor branch = part({kBatch, kTokens, kWidth}, 2, 1);
    const Tensor head = part({kVocabulary, kWidth}, 3, 0);
    nn::ResidualStream in(x, ops::Branch(branch));
    in.open.dropout = 0.3;
    in.open.site = 77;
    const auto [s, y] = parallel(in);
    const Tensor index = Tensor::FromVector(targets, {kBatch, kTokens}, device);
    const Tensor loss =
        VocabularyCrossEntropy(ranks, y, head, kVocabulary, index, /*chunk_rows=*/12);
    Backward(loss);
    return {{"s", Whole(*ranks, s.Detach(), 1)},      {"loss", loss.Detach().To(kCpu)},
            {"dx", Whole(*ranks, x.grad(), 1)},       {"dbranch", Whole(*ranks, branch.grad(), 1)},
            {"dhead", Whole(*ranks, head.grad(), 0)}, {"dweight", norm.weight()->grad().To(kCpu)}};
  };
  const Results on_cpu = On(1, [&](const TensorRanksPtr& ranks) { return body(ranks, kCpu); });
  RunOnGpus(2, [&](ProcessGroup& group) {
    const auto ranks = std::make_shared<const TensorRanks>(&group, kParts);
    ExpectNear(body(ranks, group.device()), on_cpu, 1e-5);
  });
}

TEST(TensorParallel, ReplicasThatDriftApartAreNamed) {
  RunInProcess(3, [](ProcessGroup& group) {
    const TensorRanks ranks(&group, 3);
    nn::ResidualNorm model(kWidth, {});
    model.Materialize(kCpu, 1);
    CheckReplicas(ranks, model, "at first");
    if (group.rank() == 2) model.bias()->value().Detach().Slice(0, 3, 4).Fill(1e-9);
    try {
      CheckReplicas(ranks, model, "after step 7");
      ADD_FAILURE() << "nothing was found";
    } catch (const ReplicaError& e) {
      EXPECT_THAT(e.what(),
                  testing::AllOf(testing::HasSubstr("'bias'"), testing::HasSubstr("after step 7")));
    }
  });
}

// By the allocators of simulated GPUs, of which each rank has its own.
TEST(TensorParallel, NoRankHoldsAWholeMatrixOrItsGradientOrAllLogits) {
  SKIP_WITHOUT_GPUS(2);
  constexpr int64_t kC = 64, kWide = 4096, kT = 8;
  const auto peak = [&](int size) {
    int64_t most = 0;
    RunOnGpus(size, [&](ProcessGroup& group) {
      const auto ranks = std::make_shared<const TensorRanks>(size == 1 ? nullptr : &group, 8);
      const Device device = group.device();
      const auto leaf = [&](const Shape& shape) {
        Tensor t = Tensor::Full(shape, 0.01, DType::kF32, device);
        t.SetRequiresGrad();
        return t;
      };
      Allocator& allocator = GetAllocator(device);
      const int64_t before = allocator.stats().live_bytes;
      allocator.ResetPeak();
      const Tensor x = leaf({1, kT / size, kC}), w1 = leaf({kWide / size, kC}),
                   w2 = leaf({kC, kWide / size}), head = leaf({kWide / size, kC});
      const Tensor targets = Tensor::Full({1, kT}, 5, DType::kI32, device);
      const Tensor y = RowProduct(ranks, ColumnProduct(ranks, x, w1, Tensor()), w2);
      Backward(VocabularyCrossEntropy(ranks, y, head, kWide, targets, /*chunk_rows=*/0));
      if (group.rank() == 0) most = allocator.stats().peak_bytes - before;
    });
    return static_cast<double>(most);
  };
  const double alone = peak(1), shared = peak(2);
  // Six matrices; what is not cut is small, and so are copies of virtual parts.
  constexpr double kMatrix = kC * kWide * 4;
  EXPECT_GT(alone, 6 * kMatrix);
  EXPECT_LT(shared, 0.5 * alone + 0.25 * kMatrix);
}

}  // namespace
}  // namespace lockstep::dist
