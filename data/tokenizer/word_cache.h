// The ids of words that were encoded before.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

// word -> ids, for one thread. Emptied when full: frequent words soon return. Takes at most some
// 40 MB, and no memory before the first word.
class WordCache {
 public:
  static constexpr size_t kMaxWordBytes = 64;

  // A word of 1 to kMaxWordBytes bytes. Up to 16 bytes, `a`, `b` and the size tell words apart.
  struct Key {
    explicit Key(std::string_view text) : word(text) {
      const char* p = text.data();
      const size_t size = text.size();
      if (size >= 8) {
        a = Load<uint64_t>(p);
        b = Load<uint64_t>(p + size - 8);
        for (size_t i = 8; i + 8 < size && size > 16; i += 8) a = Mix(a) ^ Load<uint64_t>(p + i);
      } else if (size >= 4) {
        a = Load<uint32_t>(p);
        b = Load<uint32_t>(p + size - 4);
      } else {
        a = static_cast<uint8_t>(p[0]) | static_cast<uint8_t>(p[size / 2]) << 8 |
            static_cast<uint8_t>(p[size - 1]) << 16;
      }
      hash = Mix(a ^ Mix(b ^ size));
    }

    std::string_view word;
    uint64_t a = 0, b = 0, hash;
  };

  // Whether the word is there; if so, appends its ids.
  bool Find(const Key& key, std::vector<int32_t>* ids) const {
    if (slots_.empty()) return false;
    for (size_t i = Home(key.hash); slots_[i].size > 0; i = Next(i)) {
      const Slot& slot = slots_[i];
      if (slot.a != key.a || slot.b != key.b || slot.size != key.word.size()) continue;
      if (slot.size > 16 &&
          std::memcmp(words_.data() + slot.word, key.word.data(), slot.size) != 0) {
        continue;
      }
      if (slot.count == 1) {
        ids->push_back(slot.ids);
      } else {
        ids->insert(ids->end(), ids_.data() + slot.ids, ids_.data() + slot.ids + slot.count);
      }
      return true;
    }
    return false;
  }

  // Adds a word that is not there.
  void Insert(const Key& key, std::span<const int32_t> ids) {
    if (count_ >= kMaxWords) {
      std::ranges::fill(slots_, Slot{});
      words_.clear();
      ids_.clear();
      count_ = 0;
    }
    if (2 * count_ >= slots_.size()) Grow();
    const size_t size = key.word.size();
    const size_t begin = ids.size() == 1 ? static_cast<size_t>(ids[0]) : ids_.size();
    Place({.a = key.a,
           .b = key.b,
           .hash = static_cast<uint32_t>(key.hash),
           .word = static_cast<uint32_t>(words_.size()),
           .ids = static_cast<int32_t>(begin),
           .size = static_cast<uint16_t>(size),
           .count = static_cast<uint16_t>(ids.size())});
    if (size > 16) words_ += key.word;
    if (ids.size() != 1) ids_.insert(ids_.end(), ids.begin(), ids.end());
    ++count_;
  }

 private:
  static constexpr size_t kMaxWords = size_t{1} << 18;

  struct Slot {
    uint64_t a = 0, b = 0;
    uint32_t hash = 0;
    uint32_t word = 0;             // where a word of more than 16 bytes begins in words_
    int32_t ids = 0;               // where the ids begin in ids_, or the only id
    uint16_t size = 0, count = 0;  // of bytes (0: the slot is free), and of ids
  };

  template <typename T>
  static T Load(const char* p) {
    T value;
    std::memcpy(&value, p, sizeof(value));
    return value;
  }
  static uint64_t Mix(uint64_t x) {
    x *= 0x9e3779b97f4a7c15u;
    return x ^ std::rotl(x, 31);
  }

  size_t Home(uint64_t hash) const { return static_cast<uint32_t>(hash) & (slots_.size() - 1); }
  size_t Next(size_t i) const { return (i + 1) & (slots_.size() - 1); }

  void Place(const Slot& slot) {
    size_t i = Home(slot.hash);
    while (slots_[i].size > 0) i = Next(i);
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
