// How a launch that runs in every step notes that its kernel is slow (core/kernel_choices.h): it
// takes no lock and makes no string, but for the first of each problem.
#pragma once

#include <array>
#include <atomic>
#include <initializer_list>

#include "core/kernel_choices.h"

namespace lockstep::cuda {

// The problems that a place of the program has met lately, by their hashes: one per slot. Any
// thread may call it.
class ProblemsMet {
 public:
  // Whether the problem of this op, a literal, is not among them; then it is from now on.
  bool IsNew(const char* op, std::initializer_list<int64_t> problem) {
    uint64_t hash = reinterpret_cast<uintptr_t>(op);
    for (const int64_t number : problem) {
      hash = (hash ^ static_cast<uint64_t>(number)) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 32;
    }
    return slots_[hash % kSlots].exchange(hash, std::memory_order_relaxed) != hash;
  }

 private:
  static constexpr size_t kSlots = 64;
  std::array<std::atomic<uint64_t>, kSlots> slots_{};
};

// NoteKernelChoice of what `make` returns, if the problem is new.
template <class Make>
void NoteSlowChoice(ProblemsMet& met, const char* op, std::initializer_list<int64_t> problem,
                    const Make& make) {
  if (met.IsNew(op, problem)) NoteKernelChoice(op, std::vector<int64_t>(problem), make);
}

}  // namespace lockstep::cuda
