// What a store holds in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>

namespace lockstep::dist {

// Values and numbers by key, with a limit on their bytes: those that are held now, each key with
// kOverhead for its place in the map. Not thread-safe.
class KeyValues {
 public:
  static constexpr size_t kOverhead = 128;  // bytes

  explicit KeyValues(size_t limit = std::numeric_limits<size_t>::max()) : limit_(limit) {}

  // Null where there is none; valid until the key is changed.
  const std::string* Find(const std::string& key) const;
  // Overwrites; false, and nothing is changed, where it would exceed the limit.
  bool Set(const std::string& key, const std::string& value);
  // Adds to a number, from 0, and wraps around instead of overflowing; nullopt as Set's false.
  std::optional<int64_t> Add(const std::string& key, int64_t delta);
  // The value and the number, where there are any.
  void Delete(const std::string& key);

  // For what is kept elsewhere, such as a will; false, and nothing is charged, beyond the limit.
  bool Charge(size_t bytes);
  void Release(size_t bytes) { bytes_ -= bytes; }
  static size_t CostOf(const std::string& key, size_t value_bytes) {
    return kOverhead + key.size() + value_bytes;
  }

  size_t bytes() const { return bytes_; }

 private:
  const size_t limit_;
  size_t bytes_ = 0;
  std::map<std::string, std::string> values_;
  std::map<std::string, uint64_t> numbers_;
};

}  // namespace lockstep::dist
