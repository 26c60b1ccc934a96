// The ids of words that were encoded before.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

// word -> ids, for one thread. Emptied when full: frequent words soon return. Takes at most some
// 30 MB, and no memory before the first word.
class WordCache {
 public:
  static constexpr size_t kMaxWordBytes = 64;

  static uint64_t Hash(std::string_view word) {
    uint64_t hash = word.size() * kMultiplier;
    const char* p = word.data();
    size_t left = word.size();
    for (; left > 8; p += 8, left -= 8) hash = Mix(hash ^ Load(p, 8));
    return Mix(hash ^ Load(p, left));
  }

  // Whether the word is there; if so, appends its ids.
  bool Find(std::string_view word, uint64_t hash, std::vector<int32_t>* ids) const {
    if (slots_.empty()) return false;
    for (size_t i = hash & (slots_.size() - 1); slots_[i].size > 0;
         i = (i + 1) & (slots_.size() - 1)) {
      const Slot& slot = slots_[i];
      if (slot.hash != hash || slot.size != word.size()) continue;
      if (std::memcmp(words_.data() + slot.word, word.data(), word.size()) != 0) continue;
      const int32_t* found = ids_.data() + slot.ids;
      ids->insert(ids->end(), found, found + slot.count);
      return true;
    }
    return false;
  }

  // Adds a word of 1 to kMaxWordBytes bytes that is not there.
  void Insert(std::string_view word, uint64_t hash, std::span<const int32_t> ids) {
    if (count_ >= kMaxWords) {
      slots_.assign(slots_.size(), {});
      words_.clear();
      ids_.clear();
      count_ = 0;
    }
    if (2 * count_ >= slots_.size()) Grow();
    Place({.hash = hash,
           .word = static_cast<uint32_t>(words_.size()),
           .ids = static_cast<uint32_t>(ids_.size()),
           .size = static_cast<uint16_t>(word.size()),
           .count = static_cast<uint16_t>(ids.size())});
    words_.append(word);
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    ++count_;
  }

 private:
  static constexpr size_t kMaxWords = size_t{1} << 18;
  static constexpr uint64_t kMultiplier = 0x9e3779b97f4a7c15u;

  struct Slot {
    uint64_t hash = 0;
    uint32_t word = 0, ids = 0;    // where they begin
    uint16_t size = 0, count = 0;  // of bytes, 0 if the slot is free, and of ids
  };

  static uint64_t Load(const char* p, size_t size) {
    uint64_t value = 0;
    std::memcpy(&value, p, size);
    return value;
  }
  static uint64_t Mix(uint64_t x) {
    x *= kMultiplier;
    return x ^ std::rotl(x, 31);
  }

  void Place(const Slot& slot) {
    size_t i = slot.hash & (slots_.size() - 1);
    while (slots_[i].size > 0) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = slot;
  }

  void Grow() {
    std::vector<Slot> old(std::max<size_t>(1024, 2 * slots_.size()));
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.size > 0) Place(slot);
    }
  }

  std::vector<Slot> slots_;  // open addressing, at most half full
  std::string words_;
  std::vector<int32_t> ids_;
  size_t count_ = 0;
};

}  // namespace lockstep::data
