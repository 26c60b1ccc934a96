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
    work = group->AllToAll(from, to, send, receive, purpose);
  }
  Tensor Wait() {
    std::exchange(work, nullptr)->Wait();
    return std::exchange(to, Tensor());
  }
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
  RecordOp("begin_exchange_rows", {&rows}, {&coming_}, {},
           [messages = messages_](const SavedTensors&, Gradients& grads) {
             grads.Put(0, messages->Wait());
           });
}

Tensor RowExchange::Wait() {
  Tensor out = messages_->Wait();
  // Only the backward of begin_exchange_rows gets the gradient, which is of the rows that came.
  RecordOp("exchange_rows", {&coming_}, {&out}, {},
           [messages = messages_](const SavedTensors&, Gradients& grads) {
             const RowCounts& counts = messages->counts;
             messages->Begin(grads[0], counts.receive, counts.send,
                             StrCat("the gradients of ", messages->what));
             grads.Put(0, grads[0]);
           });
  coming_ = {};
  return out;
}

Tensor ExchangeRows(const std::shared_ptr<ProcessGroup>& group, const Tensor& rows,
                    const RowCounts& counts, const char* what) {
  return RowExchange(group, rows, counts, what).Wait();
}

}  // namespace lockstep::dist
