#include "models/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/philox.h"

namespace lockstep::models {
namespace {

// The stream of a seed's random numbers that sampling uses.
constexpr uint64_t kSampleStream = HashName("sample", 6);

double UniformAt(uint64_t seed, int64_t index) {
  const Philox::Block block = Philox(seed)(kSampleStream, static_cast<uint64_t>(index));
  const uint64_t bits = (uint64_t{block.v[0]} << 32 | block.v[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace

int32_t DrawToken(std::span<const float> logits, const GenerateOptions& options, double u) {
  LS_CHECK(!logits.empty(), "cannot draw a token from no logits");
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  if (options.temperature == 0) return static_cast<int32_t>(likeliest - logits.begin());
  float floor = -INFINITY;
  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(logits.size())) {
    std::vector<float> sorted(logits.begin(), logits.end());
    std::nth_element(sorted.begin(), sorted.begin() + (options.top_k - 1), sorted.end(),
                     std::greater<float>());
    floor = sorted[options.top_k - 1];
  }
  std::vector<double> cumulative(logits.size());
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] >= floor) {
      sum += std::exp((static_cast<double>(logits[i]) - *likeliest) / options.temperature);
    }
    cumulative[i] = sum;
  }
  LS_CHECK(std::isfinite(sum), "the model's logits are not finite: its weights are damaged");
  const auto drawn = std::upper_bound(cumulative.begin(), cumulative.end(), u * sum);
  return static_cast<int32_t>(std::min<int64_t>(drawn - cumulative.begin(), logits.size() - 1));
}

std::vector<int32_t> Generate(Gpt& model, std::span<const int32_t> prompt, int64_t vocab_limit,
                              const GenerateOptions& options,
                              const std::function<bool(int32_t)>& on_token) {
  LS_CHECK(!prompt.empty(), "a prompt needs at least one token");
  const NoGrad no_grad;
  const Device device = model.Parameters().front()->value().device();
  const int64_t block = model.config().block_size;
  std::vector<int32_t> text(prompt.begin(), prompt.end());
  for (int64_t i = 0; i < options.tokens; ++i) {
    const int64_t n = std::min<int64_t>(block, text.size());
    const Tensor ids = Tensor::FromSpan(std::span<const int32_t>(text).last(n), {1, n}, device);
    const Tensor logits = model(ids);
    const Tensor last = logits.Slice(1, n - 1, n).Slice(2, 0, vocab_limit);
    const std::vector<float> row = last.To(DType::kF32).ToVector<float>();
    text.push_back(DrawToken(row, options, UniformAt(options.seed, i)));
    if (on_token && !on_token(text.back())) break;
  }
  return {text.begin() + static_cast<int64_t>(prompt.size()), text.end()};
}

}  // namespace lockstep::models
