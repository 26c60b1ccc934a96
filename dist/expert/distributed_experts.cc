#include "dist/expert/distributed_experts.h"

#include <utility>

#include "nn/lora/lora.h"
#include "nn/mixture/expert_counts.h"

namespace lockstep::dist {
namespace {

void CheckKind(const Child<nn::ExpertsLayer>& child, const std::string& path) {
  const Module* const linear = child.module().get();
  LS_CHECK(dynamic_cast<const nn::GroupedLinear*>(linear) != nullptr ||
               dynamic_cast<const nn::LoraGroupedLinear*>(linear) != nullptr,
           "expert parallelism: '", path, ".", child.name(),
           "' is not an nn::GroupedLinear, and only these can be split across ranks");
}

}  // namespace

DistributedExperts::DistributedExperts(const std::shared_ptr<nn::Experts>& experts,
                                       std::shared_ptr<ProcessGroup> group, int64_t of_sequence,
                                       const std::string& path)
    : group_(std::move(group)),
      of_sequence_(of_sequence),
      experts_(experts),
      place_(this, "", experts) {
  CheckKind(experts->c_fc(), path);
  CheckKind(experts->c_proj(), path);
}

void DistributedExperts::Begin(const Tensor& rows, const Tensor& offsets) {
  auto [counts, segments] = Meet(rows, offsets);
  begun_.emplace(Begun{counts, std::move(segments),
                       RowExchange(group_, rows, counts, "tokens to their experts")});
}

Tensor DistributedExperts::Forward(const Tensor& rows, const Tensor& offsets) {
  if (!begun_) Begin(rows, offsets);
  Begun begun = *std::exchange(begun_, std::nullopt);
  const ExpertSegments& segments = begun.segments;
  const Tensor here = begun.rows.Wait();
  const Tensor out = experts_->WithHooks([&] {
    const Tensor inner = Multiply(experts_->c_fc(), here, segments);
    return Multiply(experts_->c_proj(), experts_->Activate(inner), segments);
  });
  return ExchangeRows(group_, out, {begun.counts.receive, begun.counts.send}, "results of experts");
}

Tensor DistributedExperts::Multiply(Child<nn::ExpertsLayer>& child, const Tensor& rows,
                                    const ExpertSegments& segments) const {
  Module& module = *child.module();
  return module.WithHooks([&] {
    if (auto* adapted = dynamic_cast<nn::LoraGroupedLinear*>(&module)) {
      return adapted->Apply(rows, [&](Child<nn::ExpertsLayer>& linear, const Tensor& x) {
        return Multiply(linear, x, segments);
      });
    }
    const Parameter& weight = *dynamic_cast<nn::GroupedLinear&>(module).weight();
    const auto copies = copies_.find(&weight);
    return SegmentedLinear(
        rows, copies == copies_.end() ? std::vector{weight.value()} : copies->second, segments);
  });
}

std::pair<RowCounts, ExpertSegments> DistributedExperts::Meet(const Tensor& rows,
                                                              const Tensor& offsets) const {
  const int64_t size = group_->size(), experts = offsets.numel() - 1, own = experts / size;
  const std::vector<int64_t> mine = nn::ExpertCounts(offsets, rows.dim(0));
  const Tensor sent = Tensor::FromVector<int64_t>(mine, {experts}, group_->device());
  const Tensor received = Tensor::EmptyLike(sent);
  group_->AllToAll(sent, received, {}, {}, "loads of experts")->Wait();
  // On the meta device, all ranks are alike.
  const std::vector<int64_t> theirs =
      received.device().is_meta() ? mine : received.ToVector<int64_t>();
  RowCounts counts;
  ExpertSegments segments{.begin = {0}, .offsets = {}};
  for (int64_t r = 0; r < size; ++r) {
    counts.send.push_back(0);
    std::vector<int32_t> at = {0};
    for (int64_t e = r * own; e < (r + 1) * own; ++e) {
      counts.send.back() += mine[static_cast<size_t>(e)];
      at.push_back(at.back() + static_cast<int32_t>(theirs[static_cast<size_t>(e)]));
    }
    counts.receive.push_back(at.back());
    segments.begin.push_back(segments.begin.back() + at.back());
    segments.offsets.push_back(Tensor::FromVector<int32_t>(at, {own + 1}, rows.device()));
  }
  return {std::move(counts), std::move(segments)};
}

}  // namespace lockstep::dist
