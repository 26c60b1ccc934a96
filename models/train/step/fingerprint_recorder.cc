#include "models/train/step/fingerprint_recorder.h"

#include <algorithm>
#include <cstring>

#include "core/step_state.h"
#include "dist/context/context_ranks.h"
#include "dist/fingerprint.h"
#include "dist/groups/agreement.h"
#include "dist/mesh_parts.h"
#include "models/report/run_progress.h"
#include "models/train/parallel_plan.h"
#include "models/train/run_model.h"

namespace lockstep::models {
namespace {

// As a model is divided among them (Parallelize).
dist::TensorRanksPtr PartsOf(const RunSetup& setup, const MeshGroups& groups) {
  const ParallelPlan plan = PlanOf(setup);
  auto tensor = std::make_shared<dist::TensorRanks>(groups.tensor.get(), plan.tensor_parts);
  if (plan.context_pairs == 1) return tensor;
  if (tensor->parts() == 1) tensor = nullptr;
  return std::make_shared<dist::ContextRanks>(groups.context.get(), plan.context_pairs,
                                              plan.sums_context_with_data, std::move(tensor));
}

bool IsFirst(const std::shared_ptr<dist::ProcessGroup>& group) {
  return dist::RankIn(group.get()) == 0;
}

// The index within the step of the first sample of the micro-batch that runs now.
int64_t FirstSample() {
  const Tensor bytes = StepUnderWay()->tensor().To(kCpu);
  StepValues values;
  std::memcpy(&values, bytes.raw_data(), sizeof(values));
  return values.first_sample;
}

}  // namespace

FingerprintRecorder::FingerprintRecorder(const RunSetup& setup, const RunRanks& ranks,
                                         const Gpt& model, ForwardPlace& place, bool graphs)
    : setup_(setup),
      ranks_(ranks),
      parts_(PartsOf(setup, ranks.groups())),
      counts_data_(IsFirst(ranks.groups().tensor) && IsFirst(ranks.groups().context) &&
                   IsFirst(ranks.groups().pipeline)) {
  names_.ranks = ranks.size();
  names_.arithmetic = ArithmeticOf(setup);
  names_.data_fingerprint = setup.dataset.fingerprint;
  for (int64_t i = 0; i < setup.model.n_layer && !graphs; ++i) {
    for (const char* name : {".attn", ".mlp"}) names_.activations.push_back(StrCat("h.", i, name));
  }
  if (!graphs) names_.activations.push_back("ln_f");
  for (size_t i = 0; i < names_.activations.size(); ++i) activations_[names_.activations[i]] = i;
  const std::vector<int> same =
      RanksWithSamePart(setup, MeshOf(setup.config, ranks.rank(), ranks.size()));
  const auto mesh = dist::MeshParts::Of(model.Parameters());
  for (const auto& [name, p] : model.NamedParameters()) {
    names_.parameters.push_back(name);
    const auto [index, count] = mesh->CopyOf(*p);
    const int64_t copy = dist::IndexOf(same, ranks.rank()) * count + index;
    const int64_t copies = std::ssize(same) * count, numel = p->part().numel();
    shares_.push_back({p, numel * copy / copies, numel * (copy + 1) / copies});
  }
  place.AddOnEnd([this](const std::string& path) { OnModule(path); });
  StepFingerprints start{.step = setup.start.step};
  for (const Share& s : shares_) {
    start.weights().push_back(
        dist::Fingerprint(*s.parameter, s.parameter->value(), s.begin, s.end));
  }
  AddUp(&start);
  ranks.OnMain("opening its fingerprints", [&] {
    file_ = std::make_unique<JsonLinesWriter>(JoinPath(setup.config.out_dir, kFingerprintsFile),
                                              "fingerprints", start.step + 1, Warn);
    file_->Write(ToJson(names_, start));
  });
}

void FingerprintRecorder::BeginStep(int64_t step) {
  observe_.reset();
  if (step % setup_.config.log.fingerprints != 0) return;
  observe_.emplace(this);
  sums_ = {.step = step};
  sums_.of_kind[0].assign(1, 0);
  sums_.of_kind[1].assign(names_.activations.size(), 0);
}

void FingerprintRecorder::OnBatch(const data::Batch& batch) {
  constexpr int64_t kTargets = int64_t{1} << 40;  // so that they are not taken for inputs
  if (!chosen() || !counts_data_) return;
  const int64_t first = batch.micro_batch * batch.rows * batch.cols;
  const auto add = [&](const std::vector<int32_t>& tokens, int64_t at) {
    sums_.of_kind[0][0] +=
        dist::Fingerprint(Tensor::FromVector<int32_t>(tokens, {std::ssize(tokens)}), at);
  };
  add(batch.inputs, first);
  add(batch.targets, kTargets + first);
}

void FingerprintRecorder::OnForward(const Node*, std::span<const Tensor* const>,
                                    std::span<Tensor* const> outputs) {
  // Held until the next such operation, which so cannot write in its place; the bits are the same,
  // and only the last one of a module is read.
  for (const Tensor* const x : outputs) {
    if (x->defined() && x->ndim() == 3 && x->dim(2) == setup_.model.n_embd) last_ = x->Detach();
  }
}

void FingerprintRecorder::OnModule(const std::string& path) {
  if (!chosen()) return;
  const auto of = activations_.find(path);
  if (of != activations_.end() && last_.defined() && CurrentStepState() != nullptr) {
    sums_.of_kind[1][of->second] += OfActivation(last_);
  }
}

// x: what this rank has of [B, T, C] (dist::TensorRanks, dist::ContextRanks).
uint64_t FingerprintRecorder::OfActivation(const Tensor& x) const {
  const NoGrad no_grad;
  const Tensor flat = x.Contiguous().To(kCpu).View({x.numel()});
  const bool by_rows = parts_->part_dim() == 0;
  const auto within = parts_->within();
  const int64_t own = parts_->own(), all = parts_->sequence_parts();
  const int64_t rows = by_rows ? x.dim(0) / own : x.dim(0);
  const int64_t length = by_rows ? x.dim(1) : x.dim(1) / own;  // of a part's tokens that it has
  const int64_t part_length = length * (within ? within->size() : 1);
  const int64_t skipped = within ? within->rank() * length : 0;
  const int64_t first_sample = FirstSample(), channels = x.dim(2);
  uint64_t sum = 0;
  for (int64_t j = 0; j < own; ++j) {
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t token =
          (first_sample + row) * part_length * all + parts_->PartAt(j) * part_length + skipped;
      const int64_t at = by_rows ? (j * rows + row) * length : (row * own + j) * length;
      sum += dist::Fingerprint(flat.Slice(0, at * channels, (at + length) * channels),
                               token * channels);
    }
  }
  return sum;
}

void FingerprintRecorder::BeforeUpdate() {
  if (!chosen()) return;
  for (const Share& s : shares_) {
    const Tensor grad = s.parameter->grad();
    sums_.of_kind[2].push_back(
        grad.defined() ? dist::Fingerprint(*s.parameter, grad, s.begin, s.end) : 0);
  }
}

void FingerprintRecorder::EndStep() {
  if (!chosen()) return;
  observe_.reset();
  last_ = Tensor();
  for (const Share& s : shares_) {
    sums_.weights().push_back(
        dist::Fingerprint(*s.parameter, s.parameter->value(), s.begin, s.end));
  }
  AddUp(&sums_);
  if (file_) file_->Write(ToJson(sums_));
}

// Over the ranks.
void FingerprintRecorder::AddUp(StepFingerprints* of_step) const {
  if (!ranks_.control()) return;
  std::vector<int64_t> mine;
  for (const auto& kind : of_step->of_kind) mine.insert(mine.end(), kind.begin(), kind.end());
  std::vector<uint64_t> sums(mine.size());
  for (const auto& of_rank :
       dist::GatherValues(*ranks_.control(), std::span<const int64_t>(mine))) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += static_cast<uint64_t>(of_rank[i]);
  }
  auto next = sums.begin();
  for (auto& kind : of_step->of_kind) {
    std::copy_n(next, kind.size(), kind.begin());
    next += std::ssize(kind);
  }
}

}  // namespace lockstep::models
