// A hash map whose keys are pairs of token ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace lockstep::data {

// Open addressing with linear probing, at most half full: a lookup is about one cache miss, where
// std::unordered_map has three. Ids are >= 0. Pointers to values are valid until the next
// FindOrAdd or Erase.
template <class Value>
class PairMap {
 public:
  // The value of the pair, or null.
  Value* Find(int32_t left, int32_t right) {
    Slot& slot = slots_[SlotOf(Key(left, right))];
    return slot.key == kEmpty ? nullptr : &slot.value;
  }

  // Adds Value() if the pair is not there; the second result says so.
  std::pair<Value*, bool> FindOrAdd(int32_t left, int32_t right) {
    const uint64_t key = Key(left, right);
    size_t i = SlotOf(key);
    const bool added = slots_[i].key == kEmpty;
    if (added) {
      if (2 * ++size_ > slots_.size()) {
        Grow();
        i = SlotOf(key);
      }
      slots_[i].key = key;
    }
    return {&slots_[i].value, added};
  }

  // The pair must be there.
  void Erase(int32_t left, int32_t right) {
    size_t hole = SlotOf(Key(left, right));
    // Moves back what lies behind, so that no probe meets a gap before its key.
    for (size_t i = Next(hole); slots_[i].key != kEmpty; i = Next(i)) {
      const size_t distance = (i - Home(slots_[i].key)) & (slots_.size() - 1);
      if (distance < ((i - hole) & (slots_.size() - 1))) continue;
      slots_[hole] = std::move(slots_[i]);
      hole = i;
    }
    slots_[hole] = Slot();
    --size_;
  }

 private:
  static constexpr uint64_t kEmpty = UINT64_MAX;
  struct Slot {
    uint64_t key = kEmpty;
    Value value{};
  };

  static uint64_t Key(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t Home(uint64_t key) const { return ((key ^ key >> 29) * 0x9e3779b97f4a7c15u) >> shift_; }
  size_t Next(size_t i) const { return (i + 1) & (slots_.size() - 1); }
  // Where the key is, or else where it would be added.
  size_t SlotOf(uint64_t key) const {
    size_t i = Home(key);
    while (slots_[i].key != key && slots_[i].key != kEmpty) i = Next(i);
    return i;
  }
  void Grow() {
    std::vector<Slot> old(2 * slots_.size());
    old.swap(slots_);
    --shift_;
    for (Slot& slot : old) {
      if (slot.key != kEmpty) slots_[SlotOf(slot.key)] = std::move(slot);
    }
  }

  std::vector<Slot> slots_ = std::vector<Slot>(16);
  size_t size_ = 0;
  int shift_ = 60;  // 64 - log2(slots_.size())
};

}  // namespace lockstep::data
