// The memory of gradients, and which of them are still pending.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/parameter.h"
#include "dist/data_parallel/bucket_plan.h"

namespace lockstep::dist {

using Parameters = std::vector<std::shared_ptr<Parameter>>;

// The dtype of the sum of its gradients: f32 for 16-bit parameters, so that no precision is lost.
// Throws ArgumentError if the user asked for another (nn::Precision::reduction).
DType SumDType(const Parameter& parameter);

// Elements [offset, offset + shape.numel()) of a flat tensor, with a version counter of their own:
// a lane works on the whole at the same time.
Tensor SliceOf(const Tensor& flat, int64_t offset, const Shape& shape);

// Buckets, each with several buffers; leaves write to one of them at a time. p is an index of a
// parameter.
class GradientBuckets {
 public:
  // `order`: the parameters in the order in which they become ready.
  GradientBuckets(Parameters parameters, std::span<const int64_t> order, const BucketLimits& limits,
                  int64_t buffers);

  int64_t size() const { return std::ssize(plans_); }
  // The items of a plan are parameters.
  std::span<const Bucket> plans() const { return plans_; }
  std::vector<std::string> NamesIn(int64_t bucket) const;
  // The bucket's number and parameters, for errors.
  const std::string& purpose(int64_t bucket) const { return purposes_[bucket]; }
  const Tensor& whole(int64_t bucket, int64_t buffer) const { return whole_[buffer][bucket]; }
  // A gradient within its bucket.
  const Tensor& slice(size_t p, int64_t buffer) const { return slices_[buffer][p]; }
  // From now on gradients are written to this buffer, starting afresh. The default is buffer 0.
  void WriteTo(int64_t buffer);
  const Tensor& slice(size_t p) const { return slices_[buffer_][p]; }
  // A backward begins: no gradient is ready.
  void Begin();
  // Returns how many buckets may be sent: those complete whose predecessors are complete too.
  int64_t MarkReady(size_t p);

 private:
  std::string PurposeOf(int64_t bucket) const;

  const Parameters parameters_;
  std::vector<Bucket> plans_;
  std::vector<std::string> purposes_;
  std::vector<std::vector<Tensor>> whole_, slices_;  // per buffer: buckets, parameters
  std::vector<int64_t> bucket_of_;                   // per parameter
  // State of the current backward.
  int64_t buffer_ = 0, complete_ = 0;
  std::vector<int64_t> pending_;  // gradients of each bucket that are not ready
  std::vector<bool> ready_;       // per parameter
};

}  // namespace lockstep::dist
