#include "dist/groups/nccl_work.h"

#include <chrono>
#include <thread>

#include "core/cuda/device.h"
#include "core/cuda/error.h"

namespace lockstep::dist {
namespace {

cudaEvent_t HandleOf(void* event) { return static_cast<cudaEvent_t>(event); }
cudaStream_t HandleOf(Stream stream) { return static_cast<cudaStream_t>(stream.handle.get()); }

}  // namespace

TimedEvent::TimedEvent(Stream stream) : device_(stream.device) {
  cuda::SetDevice(device_);
  cudaEvent_t event = nullptr;
  LS_CUDA(cudaEventCreate(&event));
  event_ = event;
  LS_CUDA(cudaEventRecord(event, HandleOf(stream)));
}

TimedEvent::~TimedEvent() {
  LS_CUDA_WARN(cudaSetDevice(device_.index));
  LS_CUDA_WARN(cudaEventDestroy(HandleOf(event_)));
}

bool TimedEvent::Query() const {
  cuda::SetDevice(device_);
  const cudaError_t code = cudaEventQuery(HandleOf(event_));
  if (code == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  LS_CUDA(code);
  return true;
}

void TimedEvent::MakeWait(Stream stream) const {
  cuda::SetDevice(stream.device);
  LS_CUDA(cudaStreamWaitEvent(HandleOf(stream), HandleOf(event_), 0));
}

std::optional<double> TimedEvent::Since(const Moment& other) const {
  const auto& begin = dynamic_cast<const TimedEvent&>(other);
  if (!begin.Query() || !Query()) return std::nullopt;
  float milliseconds = 0;
  LS_CUDA(cudaEventElapsedTime(&milliseconds, HandleOf(begin.event_), HandleOf(event_)));
  return milliseconds;
}

NcclWork::NcclWork(const Collective& operation, std::string purpose, TransferCounts needs,
                   Stream stream, const Anchor& anchor, bool captured,
                   std::shared_ptr<FailureState> state)
    : Work(operation),
      purpose_(std::move(purpose)),
      needs_(std::move(needs)),
      stream_(stream),
      anchor_(anchor),
      state_(std::move(state)),
      captured_(captured),
      begin_(captured ? nullptr : std::make_unique<TimedEvent>(stream)) {}

void NcclWork::Submitted() { end_ = std::make_unique<TimedEvent>(stream_); }

void NcclWork::Wait() {
  state_->ThrowIfFailed(operation(), purpose_);
  end_->MakeWait(CurrentStream(stream_.device));
}

void NcclWork::Synchronize() {
  LS_CHECK(!captured_, Describe(operation()),
           " was captured into a graph and has no result of its own; wait for the graph's stream");
  // A training step ends here, and the GPU is idle until this returns.
  constexpr auto kPause = std::chrono::microseconds(20);
  while (!HasFinished()) {
    state_->ThrowIfFailed(operation(), purpose_);
    std::this_thread::sleep_for(kPause);
  }
  // An abort also completes the event.
  state_->ThrowIfFailed(operation(), purpose_);
}

bool NcclWork::Done() const { return !captured_ && (HasFinished() || state_->Get().has_value()); }

std::optional<Work::Span> NcclWork::span() const {
  if (captured_ || !HasFinished() || state_->Get()) return std::nullopt;
  const auto at = [&](const TimedEvent& event) {
    return anchor_.time +
           std::chrono::duration_cast<Clock::duration>(
               std::chrono::duration<double, std::milli>(event.Since(*anchor_.event).value()));
  };
  return Span{at(*begin_), at(*end_)};
}

}  // namespace lockstep::dist
