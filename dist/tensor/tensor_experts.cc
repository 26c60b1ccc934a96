#include "dist/tensor/tensor_experts.h"

#include "core/autograd/node.h"
#include "nn/dropout.h"
#include "nn/lora/lora.h"
#include "nn/mixture/expert_counts.h"

namespace lockstep::dist {
namespace {

using Map = std::function<Tensor(const Tensor&)>;

// What every rank has whole becomes this rank's part of it, or the other way round; each is the
// other's gradient.
Tensor Apply(const char* name, const Tensor& x, const Map& map, const Map& of_gradient) {
  Tensor out = map(x.Detach().Contiguous());
  RecordOp(name, {&x}, {&out}, {}, [of_gradient](const SavedTensors&, Gradients& grads) {
    grads.Put(0, of_gradient(grads[0].Contiguous()));
  });
  return out;
}

// Rows of every rank, in rank order; at[r] is where those of rank r begin.
Tensor AllRows(const TensorRanks& ranks, const std::vector<int64_t>& at, const Tensor& own) {
  const Tensor all = Tensor::Empty({at.back(), own.dim(1)}, own.dtype(), own.device());
  std::vector<WorkPtr> sent;
  for (int r = 0; r < static_cast<int>(ranks.size()); ++r) {
    const auto i = static_cast<size_t>(r);
    const Tensor rows = all.Slice(0, at[i], at[i + 1]);
    if (r == ranks.rank()) rows.CopyFrom(own);
    sent.push_back(ranks.group()->Broadcast(rows, r, "rows of experts"));
  }
  for (const WorkPtr& work : sent) work->Wait();
  return all;
}

}  // namespace

TensorExperts::TensorExperts(std::shared_ptr<nn::Experts> experts, TensorRanksPtr ranks)
    : ranks_(std::move(ranks)), own_(this, "", std::move(experts)) {}

void TensorExperts::Begin(const Tensor& rows, const Tensor& offsets) {
  if (ranks_->size() == 1) own_->Begin(rows, offsets);
}

Tensor TensorExperts::Forward(const Tensor& rows, const Tensor& offsets) {
  if (ranks_->size() == 1) return own_(rows, offsets);
  const std::vector<int64_t> counts = nn::ExpertCounts(offsets, rows.dim(0));
  const int64_t own = std::ssize(counts) / ranks_->size(), rank = ranks_->rank();
  std::vector<int64_t> at = {0};       // where the rows of each rank begin
  std::vector<int32_t> of_experts{0};  // and of this rank's experts, among its own
  for (int64_t e = 0; e < std::ssize(counts); ++e) {
    if (e % own == 0) at.push_back(at.back());
    at.back() += counts[static_cast<size_t>(e)];
    if (e / own != rank) continue;
    of_experts.push_back(of_experts.back() + static_cast<int32_t>(counts[static_cast<size_t>(e)]));
  }
  const auto take = [begin = at[static_cast<size_t>(rank)],
                     end = at[static_cast<size_t>(rank) + 1]](const Tensor& all) {
    return all.Slice(0, begin, end);
  };
  const auto gather = [ranks = ranks_, at](const Tensor& part) {
    return AllRows(*ranks, at, part);
  };
  const Tensor mine = Apply("take_rows", rows, take, gather);
  const Tensor y = own_(mine, Tensor::FromVector<int32_t>(of_experts, {own + 1}, offsets.device()));
  return Apply("gather_rows", y, gather, take);
}

void RefuseDropoutOfExperts(Module& module) {
  for (nn::LoraAdapter* adapter : nn::LoraAdapters(module)) {
    auto* const adapted = dynamic_cast<nn::LoraGroupedLinear*>(adapter);
    if (adapted == nullptr) continue;
    const auto* dropout = dynamic_cast<nn::Dropout*>(adapted->lora_dropout().module().get());
    LS_CHECK(dropout != nullptr && dropout->p() == 0, "the adapters of '", adapter->adapter_path(),
             "' have dropout, whose mask counts all rows of a micro-batch: leave out lora.dropout, "
             "or experts in lora.targets, or use parallel.tp = 1 and parallel.ep = 1, without "
             "parallel.cp, virtual.tp and virtual.cp");
  }
}

void TakeParts(nn::MixtureOfExperts& mixture, const TensorRanksPtr& ranks) {
  if (ranks->size() == 1) return;
  const auto gather = [ranks](const Tensor& part) { return ranks->GatherSequence(part); };
  const auto take = [ranks](const Tensor& whole) {
    const int64_t n = whole.dim(1) / ranks->size();
    return whole.Slice(1, ranks->rank() * n, (ranks->rank() + 1) * n).Contiguous();
  };
  mixture.SetSequence(
      [=](const Tensor& x) {
        return GradEnabled() ? Apply("gather_sequence", x, gather, take) : x;
      },
      [=](const Tensor& y) { return GradEnabled() ? Apply("take_sequence", y, take, gather) : y; });
}

}  // namespace lockstep::dist
