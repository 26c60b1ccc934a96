#include "dist/expert/share_experts.h"

#include <bit>
#include <optional>
#include <utility>

#include "dist/expert/exchange_rows.h"
#include "dist/expert/expert_exchange.h"
#include "dist/expert/segmented_linear.h"
#include "dist/tensor/tensor_experts.h"
#include "nn/mixture/expert_counts.h"
#include "nn/mixture/mixture_of_experts.h"

namespace lockstep::dist {
namespace {

// In the place of an nn::Experts, whose parameters are this rank's experts'.
class LocalExperts : public nn::ExpertsLayer {
 public:
  LocalExperts(const std::shared_ptr<nn::Experts>& experts, std::shared_ptr<ProcessGroup> group,
               const std::string& path)
      : group_(std::move(group)),
        experts_(experts),
        c_fc_(LinearOf(experts->c_fc(), path)),
        c_proj_(LinearOf(experts->c_proj(), path)),
        place_(this, "", experts) {}

  const std::shared_ptr<Parameter>& c_fc() const { return c_fc_->weight(); }
  const std::shared_ptr<Parameter>& c_proj() const { return c_proj_->weight(); }

  void Begin(const Tensor& rows, const Tensor& offsets) override {
    auto [counts, segments] = Meet(rows, offsets);
    begun_.emplace(Begun{counts, std::move(segments),
                         RowExchange(group_, rows, counts, "tokens to their experts")});
  }

 protected:
  Tensor Forward(const Tensor& rows, const Tensor& offsets) override {
    if (!begun_) Begin(rows, offsets);
    Begun begun = *std::exchange(begun_, std::nullopt);
    const ExpertSegments& segments = begun.segments;
    const Tensor here = begun.rows.Wait();
    const Tensor out = experts_->WithHooks([&] {
      const Tensor inner = c_fc_->WithHooks(
          [&] { return SegmentedLinear(here, c_fc_->weight()->value(), segments); });
      const Tensor active = experts_->Activate(inner);
      return c_proj_->WithHooks(
          [&] { return SegmentedLinear(active, c_proj_->weight()->value(), segments); });
    });
    return ExchangeRows(group_, out, {begun.counts.receive, begun.counts.send},
                        "results of experts");
  }

 private:
  static std::shared_ptr<nn::GroupedLinear> LinearOf(const Child<nn::ExpertsLayer>& child,
                                                     const std::string& path) {
    auto linear = std::dynamic_pointer_cast<nn::GroupedLinear>(child.module());
    LS_CHECK(linear != nullptr, "expert parallelism: '", path, ".", child.name(),
             "' is no nn::GroupedLinear, and ranks can share out only these");
    return linear;
  }

  // How many rows come from which rank, and for which of this rank's experts.
  std::pair<RowCounts, ExpertSegments> Meet(const Tensor& rows, const Tensor& offsets) const {
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

  struct Begun {
    RowCounts counts;
    ExpertSegments segments;
    RowExchange rows;
  };

  const std::shared_ptr<ProcessGroup> group_;
  std::optional<Begun> begun_;
  const std::shared_ptr<nn::Experts> experts_;
  const std::shared_ptr<nn::GroupedLinear> c_fc_, c_proj_;
  Child<nn::ExpertsLayer> place_;  // for their names
};

}  // namespace

void ShareExperts(Module& model, const std::shared_ptr<ProcessGroup>& group) {
  if (!group || group->size() == 1) return;
  LS_CHECK(std::has_single_bit(static_cast<uint64_t>(group->size())),
           "expert parallelism: the number of ranks must be a power of two, got ", group->size(),
           ": the gradients of their samples are added in pairs");
  const auto parts = MeshParts::Of(model.Parameters());
  const auto exchange = std::make_shared<ExpertExchange>(group);
  bool any = false;
  for (const auto& [path, module] : model.NamedModules()) {
    auto* mixture = dynamic_cast<nn::MixtureOfExperts*>(module);
    if (mixture == nullptr) continue;
    const std::string place = path.empty() ? "experts" : path + ".experts";
    Child<nn::ExpertsLayer>* slot = &mixture->experts();
    const auto tensor = std::dynamic_pointer_cast<TensorExperts>(slot->module());
    if (tensor) slot = &tensor->own();
    const auto experts = std::dynamic_pointer_cast<nn::Experts>(slot->module());
    LS_CHECK(experts != nullptr, "expert parallelism: '", place,
             "' is no nn::Experts, and ranks can share out only these");
    const auto shared = std::make_shared<LocalExperts>(experts, group, place);
    exchange->Cut(parts, *shared->c_fc());
    exchange->Cut(parts, *shared->c_proj());
    if (tensor) {
      slot->Replace(shared);
      shared->AssignNames(place);
    } else {
      model.ReplaceChild(place, shared);
    }
    any = true;
  }
  LS_CHECK(any,
           "expert parallelism: the model has no nn::MixtureOfExperts whose experts ranks "
           "could share out: leave ShareExperts out");
  parts->Add(exchange);
}

}  // namespace lockstep::dist
