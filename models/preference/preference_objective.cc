#include "models/preference/preference_objective.h"

#include <algorithm>
#include <set>

#include "kernels/binary/binary.h"
#include "kernels/compare/compare.h"
#include "kernels/concat/concat.h"
#include "kernels/reduce/reduce.h"
#include "kernels/scale/scale.h"
#include "models/train/step/batch_tensor.h"
#include "nn/lm_head.h"
#include "nn/lora/lora.h"

namespace lockstep::models {
namespace {

constexpr int64_t kColumns = 8;

// The log-probabilities of the rows' targets, [2 P].
Tensor LogProbabilities(LanguageModel& model, const Tensor& ids, const Tensor& targets) {
  const nn::RowLossScope scope;
  const Tensor losses = model.Loss(ids, targets);
  LS_CHECK(losses.ndim() == 1,
           "preferences need the losses of whole rows, and the head of this "
           "model returns only their sum: its vocabulary is split across ranks");
  return -losses;
}

// The number of targets of each row.
std::vector<double> LengthsOf(const data::Batch& rows, Device device) {
  std::vector<double> lengths;
  if (device.is_meta()) lengths.resize(static_cast<size_t>(rows.rows));
  for (int64_t row = std::ssize(lengths); row < rows.rows; ++row) {
    const auto begin = rows.targets.begin() + row * rows.cols;
    lengths.push_back(
        static_cast<double>(rows.cols - std::count(begin, begin + rows.cols, data::kIgnoreIndex)));
  }
  return lengths;
}

}  // namespace

data::Batch SplitPairs(const data::Batch& windows) {
  LS_CHECK(windows.cols % 2 == 0, "windows of pairs have two rows of equal length, got ",
           windows.cols, " columns");
  const int64_t half = windows.cols / 2;
  int64_t cols = windows.targets.empty() ? half : 1;
  for (int64_t i = 0; i < std::ssize(windows.targets); ++i) {
    if (windows.targets[i] != data::kIgnoreIndex) cols = std::max(cols, i % half + 1);
  }
  cols = std::min(half, (cols + kColumns - 1) / kColumns * kColumns);
  data::Batch rows = {.step = windows.step,
                      .micro_batch = windows.micro_batch,
                      .rows = 2 * windows.rows,
                      .cols = cols,
                      .num_targets = windows.num_targets};
  if (windows.targets.empty()) return rows;
  for (int64_t row = 0; row < rows.rows; ++row) {
    const auto copy = [&](const std::vector<int32_t>& from, std::vector<int32_t>* to) {
      to->insert(to->end(), from.begin() + row * half, from.begin() + row * half + cols);
    };
    copy(windows.inputs, &rows.inputs);
    copy(windows.targets, &rows.targets);
  }
  return rows;
}

PreferenceObjective::PreferenceObjective(LanguageModel& model, const DpoOptions& options)
    : options_(options) {
  std::set<const Parameter*> adapters;
  for (const auto& [name, p] : nn::LoraParameters(model)) adapters.insert(p.get());
  LS_CHECK(!adapters.empty(),
           "the reference of dpo is the model without its adapters, and this model has none: add "
           "them with nn::AddLora (lora.rank)");
  for (const auto& p : model.Parameters()) {
    LS_CHECK(!p->trainable() || adapters.contains(p.get()),
             "the reference of dpo is the model without its adapters, so only these can be ",
             "trained, but '", p->name(),
             "' is trained too: merge the adapters and start from the ",
             "result, or Parameter::SetTrainable(false)");
  }
  const Tensor none = Tensor::Zeros({0}, DType::kF32);
  DpoLoss(none, none, options, none);  // checks them
}

LossSums PreferenceObjective::operator()(LanguageModel& model, const data::Batch& rows,
                                         Device device) const {
  const Tensor ids = ToTensor(rows.inputs, rows, device);
  const Tensor targets = ToTensor(rows.targets, rows, device);
  Tensor reference;
  {
    const nn::LoraDisabled disabled;
    reference = LogProbabilities(model, ids, targets);
  }
  const Tensor policy = LogProbabilities(model, ids, targets);
  std::vector<double> lengths = LengthsOf(rows, device), counts;
  for (int64_t row = 0; row < rows.rows; row += 2) {
    counts.push_back(lengths[row] > 0 && lengths[row + 1] > 0 ? 1 : 0);
  }
  for (double& length : lengths) length = std::max(length, 1.0);
  const auto to_device = [&](const std::vector<double>& values) {
    const Shape shape{std::ssize(values)};
    return device.is_meta() ? Tensor::Empty(shape, policy.dtype(), device)
                            : Tensor::FromVector(values, shape).To(policy.dtype()).To(device);
  };
  const Tensor count = to_device(counts);
  const PreferenceLoss loss = DpoLoss(policy, reference, options_, to_device(lengths));
  const auto sum = [&](const Tensor& of_pairs) { return ops::Sum(of_pairs * count); };
  LossSums sums{.loss = sum(loss.losses)};
  const Tensor correct = (loss.chosen > loss.rejected).To(policy.dtype());
  sums.measures = ops::Stack(
      {sums.loss.Detach(), sum(loss.chosen), sum(loss.rejected), sum(correct), ops::Sum(count)});
  return sums;
}

PreferenceMetrics PreferenceObjective::ToMetrics(const std::vector<double>& measures) {
  const double pairs = std::max(measures.at(4), 1.0);
  return {.loss = measures.at(0) / pairs,
          .chosen = measures.at(1) / pairs,
          .rejected = measures.at(2) / pairs,
          .accuracy = measures.at(3) / pairs};
}

}  // namespace lockstep::models
