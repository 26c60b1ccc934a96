// Collective operations among ranks.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "dist/groups/collective.h"
#include "dist/work.h"

namespace lockstep::dist {

class RankStatus;
class FlightRecorder;

struct GroupOptions {
  // In messages.
  std::string name = "world";
  // How long an operation waits for other ranks, from when its turn has come. Pauses that a rank
  // has declared do not count (dist/control/pause.h); a rank that is gone is noticed at once.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  // dist.check=full: NCCL, too, compares each call of all ranks before it starts, which makes the
  // host wait for the slowest rank; otherwise it compares at CheckInStep. Groups on the host always
  // compare each call; with it they also send a hash of each message, and so find those that did
  // not come as they were sent.
  bool check_every_call = false;
  // A rank whose process is stopped, or cut off, is named by all others within so long; one that is
  // silent for less, by the least of a second, a third of this and a quarter of `timeout`, is let
  // go on. 0: only the timeout counts; else at least 100 ms. Only stores over TCP notice.
  std::chrono::milliseconds heartbeat = std::chrono::seconds(20);
  // Gets the group's calls, and its failure; null: nobody.
  std::shared_ptr<FlightRecorder> recorder = nullptr;
  // Told on one rank what a call has been waiting for since half of the timeout, where that is a
  // pause (dist/control/pause.h). From the thread that shows that this rank lives, so it must not
  // block; may be empty.
  std::function<void(const std::string&)> say = {};
};

// One end of a transfer between two ranks. The tensor is contiguous.
struct Transfer {
  enum class Direction { kSend, kReceive };
  Direction direction;
  Tensor tensor;
  int peer;
};

// Some ranks, of which this process (or thread) is one. Abstract; made by MakeInProcessGroups
// (dist/groups/in_process_group.h), MakeGlooGroup (dist/groups/gloo_group.h) and MakeNcclGroup
// (dist/groups/nccl_group.h).
//
// All ranks make the same calls in the same order; each returns at once, and operations run one
// after the other in that order, as on a CUDA stream. A rank that calls something else (kind,
// operation, dtype, count, root), leaves or gives up makes the calls of all ranks throw
// CollectiveError (dist/groups/collective.h), soon and with nothing wrong in the outputs of
// operations that ended well; afterwards the group only throws that error.
//
// Tensors are contiguous, carry no gradient, and lie on device(). On CUDA an operation begins after
// what was submitted to the calling thread's current stream. Nobody writes inputs or touches
// outputs before Work::Wait. Sizes of 0 are fine. Wrong arguments throw ArgumentError at once, on
// this rank alone, and do not count as a call.
//
// Reductions are of f64, f32, f16, bf16, i64, i32, u16 and u8; everything else moves any dtype. On
// the host bf16 and f16 are summed in f32 and rounded once, in the order of the ranks, whatever the
// position, and the max or min of something with NaN is NaN; NCCL sums as it likes and knows no
// u16. In either case all ranks get the same bits.
//
// One thread at a time calls a group. Destroying it is collective: it waits for the other ranks, up
// to the timeout, so that nobody loses a peer that is only faster; during an exception it gives up
// instead (see Abort).
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return options_.name; }
  const GroupOptions& options() const { return options_; }
  // Shared with duplicates of this group.
  const std::shared_ptr<RankStatus>& status() const { return status_; }
  // Where tensors must lie.
  virtual Device device() const = 0;

  // In place: `tensor` becomes the reduction of all ranks' tensors.
  WorkPtr AllReduce(const Tensor& tensor, ReduceOp op = ReduceOp::kSum);
  // Part r of `input`, which has size() times the elements of `output`, is reduced to rank r.
  WorkPtr ReduceScatter(const Tensor& input, const Tensor& output, ReduceOp op = ReduceOp::kSum);
  // Part r of `output`, which has size() times the elements of `input`, is the input of rank r.
  // `input` may be that part.
  WorkPtr AllGather(const Tensor& input, const Tensor& output);
  // In place, from `root`.
  WorkPtr Broadcast(const Tensor& tensor, int root);
  // Part p of `input` goes to rank p, and part p of `output` comes from rank p. Without counts the
  // parts are equal; otherwise input_counts[p] and output_counts[p] are their elements, in order
  // and without gaps. Input and output do not overlap.
  WorkPtr AllToAll(const Tensor& input, const Tensor& output,
                   std::span<const int64_t> input_counts = {},
                   std::span<const int64_t> output_counts = {});
  // Sends and receives that go on at the same time, as one operation that only the ranks named by
  // it and this one take part in. Between two ranks, transfers match in order; a rank may not send
  // to itself. Two ranks that swap must do it in one Exchange on each.
  WorkPtr Exchange(std::vector<Transfer> transfers);
  WorkPtr Send(const Tensor& tensor, int peer);
  WorkPtr Receive(const Tensor& tensor, int peer);
  WorkPtr Barrier();

  // Ends with the same on all ranks: returns if they have made the same calls so far, otherwise
  // throws CollectiveError. To be called before results are relied on for good (the update of the
  // weights): on NCCL the host waits, and what the calls computed is there. It is itself a call.
  virtual void CheckInStep() = 0;

  // The end of what the ranks do together: to be called by all of them, like a collective. Whoever
  // calls anything else throws "rank 1 has left the group", as soon as this rank gets here, and
  // nobody has to wait for this Work. The destructor does it for its group; an object that uses
  // several does it for all of them before it waits for one, since it cannot know in which of them
  // the others are. The group can be used further if all ranks have come.
  virtual WorkPtr Leave();

  // Gives up: pending and future calls of all ranks throw, naming this rank and the reason; or what
  // this rank has heard of before in another group, if one is the duplicate of the other. Any
  // thread may call it; only the first reason counts.
  virtual void Abort(const std::string& reason) = 0;

  // What the following calls are for, as errors and flight records name it: "bucket 3 ('wte.weight'
  // and 7 more)". Null: nothing in particular.
  void SetPurpose(std::shared_ptr<const std::string> purpose) { purpose_ = std::move(purpose); }

  // Another group over the same ranks, with an order of its own: for what goes on beside this
  // one's operations. Collective. No other group that lives, or has failed, has the name.
  virtual std::shared_ptr<ProcessGroup> Duplicate(const std::string& name) = 0;

 protected:
  // What a call comes down to; tensors are checked. An unused one is undefined.
  struct Call {
    Collective collective;
    Tensor input, output;
    // Elements per rank (all_to_all).
    std::vector<int64_t> input_counts, output_counts;
    std::vector<Transfer> transfers;
    std::string purpose;
  };

  // `status` is that of the group which this one belongs to; null: it belongs to none.
  ProcessGroup(int rank, int size, GroupOptions options, std::shared_ptr<RankStatus> status);

  virtual WorkPtr Submit(Call call) = 0;
  std::string purpose() const { return purpose_ ? *purpose_ : ""; }
  // The number of the next call that all ranks make.
  int64_t NextSequence() { return ++sequence_; }

 private:
  void CheckTensor(const char* what, const char* argument, const Tensor& tensor) const;
  void CheckReduction(const char* what, const Tensor& tensor) const;
  void CheckRank(const char* what, const char* argument, int rank) const;
  WorkPtr SubmitCollective(Call call);

  const int rank_, size_;
  const GroupOptions options_;
  const std::shared_ptr<RankStatus> status_;
  int64_t sequence_ = 0, exchanges_ = 0;
  std::shared_ptr<const std::string> purpose_;
};

}  // namespace lockstep::dist
