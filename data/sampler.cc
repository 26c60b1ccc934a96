#include "data/sampler.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/error.h"
#include "core/philox.h"
#include "data/permutation.h"

namespace lockstep::data {
namespace {

constexpr std::array<std::pair<std::string_view, Order>, 3> kOrders = {{
    {"shuffled", Order::kShuffled},
    {"random", Order::kRandom},
    {"sequential", Order::kSequential},
}};

constexpr uint64_t kRandomOffsetSite = HashName("data.random_offset", 18);

// Uniform in [0, n): the upper half of a 128-bit product. The bias is at most n / 2^64.
int64_t RandomOffset(uint64_t seed, int64_t index, int64_t n) {
  const Philox::Block block = Philox(seed)(kRandomOffsetSite, index);
  const uint64_t random = static_cast<uint64_t>(block.v[0]) << 32 | block.v[1];
  __extension__ using uint128 = unsigned __int128;
  return static_cast<int64_t>(static_cast<uint128>(random) * static_cast<uint64_t>(n) >> 64);
}

constexpr uint64_t kSourceSite = HashName("data.mix", 8);

// The first source has the seed itself, so that a mixture of one source is that source.
uint64_t SeedOfSource(uint64_t seed, size_t source) {
  if (source == 0) return seed;
  const Philox::Block block = Philox(seed)(kSourceSite, source);
  return static_cast<uint64_t>(block.v[0]) << 32 | block.v[1];
}

}  // namespace

Order ParseOrder(std::string_view name) {
  for (const auto& [known, order] : kOrders) {
    if (name == known) return order;
  }
  throw InputError(StrCat("data.order=", name, ": expected shuffled, random or sequential"));
}

std::string_view Name(Order order) {
  for (const auto& [name, known] : kOrders) {
    if (order == known) return name;
  }
  return "unknown";
}

void BatchLayout::Check() const {
  LS_CHECK(batch_size >= 1 && micro_batches >= 1, "a step of ", micro_batches, " micro-batches of ",
           batch_size, " samples: both must be at least 1");
  std::vector<int64_t> order = micro_order;
  std::sort(order.begin(), order.end());
  const bool distinct = std::adjacent_find(order.begin(), order.end()) == order.end();
  LS_CHECK(order.empty() || (distinct && order.front() >= 0 && order.back() < micro_batches),
           "micro_order must name some of the ", micro_batches, " micro-batches, each once");
}

Sampler::Sampler(Order order, uint64_t seed, int64_t num_tokens, int64_t block_size)
    : order_(order), block_size_(block_size) {
  AddSource(seed, num_tokens);
}

Sampler::Sampler(Order order, uint64_t seed, std::span<const MixtureStream> mixture,
                 int64_t block_size)
    : order_(order), block_size_(block_size) {
  LS_CHECK(!mixture.empty(), "a mixture needs at least one source");
  std::vector<int64_t> weights;
  for (const MixtureStream& stream : mixture) {
    AddSource(SeedOfSource(seed, sources_.size()), stream.num_tokens);
    weights.push_back(stream.weight);
  }
  if (mixture.size() > 1) schedule_ = std::make_shared<MixtureSchedule>(std::move(weights));
}

void Sampler::AddSource(uint64_t seed, int64_t num_tokens) {
  LS_CHECK(block_size_ >= 1, "block_size must be at least 1, got ", block_size_);
  LS_CHECK(num_tokens > block_size_, num_tokens, " tokens are too few for a window, which needs ",
           "block_size + 1 = ", block_size_ + 1);
  sources_.push_back({seed, num_tokens_, num_tokens, (num_tokens - 1) / block_size_});
  num_tokens_ += num_tokens;
  windows_ += sources_.back().windows;
}

std::vector<double> Sampler::EpochsOf(int64_t count) const {
  const std::vector<int64_t> counts =
      schedule_ ? schedule_->CountsOf(count) : std::vector<int64_t>{count};
  std::vector<double> epochs;
  for (size_t i = 0; i < sources_.size(); ++i) {
    epochs.push_back(static_cast<double>(counts[i]) / static_cast<double>(sources_[i].windows));
  }
  return epochs;
}

int64_t Sampler::WindowStart(int64_t index) const {
  int64_t start;
  WindowStarts(index, std::span(&start, 1));
  return start;
}

void Sampler::WindowStarts(int64_t index, std::span<int64_t> starts) const {
  LS_CHECK(index >= 0, "sample ", index, ": sample indices count from 0");
  if (!schedule_) return WindowStartsIn(sources_[0], index, starts);
  for (size_t i = 0; i < starts.size(); ++i) {
    const MixtureSchedule::Place place = (*schedule_)(index + static_cast<int64_t>(i));
    WindowStartsIn(sources_[place.source], place.index, starts.subspan(i, 1));
  }
}

void Sampler::WindowStartsIn(const Source& source, int64_t index, std::span<int64_t> starts) const {
  const auto count = static_cast<int64_t>(starts.size());
  for (int64_t i = 0; i < count;) {
    const int64_t epoch = (index + i) / source.windows;
    const int64_t first = (index + i) % source.windows;
    const int64_t n = std::min(count - i, source.windows - first);  // samples of this epoch
    switch (order_) {
      case Order::kShuffled: {
        const Permutation permutation(source.seed, epoch, source.windows);
        for (int64_t j = 0; j < n; ++j) starts[i + j] = permutation(first + j) * block_size_;
        break;
      }
      case Order::kRandom:
        for (int64_t j = 0; j < n; ++j) {
          starts[i + j] = RandomOffset(source.seed, index + i + j, source.num_tokens - block_size_);
        }
        break;
      case Order::kSequential:
        for (int64_t j = 0; j < n; ++j) starts[i + j] = (first + j) * block_size_;
        break;
    }
    i += n;
  }
  for (int64_t& start : starts) start += source.begin;
}

}  // namespace lockstep::data
