// A row of packed documents is to a model what the documents are in rows of their own, to the bit.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>

#include "core/autograd/engine.h"
#include "models/gpt/gpt.h"
#include "nn/documents.h"
#include "nn/init.h"
#include "nn/recompute.h"
#include "nn/transformer_block.h"

namespace lockstep::models {
namespace {

const std::vector<int64_t> kLengths = {5, 2, 9, 3, 5};  // of the documents
constexpr int64_t kTokens = 24;

GptConfig Gpt2() {
  return {.vocab_size = 13, .block_size = kTokens, .n_layer = 2, .n_head = 2, .n_embd = 16};
}
GptConfig Llama() {
  GptConfig config = Gpt2();
  config.tie_embeddings = false;
  config.n_kv_head = 1;
  config.norm = NormKind::kRmsNorm;
  config.activation = nn::MlpActivation::kSwiGlu;
  config.position = Position::kRope;
  return config;
}

std::vector<int32_t> Ids() {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i <= kTokens; ++i) ids.push_back((i * i + 3 * (i / 5)) % 13);
  return ids;
}

nn::Documents Packed() {
  std::vector<int32_t> first_key;
  for (const int64_t length : kLengths) {
    const auto first = static_cast<int32_t>(first_key.size());
    first_key.insert(first_key.end(), static_cast<size_t>(length), first);
  }
  return nn::MakeDocuments(first_key, 1, kTokens, kCpu);
}

Tensor Row(const std::vector<int32_t>& values, int64_t begin, int64_t length) {
  return Tensor::FromVector<int32_t>({values.begin() + begin, values.begin() + begin + length},
                                     {1, length});
}

struct Outcome {
  std::vector<float> loss;
  std::map<std::string, std::vector<float>> gradients;
  bool operator==(const Outcome&) const = default;
};

class DocumentMask : public testing::TestWithParam<GptConfig> {
 protected:
  DocumentMask() : model_(GetParam()) {
    model_.Materialize(kCpu, 1);
    for (const auto& p : model_.Parameters()) {
      const std::span<float> values(p->value().data<float>(),
                                    static_cast<size_t>(p->value().numel()));
      nn::Normal(0, 0.3)(values, 0, 5, p->name());
    }
    ids_ = Ids();
    targets_.assign(ids_.begin() + 1, ids_.end());
  }

  // Backward runs outside of the scope of the documents.
  Outcome Run(const Tensor& ids, const Tensor& targets, const nn::Documents& documents) {
    model_.ZeroGrad();
    Tensor loss;
    {
      const nn::DocumentScope scope(documents);
      loss = model_.Loss(ids, targets);
    }
    Backward(loss);
    Outcome outcome{loss.Detach().ToVector<float>(), {}};
    for (const auto& p : model_.Parameters()) {
      outcome.gradients[p->name()] = p->grad().ToVector<float>();
    }
    return outcome;
  }
  // Of the packed row, with the targets of the document from `begin` on only.
  Outcome RunPacked(int64_t begin, int64_t length) {
    std::vector<int32_t> targets(kTokens, -1);
    std::copy_n(targets_.begin() + begin, length, targets.begin() + begin);
    return Run(Row(ids_, 0, kTokens), Row(targets, 0, kTokens), Packed());
  }
  // The document at the beginning of a row, whose other tokens it does not see: products have the
  // sizes, which may decide their bits, of the packed row.
  Tensor AloneIds(int64_t begin, int64_t length) const {
    std::vector<int32_t> ids(kTokens, 7);
    std::copy_n(ids_.begin() + begin, length, ids.begin());
    return Row(ids, 0, kTokens);
  }
  Outcome RunAlone(int64_t begin, int64_t length) {
    std::vector<int32_t> targets(kTokens, -1);
    std::copy_n(targets_.begin() + begin, length, targets.begin());
    return Run(AloneIds(begin, length), Row(targets, 0, kTokens), {});
  }

  Gpt model_;
  std::vector<int32_t> ids_, targets_;
};

TEST_P(DocumentMask, LogitsAreThoseOfTheDocumentsAlone) {
  const NoGrad no_grad;
  Tensor packed, joined = model_(Row(ids_, 0, kTokens));
  {
    const nn::DocumentScope scope(Packed());
    packed = model_(Row(ids_, 0, kTokens));
  }
  int64_t begin = 0;
  for (const int64_t length : kLengths) {
    const Tensor alone = model_(AloneIds(begin, length)).Slice(1, 0, length);
    EXPECT_EQ(packed.Slice(1, begin, begin + length).ToVector<float>(), alone.ToVector<float>());
    if (begin > 0) {
      EXPECT_NE(joined.Slice(1, begin, begin + length).ToVector<float>(), alone.ToVector<float>());
    }
    begin += length;
  }
}

TEST_P(DocumentMask, LossAndGradientsOfADocumentAreThoseOfItAlone) {
  int64_t begin = 0;
  for (const int64_t length : kLengths) {
    const Outcome packed = RunPacked(begin, length), alone = RunAlone(begin, length);
    EXPECT_EQ(packed.loss, alone.loss) << "from token " << begin;
    for (const auto& [name, gradient] : alone.gradients) {
      EXPECT_EQ(packed.gradients.at(name), gradient) << name << ", from token " << begin;
    }
    begin += length;
  }
}

TEST_P(DocumentMask, LossAndGradientsOfARowAreTheSumsOverItsDocuments) {
  const Outcome row = RunPacked(0, kTokens);
  double loss = 0;
  std::map<std::string, std::vector<double>> sums;
  int64_t begin = 0;
  for (const int64_t length : kLengths) {
    const Outcome alone = RunAlone(begin, length);
    loss += alone.loss[0];
    for (const auto& [name, gradient] : alone.gradients) {
      auto& sum = sums[name];
      sum.resize(gradient.size());
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i];
    }
    begin += length;
  }
  EXPECT_NEAR(row.loss[0], loss, 1e-6 * loss);
  for (const auto& [name, sum] : sums) {
    const double size = std::sqrt(std::inner_product(sum.begin(), sum.end(), sum.begin(), 0.0));
    for (size_t i = 0; i < sum.size(); ++i) {
      ASSERT_NEAR(row.gradients.at(name)[i], sum[i], 1e-6 * size) << name << "[" << i << "]";
    }
  }
}

TEST_P(DocumentMask, RecomputedForwardsHaveTheSameDocuments) {
  const Outcome kept = RunPacked(0, kTokens);
  nn::RecomputeChild(model_.blocks()[0]);
  nn::RecomputeChild(dynamic_cast<nn::TransformerBlock&>(*model_.blocks()[1].module()).attn());
  EXPECT_EQ(RunPacked(0, kTokens), kept);
}

INSTANTIATE_TEST_SUITE_P(Families, DocumentMask, testing::Values(Gpt2(), Llama()),
                         [](const auto& info) { return info.index == 0 ? "Gpt2" : "Llama"; });

}  // namespace
}  // namespace lockstep::models
