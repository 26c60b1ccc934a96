#include "models/options/depth_laws.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "core/error.h"

namespace lockstep::models {
namespace {

constexpr int64_t kSmall = 4, kLarge = 12;  // the depths that were tuned
constexpr double kSmallWidth = 128, kLargeWidth = 768;
// Tokens of a step and of the run, at each: 200 steps of 768 tokens, and the compute-optimal run.
constexpr double kSmallBatch = 768, kSmallTokens = 200 * kSmallBatch;
constexpr double kLargeBatch = 1 << 19, kLargeTokens = 892e6;
// Tokens of a micro-batch, which fit on most devices.
constexpr int64_t kMicroBatch = 16384;

// A straight line through both, constant beyond them.
double Between(int64_t depth, double small, double large) {
  const double share = static_cast<double>(depth - kSmall) / (kLarge - kSmall);
  return small + (large - small) * std::clamp(share, 0.0, 1.0);
}

int64_t NearestPowerOfTwo(double x) { return int64_t{1} << std::lround(std::log2(x)); }

// With two digits, as a person would write it.
double Rounded(double x) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1e", x);
  return std::strtod(text, nullptr);
}

// What follows so far.
class Laws {
 public:
  explicit Laws(const Given& given) : given_(given) {}

  template <class T>
  T GivenOr(std::string_view key, T value) const {
    const auto given = given_(key);
    return given ? std::get<T>(*given) : value;
  }
  // Returns the value that counts from here on: the given one, else that of the law.
  template <class T>
  T Settle(const char* key, T value, std::string reason) {
    following_.push_back({key, value, std::move(reason)});
    return GivenOr(key, std::move(value));
  }
  bool IsGiven(std::string_view key) const { return given_(key).has_value(); }
  std::vector<Following> Take() {
    std::erase_if(following_, [&](const Following& f) { return IsGiven(f.key); });
    return std::move(following_);
  }

 private:
  const Given& given_;
  std::vector<Following> following_;
};

struct Shape {
  int64_t layers = 0, width = 0, context = 0;
};

Shape FollowShape(int64_t depth, Laws& laws) {
  Shape shape;
  shape.layers = laws.Settle("model.n_layer", depth, "the depth itself");
  shape.width = laws.Settle("model.n_embd", WidthOfDepth(depth),
                            "32 for each layer at depth 4, 64 from depth 12 on, in whole heads");
  const auto given_head = laws.GivenOr<int64_t>("model.head_dim", 0);
  const int64_t head = given_head > 0 ? given_head : HeadWidthOfDepth(depth);
  int64_t heads = std::max<int64_t>(1, shape.width / head);
  if (given_head == 0) {
    while (shape.width % heads != 0) --heads;
  }
  laws.Settle("model.n_head", heads, "heads 32 wide, 64 from depth 6 and 128 from depth 12 on");
  shape.context = laws.Settle("model.block_size", ContextOfDepth(depth),
                              "the power of two nearest to depth^3, from 64 to 2048");
  return shape;
}

// The options of modern recipes that paid by the clock, at the depth at which they were tried.
// Those that depend on the depth are settled at each, so that another depth replaces what a file
// has.
void FollowRecipe(int64_t depth, int64_t context, Laws& laws) {
  const bool large = depth >= kLarge;
  const std::string recipe = "the recipe that learns fastest", size = "better at this size";
  const std::string rms = laws.Settle<std::string>("model.norm", "rms_norm", recipe);
  if (rms == "rms_norm") laws.Settle("model.norm_weight", false, recipe);
  laws.Settle("model.embed_norm", true, recipe);
  laws.Settle("model.embed_mix", true, recipe);
  laws.Settle<std::string>("model.position", "rope", recipe);
  laws.Settle<std::string>("model.qk_norm", "head", recipe);
  laws.Settle("model.tie_embeddings", false, recipe);
  laws.Settle("model.init_zero", true, recipe);
  laws.Settle<std::string>("model.activation", large ? "relu2" : "swiglu", size);
  laws.Settle("model.value_embed", large, size);
  const int64_t window = laws.Settle("model.window", large ? (context + 1) / 2 : 0, size);
  laws.Settle<int64_t>("model.window_pattern", large && window > 0 ? 4 : 0, size);
  laws.Settle<std::string>("data.order", large ? "shuffled" : "random", size);
  laws.Settle<std::string>("optim.schedule", "wsd", recipe);
  laws.Settle("optim.decay_fraction", 0.6, recipe);
  laws.Settle<int64_t>("optim.warmup", 0, recipe);
}

void FollowLength(const Shape& shape, Laws& laws) {
  double ratio = kTokensPerParameter;
  if (!laws.IsGiven("train.steps") && !laws.IsGiven("train.epochs") &&
      !laws.IsGiven("train.time_budget")) {
    const std::string reason = "a smaller or larger model is worse with the same FLOPs";
    ratio = laws.Settle("train.tokens_per_parameter", ratio, reason);
    laws.Settle<int64_t>("train.steps", 0, reason);
  }
  const int64_t context = shape.context;
  const double tokens = ratio * BlockParameters(shape.layers, shape.width);
  const int64_t batch = BatchOfTokens(std::max(tokens, 1.0));
  const std::string reason =
      StrCat(batch, " tokens a step for some ", std::llround(tokens / 1e5) / 10.0, "M");
  // A given micro-batch has to divide it.
  const int64_t unit = laws.GivenOr<int64_t>("train.batch_size", 1);
  int64_t sequences = std::max<int64_t>(1, batch / (context * unit)) * unit;
  if (laws.GivenOr<int64_t>("train.grad_accum", 0) == 0) {
    const int64_t settled = laws.Settle("train.global_batch_size", sequences, reason);
    if (settled > 0) sequences = settled;
  }
  int64_t micro = std::min(std::max<int64_t>(1, kMicroBatch / context), sequences);
  while (sequences % micro != 0) --micro;
  laws.Settle("train.batch_size", micro, StrCat("at most ", kMicroBatch, " tokens at a time"));
}

void FollowOptimizer(int64_t depth, double width, Laws& laws) {
  const std::string recipe = "the recipe that learns fastest";
  const auto name = laws.Settle<std::string>("optim.name", "muon", recipe);
  if (name == "muon") {
    laws.Settle("optim.muon_split", true, recipe);
    if (laws.Settle<std::string>("optim.muon_scale", "original", recipe) == "original") {
      laws.Settle("optim.matrix_lr", Rounded(Between(depth, 0.04, 0.02)),
                  "0.04 at depth 4, 0.02 from depth 12 on; muon's scale carries it over widths");
    }
  }
  const double by_width = std::sqrt(kSmallWidth / width);
  const std::string rate = "the best rate at width 128, times sqrt(128 / width)";
  laws.Settle("optim.lr", Rounded(4e-3 * by_width), rate);
  laws.Settle("optim.embedding_lr", Rounded(1e-2 * by_width), rate);
  laws.Settle("optim.unembedding_lr", Rounded(4e-3 * by_width), rate);
  if (name != "muon" && name != "adamw") return;
  const double decay = Between(depth, 0.1, 0.2) * std::min(1.0, std::pow(kLargeWidth / width, 2));
  laws.Settle("optim.weight_decay", Rounded(decay),
              "0.1 at depth 4, 0.2 at depth 12, beyond width 768 as 1 / width^2");
  // Until the clock has settled the last step, nothing can fall to it.
  if (!laws.IsGiven("train.time_budget")) {
    laws.Settle<std::string>("optim.weight_decay_schedule", "linear", recipe);
  }
  laws.Settle("optim.cautious_weight_decay", true, recipe);
  laws.Settle("optim.decay_embeddings", false, recipe);
}

}  // namespace

int64_t HeadWidthOfDepth(int64_t depth) { return depth < 6 ? 32 : depth < kLarge ? 64 : 128; }

int64_t WidthOfDepth(int64_t depth) {
  const int64_t head = HeadWidthOfDepth(depth);
  const auto width = static_cast<int64_t>(static_cast<double>(depth) * Between(depth, 32, 64));
  return (width + head - 1) / head * head;
}

int64_t ContextOfDepth(int64_t depth) {
  return std::clamp<int64_t>(NearestPowerOfTwo(static_cast<double>(depth * depth * depth)), 64,
                             2048);
}

int64_t BatchOfTokens(double tokens) {
  const double below = std::log(kLargeBatch / kSmallBatch) / std::log(kLargeTokens / kSmallTokens);
  const double power = tokens < kLargeTokens ? below : 0.383;
  return NearestPowerOfTwo(std::max(1.0, kLargeBatch * std::pow(tokens / kLargeTokens, power)));
}

double BlockParameters(int64_t depth, int64_t width) {
  return 12.0 * static_cast<double>(depth) * static_cast<double>(width * width);
}

std::vector<Following> FollowDepth(int64_t depth, const Given& given) {
  Laws laws(given);
  const Shape shape = FollowShape(depth, laws);
  FollowRecipe(depth, shape.context, laws);
  FollowLength(shape, laws);
  FollowOptimizer(depth, static_cast<double>(shape.width), laws);
  return laws.Take();
}

}  // namespace lockstep::models
