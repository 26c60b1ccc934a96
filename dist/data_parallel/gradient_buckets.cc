#include "dist/data_parallel/gradient_buckets.h"

#include <algorithm>

#include "core/meta_memory.h"

namespace lockstep::dist {

DType SumDType(const Parameter& parameter) {
  const DType dtype = parameter.part().dtype();
  const DType sum = SizeOf(dtype) == 2 ? DType::kF32 : dtype;
  const DType asked = parameter.leaf().asked_dtype().value_or(sum);
  LS_CHECK(
      asked == sum, "the gradients of '", parameter.name(), "' are to be in ", asked,
      ", but over ranks and micro-batches gradients of ", dtype, " are summed in ", sum,
      ": write nn::Materialize(model, device, seed, {.compute = ..., .reduction = DType::kF32})");
  return sum;
}

Tensor SliceOf(const Tensor& flat, int64_t offset, const Shape& shape) {
  const int64_t size = SizeOf(flat.dtype());
  return Tensor::FromStorage(flat.storage().Slice(offset * size, shape.numel() * size),
                             flat.dtype(), shape);
}

GradientBuckets::GradientBuckets(Parameters parameters, std::span<const int64_t> order,
                                 const BucketLimits& limits, int64_t buffers)
    : parameters_(std::move(parameters)),
      whole_(buffers),
      slices_(buffers, std::vector<Tensor>(parameters_.size())),
      bucket_of_(parameters_.size()) {
  std::vector<BucketItem> items;
  for (const int64_t p : order) {
    const Parameter& parameter = *parameters_[p];
    items.push_back({.numel = parameter.part().numel(),
                     .dtype = SumDType(parameter),
                     .device = parameter.device()});
  }
  plans_ = PlanBuckets(items, limits);
  for (int64_t b = 0; b < size(); ++b) {
    Bucket& plan = plans_[b];
    for (int64_t& item : plan.items) {
      item = order[item];
      bucket_of_[item] = b;
    }
    purposes_.push_back(PurposeOf(b));
    for (int64_t buffer = 0; buffer < buffers; ++buffer) {
      const MetaMemoryLabel label(buffer == 0 ? "gradients" : "buckets");
      // Zeros, so that padding stays finite.
      const Tensor whole = Tensor::Zeros({plan.numel}, plan.dtype, plan.device);
      for (size_t i = 0; i < plan.items.size(); ++i) {
        const Shape& shape = parameters_[plan.items[i]]->value().shape();
        slices_[buffer][plan.items[i]] = SliceOf(whole, plan.offsets[i], shape);
      }
      whole_[buffer].push_back(whole);
    }
  }
  WriteTo(0);
}

std::vector<std::string> GradientBuckets::NamesIn(int64_t bucket) const {
  std::vector<std::string> names;
  for (const int64_t p : plans_.at(bucket).items) names.push_back(parameters_[p]->name());
  return names;
}

std::string GradientBuckets::PurposeOf(int64_t bucket) const {
  constexpr size_t kShown = 8;
  const std::vector<std::string> names = NamesIn(bucket);
  std::string text = StrCat("bucket ", bucket, " (");
  for (size_t i = 0; i < std::min(kShown, names.size()); ++i) {
    text += StrCat(i == 0 ? "'" : ", '", names[i], "'");
  }
  if (names.size() > kShown) text += StrCat(" and ", names.size() - kShown, " more");
  return text + ")";
}

void GradientBuckets::WriteTo(int64_t buffer) {
  buffer_ = buffer;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    parameters_[p]->leaf().SetDestination(slices_[buffer][p]);
  }
}

void GradientBuckets::Begin() {
  complete_ = 0;
  ready_.assign(parameters_.size(), false);
  pending_.clear();
  for (const Bucket& plan : plans_) pending_.push_back(std::ssize(plan.items));
}

int64_t GradientBuckets::MarkReady(size_t p) {
  LS_CHECK(!ready_[p], "the gradient of '", parameters_[p]->name(),
           "' became ready twice in one backward: are two threads running backward through it?");
  ready_[p] = true;
  --pending_[bucket_of_[p]];
  while (complete_ < size() && pending_[complete_] == 0) ++complete_;
  return complete_;
}

}  // namespace lockstep::dist
