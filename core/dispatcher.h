// One typed slot per low-level operation, with one implementation per device.
#pragma once

#include <array>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/stream.h"

namespace lockstep {

// Is told of the slots that a thread calls, for accounts of where its time goes. Functions of slots
// may call others, so that calls nest.
class SlotObserver {
 public:
  virtual ~SlotObserver() = default;
  virtual void OnEnter(const char* name) = 0;  // the slot's, which lives as long as the program
  virtual void OnLeave() noexcept = 0;
};

namespace internal {
[[noreturn]] void ThrowEmptySlot(const char* name, Device device);

// Of this thread; null: nobody is told.
extern constinit thread_local SlotObserver* slot_observer;

class SlotCall {
 public:
  explicit SlotCall(const char* name) : observer_(slot_observer) {
    if (observer_ != nullptr) [[unlikely]]
      observer_->OnEnter(name);
  }
  ~SlotCall() {
    if (observer_ != nullptr) [[unlikely]]
      observer_->OnLeave();
  }
  SlotCall(const SlotCall&) = delete;
  SlotCall& operator=(const SlotCall&) = delete;

 private:
  SlotObserver* const observer_;
};
}  // namespace internal

// While it lives, the observer, which outlives it, is told of the slots that this thread calls.
class ObserveSlots {
 public:
  explicit ObserveSlots(SlotObserver* observer)
      : before_(std::exchange(internal::slot_observer, observer)) {}
  ~ObserveSlots() { internal::slot_observer = before_; }
  ObserveSlots(const ObserveSlots&) = delete;
  ObserveSlots& operator=(const ObserveSlots&) = delete;

 private:
  SlotObserver* const before_;
};

template <class Signature>
class Slot;

// A slot's function takes the stream first and writes into tensors that its caller has allocated.
// On the meta device there is nothing to call: the caller has already computed the shapes.
//
//   inline constinit Slot<void(const Tensor& x, const Tensor& y)> softmax{"softmax"};
//   softmax(CurrentStream(x.device()), x, y);
// An implementation, which its source registers:
//   void SoftmaxCpu(Stream, const Tensor& x, const Tensor& y);
//   LS_REGISTER(softmax, DeviceType::kCpu, SoftmaxCpu);
template <class... Args>
class Slot<void(Args...)> {
 public:
  using Function = void (*)(Stream, Args...);

  constexpr explicit Slot(const char* name) : name_(name) {}

  void operator()(Stream stream, Args... args) const {
    const Function f = functions_[static_cast<size_t>(stream.device.type)];
    if (f == nullptr) [[unlikely]] {
      if (stream.device.is_meta()) return;
      internal::ThrowEmptySlot(name_, stream.device);
    }
    // So that the function's workspaces belong to that stream, too.
    std::optional<StreamGuard> guard;
    if (stream != CurrentStream(stream.device)) guard.emplace(stream);
    const internal::SlotCall call(name_);
    f(std::move(stream), args...);
  }

  // Returns true so that a static variable's initialiser can call it.
  bool Register(DeviceType type, Function function) {
    functions_[static_cast<size_t>(type)] = function;
    return true;
  }

 private:
  const char* name_;
  std::array<Function, kNumDeviceTypes> functions_{};
};

}  // namespace lockstep

#define LS_REGISTER(slot, device_type, function)                      \
  [[maybe_unused]] static const bool registered_##slot##_##function = \
      (slot).Register(device_type, function)
