#include "dist/data_parallel/bucket_lanes.h"

#include <algorithm>
#include <exception>

#include "dist/user_call.h"

namespace lockstep::dist {
namespace {

double Milliseconds(CommunicationSpan::Clock::duration d) {
  return std::chrono::duration<double, std::milli>(d).count();
}

}  // namespace

void AbortBackward(ProcessGroup* group) {
  if (group) group->Abort(StrCat("backward failed on rank ", group->world_rank()));
}

BucketLanes::BucketLanes(ProcessGroup* group, Device device, int64_t lanes, const BucketSum& sum,
                         OnSpan on_span)
    : exceptions_(std::uncaught_exceptions()),
      group_(group),
      device_(device),
      on_span_(std::move(on_span)),
      arrival_(group) {
  for (int64_t i = 0; i < lanes; ++i) {
    GroupLane lane{.group = group_, .own_group = nullptr, .sum = sum, .jobs = MakeLane(device)};
    if (i > 0) {
      lane.own_group = group_->Duplicate(StrCat(group_->name(), ".lane", i + 1));
      lane.group = lane.own_group.get();
    }
    lanes_.push_back(std::move(lane));
  }
}

BucketLanes::~BucketLanes() {
  // In this order: jobs use the other members, and a sum holds the lane's memory.
  for (GroupLane& lane : lanes_) {
    try {
      lane.jobs->Wait();
    } catch (...) {  // backward has thrown it
    }
    lane.sum = nullptr;
    lane.jobs.reset();
  }
  // An exception aborts the lanes' own groups, which tells the others.
  if (group_ && std::uncaught_exceptions() <= exceptions_) Leave();
}

// Leaves all groups before it waits for any: other ranks may be in different ones.
void BucketLanes::Leave() noexcept {
  try {
    std::vector<WorkPtr> leaves;
    for (const GroupLane& lane : lanes_) leaves.push_back(lane.group->Leave());
    for (const WorkPtr& leave : leaves) leave->Synchronize();
  } catch (...) {  // the others learn of it; it does not matter to a rank that leaves
  }
}

void BucketLanes::Launch(int64_t bucket, int64_t bytes, BucketJob job) {
  Launched& launched = launched_.emplace_back();
  CommunicationSpan& span = launched.span;
  span.bucket = bucket;
  span.lane = bucket % std::ssize(lanes_);
  span.bytes = bytes;
  GroupLane& lane = lanes_[span.lane];
  lane.jobs->Submit([this, &launched, &lane, job = std::move(job), in = UserCall::Current()] {
    const UserCall call(in);
    launched.span.begin = Clock::now();
    launched.works = job(lane.group, lane.sum);
    launched.span.end = Clock::now();
    if (device_.is_cpu()) Report(launched.span);
  });
}

void BucketLanes::Report(const CommunicationSpan& span) {
  if (!on_span_) return;
  const std::lock_guard<std::mutex> lock(report_mutex_);
  on_span_(span);
}

void BucketLanes::Wait() {
  std::exception_ptr error;
  for (GroupLane& lane : lanes_) {
    try {
      lane.jobs->Wait();
    } catch (...) {
      if (!error) error = std::current_exception();
      AbortGroups();
    }
  }
  if (error) std::rethrow_exception(error);
}

void BucketLanes::AbortGroups() {
  for (const GroupLane& lane : lanes_) AbortBackward(lane.group);
}

void BucketLanes::Abort() noexcept {
  try {
    AbortGroups();
    Wait();
  } catch (...) {  // the error in flight says more
  }
  launched_.clear();
}

CommunicationTimes BucketLanes::Finish() {
  CommunicationSpan wait{.bucket = -1, .bytes = 0, .begin = Clock::now(), .end = {}};
  arrival_.Computed();
  Wait();
  if (group_ && device_.is_cuda()) group_->CheckInStep();
  arrival_.Summed();
  wait.end = Clock::now();
  return Measure(wait);
}

CommunicationTimes BucketLanes::Measure(const CommunicationSpan& wait) {
  CommunicationTimes times;
  std::vector<CommunicationSpan> spans;
  Clock::duration receiving{};
  for (Launched& launched : launched_) {
    const std::vector<WorkPtr>& works = launched.works;
    if (!device_.is_cpu()) {
      if (works.empty() || !works.front()->span() || !works.back()->span()) continue;
      launched.span.begin = works.front()->span()->begin;
      launched.span.end = works.back()->span()->end;
      Report(launched.span);
    }
    for (const WorkPtr& work : works) {
      if (const auto span = work->span()) receiving += span->receiving;
    }
    spans.push_back(launched.span);
  }
  launched_.clear();
  // Count time during which several lanes work only once.
  std::ranges::sort(spans, {}, &CommunicationSpan::begin);
  Clock::time_point counted = Clock::time_point::min();
  for (const CommunicationSpan& span : spans) {
    const auto begin = std::max(span.begin, counted);
    if (span.end <= begin) continue;
    counted = span.end;
    times.communication_ms += Milliseconds(span.end - begin);
    if (begin < wait.begin) {
      times.overlapped_ms += Milliseconds(std::min(span.end, wait.begin) - begin);
    }
  }
  times.exposed_ms = Milliseconds(wait.end - wait.begin);
  times.arrival_ms = arrival_.ms();
  times.receiving_ms = std::min(Milliseconds(receiving), times.exposed_ms);
  Report(wait);
  return times;
}

}  // namespace lockstep::dist
