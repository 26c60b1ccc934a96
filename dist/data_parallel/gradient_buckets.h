// The memory of gradients, and which of them are still missing.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/parameter.h"
#include "dist/data_parallel/bucket_plan.h"

namespace lockstep::dist {

using Parameters = std::vector<std::shared_ptr<Parameter>>;

// Of the sums of its gradients: these lose nothing to 16 bits.
DType SumDType(const Parameter& parameter);

// Buckets, each in several buffers, of which leaves write to one at a time. Indices p are those of
// the parameters.
class GradientBuckets {
 public:
  // `order`: the parameters in the order in which they become ready.
  GradientBuckets(Parameters parameters, std::span<const int64_t> order, const BucketLimits& limits,
                  int64_t buffers);

  int64_t size() const { return std::ssize(plans_); }
  // Their items are parameters.
  std::span<const Bucket> plans() const { return plans_; }
  std::vector<std::string> NamesIn(int64_t bucket) const;
  // Its number and parameters, for errors.
  const std::shared_ptr<const std::string>& purpose(int64_t bucket) const {
    return purposes_[bucket];
  }
  const Tensor& whole(int64_t bucket, int64_t buffer) const { return whole_[buffer][bucket]; }
  // A gradient within it.
  const Tensor& slice(size_t p, int64_t buffer) const { return slices_[buffer][p]; }
  // Gradients are written to this buffer from now on, and begin anew; at first to buffer 0.
  void WriteTo(int64_t buffer);
  const Tensor& slice(size_t p) const { return slices_[buffer_][p]; }
  // A backward begins: no gradient is ready.
  void Begin();
  // Returns how many buckets may go out: they, and all before them, have all their gradients.
  int64_t MarkReady(size_t p);

 private:
  std::string PurposeOf(int64_t bucket) const;

  const Parameters parameters_;
  std::vector<Bucket> plans_;
  std::vector<std::shared_ptr<const std::string>> purposes_;
  std::vector<std::vector<Tensor>> whole_, slices_;  // per buffer: buckets, parameters
  std::vector<int64_t> bucket_of_;                   // per parameter
  // Of the backward under way.
  int64_t buffer_ = 0, complete_ = 0;
  std::vector<int64_t> pending_;  // gradients of each bucket that are not ready
  std::vector<bool> ready_;       // per parameter
};

}  // namespace lockstep::dist
