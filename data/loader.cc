#include "data/loader.h"

#include <numeric>

#include "core/error.h"

namespace lockstep::data {

Loader::Loader(std::shared_ptr<const TokenSource> source, const Sampler& sampler,
               const BatchLayout& layout, int64_t start_step, int prefetch)
    : source_(std::move(source)), sampler_(sampler), start_step_(start_step), layout_(layout) {
  layout_.Check();
  if (layout_.micro_order.empty()) {
    layout_.micro_order.resize(layout_.micro_batches);
    std::iota(layout_.micro_order.begin(), layout_.micro_order.end(), 0);
  }
  LS_CHECK(start_step >= 0 && prefetch >= 1,
           "a loader needs start_step >= 0 and prefetch >= 1, got ", start_step, " and ", prefetch);
  LS_CHECK(sampler_.num_tokens() == source_->size(), "the sampler is for ", sampler_.num_tokens(),
           " tokens, but the source has ", source_->size());
  LS_CHECK(!layout_.document_mask || source_->has_documents(),
           "a loader with document_mask needs a source that knows where documents begin");
  // The prefetched batches, and the one that the consumer holds.
  slots_.resize(prefetch + 1);
  for (Batch& batch : slots_) {
    batch.inputs.resize(layout_.batch_size * sampler_.block_size());
    batch.targets.resize(layout_.batch_size * sampler_.block_size());
    if (layout_.document_mask) {
      batch.first_key.resize(layout_.batch_size * sampler_.block_size());
    }
  }
  thread_ = std::thread([this] { Run(); });
}

Loader::~Loader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

const Batch& Loader::Next() {
  std::unique_lock lock(mutex_);
  if (released_ < taken_) {
    released_ = taken_;
    changed_.notify_all();
  }
  changed_.wait(lock, [this] { return filled_ > taken_ || error_ != nullptr; });
  if (filled_ == taken_) std::rethrow_exception(error_);
  return slots_[taken_++ % slots_.size()];
}

// The targets of all micro-batches, also those of other ranks, from their masks, without their
// tokens.
int64_t Loader::TargetsOf(int64_t step, std::vector<int64_t>* starts) const {
  const int64_t window = sampler_.block_size();
  if (!source_->has_loss_mask()) return layout_.SamplesPerStep() * window;
  int64_t targets = 0;
  for (int64_t m = 0; m < layout_.micro_batches; ++m) {
    sampler_.WindowStarts(layout_.FirstSample(step, m), *starts);
    for (const int64_t start : *starts) targets += source_->CountLearnt(start + 1, window);
  }
  return targets;
}

void Loader::Run() try {
  const auto capacity = static_cast<int64_t>(slots_.size());
  std::vector<int64_t> starts(layout_.batch_size);
  int64_t step_targets = 0;
  for (int64_t i = 0;; ++i) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || i - released_ < capacity; });
      if (stop_) return;
    }
    Batch& batch = slots_[i % capacity];
    const auto in_step = static_cast<int64_t>(layout_.micro_order.size());
    batch.step = start_step_ + i / in_step;
    batch.micro_batch = layout_.micro_order[i % in_step];
    if (i % in_step == 0) step_targets = TargetsOf(batch.step, &starts);
    batch.step_targets = step_targets;
    sampler_.WindowStarts(layout_.FirstSample(batch.step, batch.micro_batch), starts);
    ReadBatch(*source_, starts, sampler_.block_size(), &batch, layout_.document_mask);
    {
      const std::lock_guard lock(mutex_);
      filled_ = i + 1;
    }
    changed_.notify_all();
  }
} catch (...) {
  {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
  }
  changed_.notify_all();
}

}  // namespace lockstep::data
