#include "data/distributed_sampler.h"

#include "core/error.h"

namespace lockstep::data {
namespace {

int64_t SizeOfShare(int64_t items, int64_t ranks, int64_t rank, Remainder remainder) {
  switch (remainder) {
    case Remainder::kPad:
      return (items + ranks - 1) / ranks;
    case Remainder::kDrop:
      return items / ranks;
    case Remainder::kUneven:
      return items / ranks + (rank < items % ranks ? 1 : 0);
  }
  return 0;
}

}  // namespace

DistributedSampler::DistributedSampler(int64_t items, int64_t ranks, int64_t rank,
                                       const Options& options)
    : items_(items), ranks_(ranks), rank_(rank), options_(options) {
  LS_CHECK(items >= 1, "a sampler needs at least 1 item, got ", items);
  LS_CHECK(ranks >= 1 && rank >= 0 && rank < ranks, "rank ", rank, " of ", ranks,
           ": ranks count from 0 to one less than their number");
  LS_CHECK(options.remainder != Remainder::kDrop || items >= ranks, items, " items for ", ranks,
           " ranks: nothing would be left after dropping the remainder; use fewer ranks, or pad");
  size_ = SizeOfShare(items, ranks, rank, options.remainder);
}

DistributedSampler::Epoch::Epoch(const DistributedSampler& sampler, int64_t epoch)
    : sampler_(sampler),
      permutation_(sampler.options_.seed, static_cast<uint64_t>(epoch), sampler.items_) {
  LS_CHECK(epoch >= 0, "epoch ", epoch, ": epochs count from 0");
}

int64_t DistributedSampler::Epoch::operator[](int64_t position) const {
  const DistributedSampler& s = sampler_;
  LS_CHECK(position >= 0 && position < s.size_, "position ", position,
           " is outside the epoch of rank ", s.rank_, ", which has ", s.size_, " items");
  const int64_t index = (position * s.ranks_ + s.rank_) % s.items_;  // padding wraps around
  return s.options_.shuffle ? permutation_(index) : index;
}

Tensor DistributedSampler::Epoch::Items(int64_t first, int64_t n) const {
  const Tensor items = Tensor::Empty({n}, DType::kI64);
  for (int64_t i = 0; i < n; ++i) items.data<int64_t>()[i] = (*this)[first + i];
  return items;
}

}  // namespace lockstep::data
