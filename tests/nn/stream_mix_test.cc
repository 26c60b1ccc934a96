// Blocks that mix in what their stream began with.
#include "nn/stream/stream_mix.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "kernels/binary/binary.h"
#include "kernels/scale/scale.h"
#include "nn/transformer_block.h"
#include "tests/message_of.h"
#include "tests/nn/reference.h"

namespace lockstep::nn {
namespace {

using test::Difference;
using test::RandomTensor;
using test::ToMatrix;

constexpr int64_t kWidth = 12;

TransformerOptions Options(bool mixes) {
  return {.n_embd = kWidth,
          .n_head = 2,
          .init_std = 0.4,
          .residual_std = 0.4,
          .norm = NormKind::kRmsNorm,
          .embed_mix = mixes};
}

// A stream with an open branch that has a bias.
ResidualStream Stream() {
  ops::Branch open = RandomTensor({2, 5, kWidth}, 2);
  open.bias = RandomTensor({kWidth}, 3);
  return {RandomTensor({2, 5, kWidth}, 1), open, RandomTensor({2, 5, kWidth}, 4)};
}

TEST(StreamMixTest, ABlockBeginsWithTheSum) {
  TransformerBlock block(Options(true)), plain(Options(false));
  for (TransformerBlock* b : {&block, &plain}) b->Materialize(kCpu, 1, DType::kF64);
  for (const auto& [name, p] : block.NamedParameters()) {
    if (name == "mix.a") p->value().Detach().Fill(0.75);
    if (name == "mix.b") p->value().Detach().Fill(-0.5);
  }
  const ResidualStream stream = Stream(), y = block(stream);
  EXPECT_EQ(y.x0.raw_data(), stream.x0.raw_data());
  const Tensor mixed = Complete(stream) * 0.75 + stream.x0 * -0.5;
  EXPECT_LT(Difference(ToMatrix(Complete(y)), ToMatrix(Complete(plain(mixed)))), 1e-13);
}

// At first it changes nothing.
TEST(StreamMixTest, BeginsAsTheStreamItself) {
  TransformerBlock block(Options(true)), plain(Options(false));
  for (TransformerBlock* b : {&block, &plain}) b->Materialize(kCpu, 1, DType::kF32);
  const Tensor x = RandomTensor({2, 5, kWidth}, 1, DType::kF32);
  EXPECT_EQ(Complete(block(StartStream(x))).ToVector<float>(),
            Complete(plain(x)).ToVector<float>());
}

TEST(StreamMixTest, GradientsAgainstDifferences) {
  TransformerBlock block(Options(true));
  block.Materialize(kCpu, 1, DType::kF64);
  test::Randomize(block, 3, -0.7, 0.7);
  ResidualStream stream = Stream();
  auto tensors = test::ParametersToCheck(block);
  for (Tensor* t : {&stream.x, &stream.open.value, &stream.open.bias, &stream.x0}) {
    t->SetRequiresGrad();
    tensors.emplace_back(StrCat("input ", tensors.size()), *t);
  }
  test::CheckGradients(tensors, [&] { return test::Project(Complete(block(stream))); });
}

TEST(StreamMixTest, NeedsTheStartOfTheStream) {
  TransformerBlock block(Options(true));
  block.Materialize(kCpu, 1);
  EXPECT_THAT(test::MessageOf([&] {
                block(RandomTensor({2, 5, kWidth}, 1, DType::kF32));
              }),
              testing::HasSubstr("begin with StartStream(x)"));
}

}  // namespace
}  // namespace lockstep::nn
