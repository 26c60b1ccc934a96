// What one rendering may use. Templates come with models from strangers: one that loops, recurses
// or doubles a string must end with an error, in bounded time and memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/error.h"

namespace lockstep::data::chat {

// What is wrong with a template or with the values it is given. ChatTemplate adds where, and throws
// an InputError.
class TemplateFailure : public Error {
 public:
  using Error::Error;
};

template <class... Args>
[[noreturn]] void Fail(const Args&... args) {
  throw TemplateFailure(StrCat(args...));
}

struct Limits {
  size_t output_bytes = size_t{64} << 20;   // of the text, and of any one string
  size_t memory_bytes = size_t{512} << 20;  // of the values that are alive at one time
  int64_t steps = 10'000'000;  // nodes evaluated, elements and 64 bytes of text visited
  int depth = 400;             // nodes within nodes, through calls of macros
};

// How deep lists, dicts and tuples may be nested.
inline constexpr int kMaxNesting = 100;

// What the rendering on this thread has used so far.
class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits), outer_(std::exchange(current_, this)) {}
  ~Budget() { current_ = outer_; }
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  // nullptr while a template is parsed.
  static Budget* Current() { return current_; }
  const Limits& limits() const { return limits_; }

  void Step(size_t count) {
    steps_ += static_cast<int64_t>(count);
    if (steps_ > limits_.steps) {
      Fail("the template does not end within ", limits_.steps, " steps; does it loop too much?");
    }
  }
  void Take(size_t bytes) {
    if (bytes > limits_.memory_bytes - taken_) {
      Fail("the template's values need more than ", limits_.memory_bytes >> 20, " MiB");
    }
    taken_ += bytes;
  }
  void Return(size_t bytes) { taken_ -= bytes; }

 private:
  static inline thread_local Budget* current_ = nullptr;

  Limits limits_;
  Budget* outer_;
  int64_t steps_ = 0;
  size_t taken_ = 0;
};

// Accounts for work on this many elements, or bytes of text.
inline void Work(size_t elements) {
  if (Budget* budget = Budget::Current()) budget->Step(elements);
}
inline void TextWork(size_t bytes) { Work(1 + bytes / 64); }

// Call it before a string of this many bytes is made; it throws if that is too much.
inline void RequireTextFits(size_t bytes) {
  const Budget* budget = Budget::Current();
  const size_t most = budget != nullptr ? budget->limits().output_bytes : Limits().output_bytes;
  if (bytes > most) Fail("the template makes a text of more than ", most, " bytes");
}

// Bytes of a value, for as long as it lives.
class Charge {
 public:
  explicit Charge(size_t bytes) : budget_(Budget::Current()), bytes_(bytes) {
    if (budget_ != nullptr) budget_->Take(bytes_);
  }
  ~Charge() {
    if (budget_ != nullptr) budget_->Return(bytes_);
  }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;

 private:
  Budget* budget_;
  size_t bytes_;
};

}  // namespace lockstep::data::chat
