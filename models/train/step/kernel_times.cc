#include "models/train/step/kernel_times.h"

#include <algorithm>
#include <optional>

#include "core/stream.h"
#include "dist/groups/nccl_work.h"

namespace lockstep::models {
namespace {

double Milliseconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double, std::milli>(d).count();
}

}  // namespace

// What a kernel's own calls take belongs to the kernel.
class KernelTimes::Slots : public SlotObserver {
 public:
  virtual void Begin() {}
  void OnEnter(const char* name) override {
    if (depth_++ == 0) Enter(name);
  }
  void OnLeave() noexcept override {
    if (--depth_ == 0) Leave();
  }
  // Milliseconds by name since the last call.
  virtual std::map<std::string, double> Take() = 0;

 protected:
  virtual void Enter(const char* name) = 0;
  virtual void Leave() noexcept = 0;

 private:
  int depth_ = 0;
};

namespace {

class HostSlots : public KernelTimes::Slots {
 public:
  std::map<std::string, double> Take() override {
    std::map<std::string, double> by_name;
    for (const auto& [name, time] : std::exchange(kernels_, {})) {
      by_name[name] += Milliseconds(time);
    }
    return by_name;
  }

 private:
  void Enter(const char* name) override {
    running_ = &kernels_[name];
    since_ = Clock::now();
  }
  void Leave() noexcept override { *running_ += Clock::now() - since_; }

  using Clock = std::chrono::steady_clock;
  std::map<const char*, Clock::duration> kernels_;
  Clock::duration* running_ = nullptr;
  Clock::time_point since_;
};

class DeviceSlots : public KernelTimes::Slots {
 public:
  explicit DeviceSlots(Device device) : device_(device) {}

  void Begin() override { stream_ = CurrentStream(device_); }
  std::map<std::string, double> Take() override {
    std::map<std::string, double> by_name;
    for (const Call& call : std::exchange(calls_, {})) {
      if (call.end) by_name[call.name] += call.end->Since(*call.begin).value_or(0);
    }
    return by_name;
  }

 private:
  using Moment = std::unique_ptr<dist::TimedEvent>;
  struct Call {
    const char* name;
    Moment begin, end;
  };

  void Enter(const char* name) override {
    watches_ = CurrentStream(device_) == stream_;
    if (watches_) calls_.push_back({name, Mark(), nullptr});
  }
  void Leave() noexcept override {
    if (!watches_) return;
    try {
      calls_.back().end = Mark();
    } catch (...) {  // the kernel has failed: what waits for it says so
    }
  }
  Moment Mark() const { return std::make_unique<dist::TimedEvent>(stream_); }

  const Device device_;
  Stream stream_;
  std::vector<Call> calls_;
  bool watches_ = false;
};

}  // namespace

KernelTimes::KernelTimes(Device device)
    : on_device_(device.is_cuda()),
      slots_(on_device_ ? std::unique_ptr<Slots>(std::make_unique<DeviceSlots>(device))
                        : std::make_unique<HostSlots>()) {}

KernelTimes::~KernelTimes() = default;

KernelTimes::Watch::Watch(KernelTimes* times)
    : times_(times), observed_(times != nullptr ? times->slots_.get() : nullptr) {
  if (times_ == nullptr) return;
  times_->slots_->Begin();
  waited_ = dist::Blocked::TimesByGroup();
}

KernelTimes::Watch::~Watch() {
  if (times_ == nullptr) return;
  for (const auto& [group, time] : dist::Blocked::TimesByGroup()) {
    times_->waits_[group] += time - waited_[group];
  }
}

void KernelTimes::Add(const StepTimes& step) {
  const double with_kernels = step.forward_ms + step.backward_ms + step.update_ms;
  // A GPU computes on while its host waits for the sums.
  steps_ms_ += with_kernels + (on_device_ ? step.exposed_ms : 0);
  exposed_ms_ += step.exposed_ms;
}

std::vector<std::pair<std::string, double>> KernelTimes::Take() {
  std::map<std::string, double> by_name = slots_->Take();
  const bool any = !by_name.empty();
  double between = std::exchange(steps_ms_, 0), exposed = std::exchange(exposed_ms_, 0);
  dist::Blocked::Times waits = std::exchange(waits_, {});
  // A GPU's host waits for more than messages.
  if (on_device_) waits.clear();
  // The wait for the last sums of gradients is no part of forward, backward and update.
  const auto add = [&](const std::string& group, double ms) {
    const double known = std::min(exposed, ms);
    exposed -= known;
    if (ms > known) by_name[WaitFor(group)] += ms - known;
  };
  if (const auto lanes = waits.extract(std::string(dist::Blocked::kGradientLanes))) {
    add(lanes.key(), Milliseconds(lanes.mapped()));
  }
  for (const auto& [group, time] : waits) add(group, Milliseconds(time));
  for (const auto& [name, ms] : by_name) between -= ms;
  std::vector<std::pair<std::string, double>> all(by_name.begin(), by_name.end());
  std::ranges::sort(all, std::ranges::greater(), &std::pair<std::string, double>::second);
  if (any) all.emplace_back(kBetweenKernels, std::max(between, 0.0));
  return any ? all : std::vector<std::pair<std::string, double>>();
}

// "activations.tp[dp=1]", "activations.pp.0_to_1", "gradients.shard[...]", "gradients.weights".
std::string WaitFor(std::string_view group) {
  if (group.starts_with("activations.pp")) return "idle in the pipeline";
  for (const char* axis : {"tp", "cp", "ep"}) {
    if (group.starts_with(StrCat("activations.", axis))) return StrCat("messages of ", axis);
  }
  return group.starts_with("gradients") ? "messages of dp" : "messages of control";
}

}  // namespace lockstep::models
