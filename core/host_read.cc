#include "core/host_read.h"

namespace lockstep {

HostRead::HostRead(const Tensor& x) {
  LS_CHECK(x.defined() && x.is_contiguous() && !x.device().is_meta(),
           "HostRead needs a contiguous tensor that is not on the meta device, got ", x.Describe());
  StreamBackend& backend = GetStreamBackend(x.device().type);
  const Stream stream = CurrentStream(x.device());
  const std::shared_ptr<void> memory = backend.AllocateHost(x.bytes(), x.device());
  host_ = Tensor::FromStorage(Storage::Wrap(memory.get(), x.bytes(), kCpu, memory), x.dtype(),
                              x.shape());
  if (x.numel() == 0) return;
  backend.CopyToHost(memory.get(), x.raw_data(), x.bytes(), stream);
  if (x.device().is_cpu()) return;
  x.storage().RecordUse(stream);
  event_ = std::make_unique<Event>(x.device());
  event_->Record(stream);
}

HostRead::~HostRead() { Finish(); }

HostRead& HostRead::operator=(HostRead&& other) noexcept {
  if (this == &other) return *this;
  Finish();
  host_ = std::move(other.host_);
  event_ = std::move(other.event_);
  return *this;
}

bool HostRead::Ready() {
  if (event_ && event_->Query()) event_ = nullptr;
  return event_ == nullptr;
}

const Tensor& HostRead::Get() {
  LS_CHECK(defined(), "nothing was read");
  if (event_) event_->Synchronize();
  event_ = nullptr;
  return host_;
}

// The memory must not be reused while the device still writes to it.
void HostRead::Finish() noexcept {
  if (!event_) return;
  try {
    event_->Synchronize();
  } catch (const Error&) {
    // The device has failed and no longer writes.
  }
  event_ = nullptr;
}

}  // namespace lockstep
