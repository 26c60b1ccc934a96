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

// Collective. `rows` [R, C], R the sum of counts.send: the first counts.send[0] rows go to rank 0,
// the next ones to rank 1, and so on. Returns [the sum of counts.receive, C]: the rows of rank 0,
// then those of rank 1, and so on. In backward, which is collective too, gradients go the other
// way. Saves nothing. Any dtype; on the group's device; `what` names the rows in errors.
Tensor ExchangeRows(const std::shared_ptr<ProcessGroup>& group, const Tensor& rows,
                    const RowCounts& counts, const char* what);

}  // namespace lockstep::dist
