#include "data/evaluation.h"

#include <algorithm>
#include <vector>

#include "core/error.h"

namespace lockstep::data {

EvalBatches::EvalBatches(std::shared_ptr<const TokenSource> source, int64_t block_size,
                         int64_t batch_size, int64_t max_batches, bool document_mask)
    : source_(std::move(source)),
      block_size_(block_size),
      batch_size_(batch_size),
      document_mask_(document_mask) {
  LS_CHECK(block_size >= 1 && batch_size >= 1 && max_batches >= 0, "evaluation with block_size ",
           block_size, ", batch_size ", batch_size, ", at most ", max_batches, " batches");
  LS_CHECK(source_->size() >= 2, "evaluation needs at least 2 tokens, got ", source_->size());
  LS_CHECK(!document_mask || source_->has_documents(),
           "evaluation with document_mask needs a source that knows where documents begin");
  const int64_t per_batch = block_size * batch_size;
  all_batches_ = (source_->size() - 1 + per_batch - 1) / per_batch;
  size_ = max_batches == 0 ? all_batches_ : std::min(all_batches_, max_batches);
  for (int64_t i = 0; i < size_; ++i) {
    const int64_t first = Position(i) * per_batch + 1;
    num_targets_ += source_->CountLearnt(first, std::min(per_batch, source_->size() - first));
  }
}

int64_t EvalBatches::Position(int64_t index) const { return index * all_batches_ / size_; }

void EvalBatches::Read(int64_t index, Batch* batch) const {
  LS_CHECK(index >= 0 && index < size_, "there is no evaluation batch ", index, " among ", size_);
  std::vector<int64_t> starts(batch_size_);
  for (int64_t row = 0; row < batch_size_; ++row) {
    starts[row] = (Position(index) * batch_size_ + row) * block_size_;
  }
  ReadBatch(*source_, starts, block_size_, batch, document_mask_);
  batch->step = index;
  batch->micro_batch = 0;
}

}  // namespace lockstep::data
