#include "dist/pipeline/pipeline_edges.h"

#include <algorithm>
#include <set>

#include "core/error.h"

namespace lockstep::dist {
namespace {

using Edge = std::pair<int, int>;  // from, to

// Of a GPU: some 80 GB/s over NVLink, 3% of an H100 for each edge.
constexpr int kBlocks = 4;

// The edges in rounds; in each round a rank has at most one.
std::vector<std::vector<Edge>> RoundsOf(const PipelineSchedule& schedule) {
  std::set<Edge> edges;
  for (int r = 0; r < schedule.ranks(); ++r) {
    for (const PipelineAction& a : schedule.actions[r]) {
      if (a.is_send()) edges.emplace(r, schedule.rank_of[OtherEnd(a).stage]);
    }
  }
  std::vector<std::vector<Edge>> rounds;
  for (const Edge& edge : edges) {
    const auto free = std::find_if(rounds.begin(), rounds.end(), [&](const auto& round) {
      return std::none_of(round.begin(), round.end(), [&](const Edge& other) {
        return other.first == edge.first || other.first == edge.second ||
               other.second == edge.first || other.second == edge.second;
      });
    });
    (free == rounds.end() ? rounds.emplace_back() : *free).push_back(edge);
  }
  return rounds;
}

}  // namespace

PipelineEdges::PipelineEdges(ProcessGroup* ranks, const PipelineSchedule& schedule)
    : ranks_(ranks) {
  if (ranks_ == nullptr) return;
  std::vector<std::shared_ptr<ProcessGroup>> alone;
  const auto rounds = RoundsOf(schedule);
  for (size_t i = 0; i < rounds.size(); ++i) {
    const auto mine = std::find_if(rounds[i].begin(), rounds[i].end(), [&](const Edge& e) {
      return e.first == ranks_->rank() || e.second == ranks_->rank();
    });
    if (mine == rounds[i].end()) {
      alone.push_back(ranks_->Split(StrCat(ranks_->name(), ".no_edge_", i), {ranks_->rank()}));
      continue;
    }
    const auto [from, to] = *mine;
    groups_[*mine] = ranks_->Split(StrCat(ranks_->name(), ".", from, "_to_", to),
                                   {std::min(from, to), std::max(from, to)}, kBlocks);
  }
}

int PipelineEdges::PeerOf(const PipelineAction& transfer) const {
  return schedule_.rank_of[OtherEnd(transfer).stage];
}

ProcessGroup& PipelineEdges::Group(int from, int to, const PipelineAction& transfer) const {
  const auto found = groups_.find({from, to});
  LS_CHECK(found != groups_.end(), ToString(transfer), " needs a way from rank ", from, " to rank ",
           to, " of the pipeline, which was not made at its start");
  return *found->second;
}

void PipelineEdges::Post(int from, Incoming& in) {
  if (in.posted == in.expected.size()) return;
  const PipelineAction& receive = in.expected[in.posted++];
  ProcessGroup& group = Group(from, ranks_->rank(), receive);
  const Tensor tensor = Tensor::Empty(boundary_.shape, boundary_.dtype, group.device());
  Hold(tensor);
  in.tensors.emplace_back(tensor, group.Receive(tensor, 1 - group.rank(), ToString(receive)));
}

void PipelineEdges::Begin(const PipelineSchedule& schedule, const PipelineBoundary& boundary) {
  schedule_ = schedule;
  boundary_ = boundary;
  incoming_.clear();
  if (ranks_ == nullptr) return;
  for (const PipelineAction& a : schedule.actions[ranks_->rank()]) {
    if (a.is_receive()) incoming_[PeerOf(a)].expected.push_back(a);
  }
  const int ahead = ranks_->device().is_cuda() ? 1 : 2;
  for (auto& [from, in] : incoming_) {
    for (int i = 0; i < ahead; ++i) Post(from, in);
  }
}

void PipelineEdges::Send(const PipelineAction& send, const Tensor& tensor) {
  LS_CHECK(tensor.shape() == boundary_.shape && tensor.dtype() == boundary_.dtype, ToString(send),
           " is ", tensor.Describe(), ", but what passes between these stages was said to be ",
           boundary_.dtype, boundary_.shape);
  ProcessGroup& group = Group(ranks_->rank(), PeerOf(send), send);
  const Tensor sent = tensor.Detach().Contiguous();
  Hold(sent);
  sends_.push_back(group.Send(sent, 1 - group.rank(), ToString(send)));
}

Tensor PipelineEdges::Receive(const PipelineAction& receive) {
  const int from = PeerOf(receive);
  Incoming& in = incoming_.at(from);
  const auto early = std::find_if(in.early.begin(), in.early.end(),
                                  [&](const auto& one) { return one.first == receive; });
  if (early != in.early.end()) {
    const Tensor tensor = early->second;
    in.early.erase(early);
    return tensor;
  }
  while (true) {
    LS_INVARIANT(in.taken < in.expected.size(), ToString(receive), " was not expected");
    const PipelineAction taken = in.expected[in.taken++];
    auto [tensor, work] = std::move(in.tensors.front());
    in.tensors.pop_front();
    work->Wait();
    Post(from, in);
    if (taken == receive) return tensor;
    in.early.emplace_back(taken, tensor);
  }
}

void PipelineEdges::End() {
  for (const WorkPtr& work : sends_) work->Wait();
  sends_.clear();
  held_.clear();
}

}  // namespace lockstep::dist
