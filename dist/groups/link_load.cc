#include "dist/groups/link_load.h"

#include <algorithm>

namespace lockstep::dist {
namespace {

constexpr int64_t kCounts = 128 * 1024;  // bytes
constexpr double kSlow = 50e6;           // bytes per second

}  // namespace

void LinkLoad::BeginOperation(Time now) {
  now_ = now;
  is_counted_ = false;
}

void LinkLoad::Exchanged(int64_t bytes, Time begin, Time end) {
  if (bytes < kCounts) return;
  if (!is_counted_) {
    is_counted_ = true;
    soon_[operations_++ % soon_.size()] = 2 * (now_ - end_) <= end_ - begin_;
    begin_ = begin;
  }
  end_ = end;
  rates_[exchanges_++ % rates_.size()] =
      static_cast<double>(bytes) / std::chrono::duration<double>(end - begin).count();
}

bool LinkLoad::IsBehind() const {
  // The fastest: in the others, ranks may have waited for a rank instead of the link.
  return exchanges_ >= std::ssize(rates_) &&
         2 * std::ranges::count(soon_, true) > std::ssize(soon_) &&
         std::ranges::max(rates_) < kSlow;
}

}  // namespace lockstep::dist
