// The contents of a store in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>

namespace lockstep::dist {

// Values and numbers by key, with a limit on the bytes held at a time; each key counts kOverhead
// more for its map entry. Not thread-safe.
class KeyValues {
 public:
  static constexpr size_t kOverhead = 128;  // bytes

  explicit KeyValues(size_t limit = std::numeric_limits<size_t>::max()) : limit_(limit) {}

  // Null if there is none; valid until the key is changed.
  const std::string* Find(const std::string& key) const;
  // Overwrites; returns false and changes nothing if that would exceed the limit.
  bool Set(const std::string& key, const std::string& value);
  // Adds to a number that starts at 0 and wraps around; nullopt if that would exceed the limit.
  std::optional<int64_t> Add(const std::string& key, int64_t delta);
  // Deletes the value and the number, if any.
  void Delete(const std::string& key);

  // Counts bytes that are kept elsewhere, such as a will's; false, charging nothing, beyond the
  // limit.
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
