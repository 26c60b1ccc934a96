// Memory that a thread keeps between calls, so that kernels allocate nothing in steady state.
#pragma once

#include <cstdint>
#include <memory>
#include <new>

namespace lockstep::cpu {

// Grows, aligned to 64 bytes, contents undefined. Meant to be thread_local.
template <class T>
class Scratch {
 public:
  // Memory for n elements, valid until the next call.
  T* Get(int64_t n) {
    if (n > size_) {
      data_.reset();
      size_ = 0;
      data_.reset(static_cast<T*>(
          ::operator new (static_cast<size_t>(n) * sizeof(T), std::align_val_t{64})));
      size_ = n;
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(T* p) const { ::operator delete (p, std::align_val_t{64}); }
  };
  std::unique_ptr<T, Free> data_;
  int64_t size_ = 0;
};

}  // namespace lockstep::cpu
