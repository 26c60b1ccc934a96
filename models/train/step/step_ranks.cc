#include "models/train/step/step_ranks.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

namespace lockstep::models {
namespace {

// A single process, whose gradients are summed where they are.
class OneRank : public dist::DataRanks {
 public:
  explicit OneRank(int64_t micro_batches)
      : DataRanks(/*group=*/nullptr, /*control=*/nullptr), order_(Checked(micro_batches)) {
    std::iota(order_.begin(), order_.end(), 0);
  }

  const std::vector<int64_t>& micro_order() const override { return order_; }
  int64_t micro_batches() const override { return std::ssize(order_); }
  void BeginMicroBatch(bool) override {}
  BackwardObserver* ObserveOnlyGiven() override { return nullptr; }
  const dist::CommunicationTimes& times() const override { return times_; }
  void CheckWeights(const std::string&) override {}
  std::string LocateNonFinite(int64_t) override { return ""; }

 private:
  static size_t Checked(int64_t micro_batches) {
    LS_CHECK(micro_batches >= 1, "micro_batches must be at least 1, got ", micro_batches);
    return static_cast<size_t>(micro_batches);
  }

  std::vector<int64_t> order_;
  const dist::CommunicationTimes times_;
};

}  // namespace

StepRanks::StepRanks(std::shared_ptr<dist::ProcessGroup> context,
                     std::shared_ptr<dist::ProcessGroup> all)
    : context_(std::move(context)), all_(std::move(all)) {}

int64_t StepRanks::evaluators() { return data().size() * dist::SizeOf(context_.get()); }

int64_t StepRanks::evaluator() {
  return data().rank() * dist::SizeOf(context_.get()) + dist::RankIn(context_.get());
}

void StepRanks::SumOverEvaluators(std::vector<double>* values) {
  if (!has_losses()) std::ranges::fill(*values, 0.0);
  data().SumInPlace(values);
  if (!context_) return;
  const Tensor of_ranks =
      Tensor::FromVector<double>(*values, {std::ssize(*values)}, context_->device());
  context_->AllReduce(of_ranks, dist::ReduceOp::kSum, "losses of an evaluation")->Synchronize();
  *values = of_ranks.ToVector<double>();
}

SampleRanks::SampleRanks(int64_t micro_batches)
    : owned_(std::make_unique<OneRank>(micro_batches)), data_(owned_.get()), may_be_graphs_(true) {}

SampleRanks::SampleRanks(std::unique_ptr<dist::DataRanks> data,
                         std::shared_ptr<dist::ProcessGroup> context,
                         std::shared_ptr<dist::ProcessGroup> all)
    : StepRanks(std::move(context), std::move(all)), owned_(std::move(data)), data_(owned_.get()) {}

std::vector<HostRead> SampleRanks::Gradients(StepWork& work) {
  std::vector<HostRead> measures;
  for (const int64_t m : data_->micro_order()) {
    const data::Batch& rows = work.Next(m);
    work.state().SetFirstSample(m * rows.rows);
    // The gradients of this rank's last micro-batch come back summed over all ranks.
    data_->BeginMicroBatch(m == data_->micro_order().back());
    // The mean over this rank's micro-batches, where it updates by these alone.
    const Tensor of_rows = work.Compute(rows, work.root() / data_->share());
    if (!of_rows.device().is_meta()) measures.emplace_back(of_rows);
  }
  return measures;
}

}  // namespace lockstep::models
