#include "dist/control/key_values.h"

namespace lockstep::dist {

const std::string* KeyValues::Find(const std::string& key) const {
  const auto at = values_.find(key);
  return at == values_.end() ? nullptr : &at->second;
}

bool KeyValues::Set(const std::string& key, const std::string& value) {
  const auto at = values_.find(key);
  const size_t before = at == values_.end() ? 0 : CostOf(key, at->second.size());
  bytes_ -= before;
  if (!Charge(CostOf(key, value.size()))) {
    bytes_ += before;
    return false;
  }
  // Do not keep the capacity of a much larger previous value.
  if (at != values_.end() && at->second.capacity() > 2 * value.size()) at->second = std::string();
  values_[key] = value;
  return true;
}

std::optional<int64_t> KeyValues::Add(const std::string& key, int64_t delta) {
  auto at = numbers_.find(key);
  if (at == numbers_.end()) {
    if (!Charge(CostOf(key, sizeof(uint64_t)))) return std::nullopt;
    at = numbers_.emplace(key, 0).first;
  }
  at->second += static_cast<uint64_t>(delta);
  return static_cast<int64_t>(at->second);
}

void KeyValues::Delete(const std::string& key) {
  if (const auto at = values_.find(key); at != values_.end()) {
    Release(CostOf(key, at->second.size()));
    values_.erase(at);
  }
  if (numbers_.erase(key) > 0) Release(CostOf(key, sizeof(uint64_t)));
}

bool KeyValues::Charge(size_t bytes) {
  if (bytes > limit_ - bytes_) return false;
  bytes_ += bytes;
  return true;
}

}  // namespace lockstep::dist
