// What forward saves on a GPU, in host memory until backward.
#pragma once

#include <memory>
#include <optional>

#include "core/autograd/saved_tensor.h"

namespace lockstep {

// Moves what parts of a forward save to page-locked host memory and back, on a stream of its own:
// while one part computes, what the one before saved is copied away; in backward, while one part
// computes, what the one before needs comes back. So a device holds what two parts save, and the
// host the rest. One for the parts of a model, in the order in which they run; used by one thread
// at a time. On the CPU it does nothing; on the meta device it frees what it would free.
class Offloader {
 public:
  Offloader();
  ~Offloader();
  Offloader(const Offloader&) = delete;
  Offloader& operator=(const Offloader&) = delete;

  int64_t host_bytes() const;  // in use now
  // What it has taken of the host, and keeps: where shapes vary, a small multiple of what it had in
  // use at once.
  int64_t kept_host_bytes() const;

 private:
  friend class OffloadScope;
  struct State;
  std::shared_ptr<State> state_;
};

// A part of a forward, such as a block. Of the tensors that it makes itself and saves, contiguous
// ones of at least kMinBytes are moved. Each keeps the bits; overwriting one is an error in
// backward, as if it had stayed.
class OffloadScope {
 public:
  static constexpr int64_t kMinBytes = 1024;

  explicit OffloadScope(const Offloader& offloader);
  ~OffloadScope();
  OffloadScope(const OffloadScope&) = delete;
  OffloadScope& operator=(const OffloadScope&) = delete;

  // The part is over: what the one before saved is no longer on the device.
  void Finish();

 private:
  friend class Offloader;
  struct Part;
  struct Item;
  struct Saved;

  std::shared_ptr<Part> part_;
  std::optional<SavedTensorHooks> hooks_;
};

}  // namespace lockstep
