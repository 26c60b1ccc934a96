// Rows of a matrix to the ranks that work on them.
#pragma once

#include <memory>
#include <vector>

#include "core/tensor.h"
#include "dist/process_group.h"

namespace lockstep::dist {

// How many rows each rank of a group sends to and receives from each other one, in rank order.
struct RowCounts {
  std::vector<int64_t> send, receive;
};

// Rows on their way. Backward turns it around: it begins to send the gradients back where forward
// waited, and waits for them where forward began. So what forward computes in between overlaps with
// the messages, and so does its backward.
class RowExchange {
 public:
  // Collective. `rows` [R, C], R the sum of counts.send: the first counts.send[0] rows go to rank
  // 0, the next ones to rank 1, and so on. Saves nothing. Any dtype; on the group's device; `what`
  // names the rows in errors.
  RowExchange(std::shared_ptr<ProcessGroup> group, const Tensor& rows, RowCounts counts,
              const char* what);
  // Returns [the sum of counts.receive, C]: the rows of rank 0, then those of rank 1, and so on.
  Tensor Wait();

 private:
  struct Messages;

  const std::shared_ptr<Messages> messages_;
  Tensor coming_;
};

// The same at once.
Tensor ExchangeRows(const std::shared_ptr<ProcessGroup>& group, const Tensor& rows,
                    const RowCounts& counts, const char* what);

}  // namespace lockstep::dist
