#include "dist/expert/exchange_rows.h"

#include <numeric>
#include <utility>

#include "core/autograd/node.h"

namespace lockstep::dist {

// What is sent next, one way or the other.
struct RowExchange::Messages {
  std::shared_ptr<ProcessGroup> group;
  RowCounts counts;
  std::string what;
  WorkPtr work;
  Tensor to;

  // Sends rows in the numbers of `send`.
  void Begin(const Tensor& rows, std::vector<int64_t> send, std::vector<int64_t> receive,
             const std::string& purpose) {
    const int64_t width = rows.dim(1);
    const int64_t n = std::accumulate(receive.begin(), receive.end(), int64_t{0});
    for (std::vector<int64_t>* elements : {&send, &receive}) {
      for (int64_t& e : *elements) e *= width;
    }
    const Tensor from = rows.Detach().Contiguous();
    to = Tensor::Empty({n, width}, rows.dtype(), rows.device());
    work =
        group->AllToAll(from.View({from.numel()}), to.View({to.numel()}), send, receive, purpose);
  }
  Tensor Wait() {
    std::exchange(work, nullptr)->Wait();
    return std::exchange(to, Tensor());
  }
};

class RowExchange::BeginNode : public Node {
 public:
  explicit BeginNode(std::shared_ptr<Messages> messages)
      : Node("begin_exchange_rows"), messages_(std::move(messages)) {}
  void Backward(std::span<const Tensor>, const std::vector<bool>&,
                std::span<GradSink> sinks) override {
    sinks[0].Put(messages_->Wait());
  }
  void Release() override {}

 private:
  const std::shared_ptr<Messages> messages_;
};

// Its input gradient, which only a BeginNode gets, is of the rows that came.
class RowExchange::WaitNode : public Node {
 public:
  explicit WaitNode(std::shared_ptr<Messages> messages)
      : Node("exchange_rows"), messages_(std::move(messages)) {}
  void Backward(std::span<const Tensor> grads, const std::vector<bool>&,
                std::span<GradSink> sinks) override {
    const RowCounts& counts = messages_->counts;
    messages_->Begin(grads[0], counts.receive, counts.send,
                     StrCat("the gradients of ", messages_->what));
    sinks[0].Put(grads[0]);
  }
  void Release() override {}

 private:
  const std::shared_ptr<Messages> messages_;
};

RowExchange::RowExchange(std::shared_ptr<ProcessGroup> group, const Tensor& rows, RowCounts counts,
                         const char* what)
    : messages_(std::make_shared<Messages>(Messages{.group = std::move(group),
                                                    .counts = std::move(counts),
                                                    .what = what,
                                                    .work = nullptr,
                                                    .to = {}})) {
  const RowCounts& of = messages_->counts;
  LS_CHECK(rows.defined() && rows.ndim() == 2 &&
               rows.dim(0) == std::accumulate(of.send.begin(), of.send.end(), int64_t{0}),
           "ExchangeRows needs as many rows as its counts have together, got ", rows.Describe());
  messages_->Begin(rows, of.send, of.receive, what);
  coming_ = messages_->to;
  if (NeedsGrad({&rows})) Record(std::make_shared<BeginNode>(messages_), {&rows}, {&coming_});
}

Tensor RowExchange::Wait() {
  Tensor out = messages_->Wait();
  if (NeedsGrad({&coming_})) Record(std::make_shared<WaitNode>(messages_), {&coming_}, {&out});
  coming_ = {};
  return out;
}

Tensor ExchangeRows(const std::shared_ptr<ProcessGroup>& group, const Tensor& rows,
                    const RowCounts& counts, const char* what) {
  return RowExchange(group, rows, counts, what).Wait();
}

}  // namespace lockstep::dist
