#include "data/sampler.h"

#include <algorithm>
#include <array>
#include <string>
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
    : order_(order), seed_(seed), num_tokens_(num_tokens), block_size_(block_size) {
  LS_CHECK(block_size >= 1, "block_size must be at least 1, got ", block_size);
  LS_CHECK(num_tokens > block_size, num_tokens, " tokens are too few for a window, which needs ",
           "block_size + 1 = ", block_size + 1);
  windows_ = (num_tokens - 1) / block_size;
}

int64_t Sampler::WindowStart(int64_t index) const {
  int64_t start;
  WindowStarts(index, std::span(&start, 1));
  return start;
}

void Sampler::WindowStarts(int64_t index, std::span<int64_t> starts) const {
  LS_CHECK(index >= 0, "sample ", index, ": sample indices count from 0");
  const auto count = static_cast<int64_t>(starts.size());
  for (int64_t i = 0; i < count;) {
    const int64_t epoch = (index + i) / windows_;
    const int64_t first = (index + i) % windows_;
    const int64_t n = std::min(count - i, windows_ - first);  // samples of this epoch
    switch (order_) {
      case Order::kShuffled: {
        const Permutation permutation(seed_, epoch, windows_);
        for (int64_t j = 0; j < n; ++j) starts[i + j] = permutation(first + j) * block_size_;
        break;
      }
      case Order::kRandom:
        for (int64_t j = 0; j < n; ++j) {
          starts[i + j] = RandomOffset(seed_, index + i + j, num_tokens_ - block_size_);
        }
        break;
      case Order::kSequential:
        for (int64_t j = 0; j < n; ++j) starts[i + j] = (first + j) * block_size_;
        break;
    }
    i += n;
  }
}

}  // namespace lockstep::data
