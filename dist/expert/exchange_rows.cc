#include "dist/expert/exchange_rows.h"

#include <numeric>

#include "core/autograd/node.h"

namespace lockstep::dist {
namespace {

Tensor Exchange(ProcessGroup& group, const Tensor& rows, const RowCounts& counts,
                const char* what) {
  const int64_t width = rows.dim(1);
  const auto elements = [width](std::vector<int64_t> of) {
    for (int64_t& n : of) n *= width;
    return of;
  };
  const int64_t n = std::accumulate(counts.receive.begin(), counts.receive.end(), int64_t{0});
  const Tensor from = rows.Detach().Contiguous();
  const Tensor to = Tensor::Empty({n, width}, rows.dtype(), rows.device());
  group
      .AllToAll(from.View({from.numel()}), to.View({to.numel()}), elements(counts.send),
                elements(counts.receive), what)
      ->Wait();
  return to;
}

class ExchangeRowsNode : public Node {
 public:
  ExchangeRowsNode(std::shared_ptr<ProcessGroup> group, RowCounts counts, const char* what)
      : Node("exchange_rows"),
        group_(std::move(group)),
        counts_(std::move(counts)),
        what_(StrCat("the gradients of ", what)) {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>&,
                std::span<GradSink> sinks) override {
    sinks[0].Put(Exchange(*group_, grads[0], {counts_.receive, counts_.send}, what_.c_str()));
  }
  void Release() override {}

 private:
  const std::shared_ptr<ProcessGroup> group_;
  const RowCounts counts_;
  const std::string what_;
};

}  // namespace

Tensor ExchangeRows(const std::shared_ptr<ProcessGroup>& group, const Tensor& rows,
                    const RowCounts& counts, const char* what) {
  LS_CHECK(rows.defined() && rows.ndim() == 2 &&
               rows.dim(0) == std::accumulate(counts.send.begin(), counts.send.end(), int64_t{0}),
           "ExchangeRows needs as many rows as its counts have together, got ", rows.Describe());
  Tensor out = Exchange(*group, rows, counts, what);
  if (NeedsGrad({&rows})) {
    Record(std::make_shared<ExchangeRowsNode>(group, counts, what), {&rows}, {&out});
  }
  return out;
}

}  // namespace lockstep::dist
