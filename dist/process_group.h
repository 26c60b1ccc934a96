// Collective operations among ranks.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "dist/collective.h"
#include "dist/work.h"

namespace lockstep::dist {

class ControlPlane;
class FlightRecorder;

struct GroupOptions {
  // Names the group in messages.
  std::string name = "world";
  // Where tensors are: on the CPU, messages travel over TCP; on a GPU, NCCL moves them.
  Device device = kCpu;
  // How long an operation, once its turn comes, waits for other ranks. Declared pauses do not count
  // (dist/groups/pause.h); a rank that is gone is noticed at once.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  // dist.check=full. NCCL groups then compare each call of all ranks before it starts, which makes
  // the host wait for the slowest rank; otherwise they compare at CheckInStep. Host groups always
  // compare each call; with this option they also send a hash of each message, which exposes
  // messages that were corrupted on the way.
  bool check_every_call = false;
  // On a GPU, the thread blocks that an operation may take, each of which keeps a multiprocessor
  // busy while it waits for other ranks; 0: as NCCL likes.
  int most_blocks = 0;
  // Records the group's calls and its failure; may be null.
  std::shared_ptr<FlightRecorder> recorder = nullptr;
  // Called on one rank when a call has waited for half of the timeout because of a pause
  // (dist/groups/pause.h), with a message that says so. Runs on the control plane's thread, so it
  // must not block; may be empty.
  std::function<void(const std::string&)> say = {};
};

// One end of a transfer between two ranks. The tensor must be contiguous.
struct Transfer {
  enum class Direction { kSend, kReceive };
  Direction direction;
  Tensor tensor;
  int peer;  // within the group
};

// A set of the world's ranks that includes this process (or, in tests, this thread). Abstract; made
// by World::Group (dist/world.h) and Split.
//
// Arguments and results count ranks within the group, 0 to size() - 1. Errors and flight records
// name the world's ranks, whatever the group.
//
// All ranks must make the same calls in the same order; each call returns at once, and operations
// run one after the other in that order, as on a CUDA stream. If a rank makes a different call
// (kind, operation, dtype, count, root), leaves or gives up, the calls of all ranks soon throw
// CollectiveError (dist/collective.h). Outputs of operations that succeeded stay correct;
// afterwards the group only throws that error.
//
// Tensors must be contiguous, require no gradient, and be on device(). On CUDA an operation begins
// after the work already submitted to the calling thread's current stream. Do not write inputs or
// touch outputs before Work::Wait. Sizes of 0 are allowed. Invalid arguments throw ArgumentError at
// once, only on this rank, and do not count as a call.
//
// Reductions support f64, f32, f16, bf16, i64, i32, u16 and u8; everything else moves any dtype. On
// the host bf16 and f16 are summed in f32 and rounded once, in rank order at every position, and
// max and min propagate NaN; NCCL chooses its own order and does not support u16. In either case
// all ranks get the same bits.
//
// Only one thread at a time may call a group. Destroying it is collective: it waits for the other
// ranks, up to the timeout, so that none of them loses a peer that is merely faster; during an
// exception it gives up instead (see Abort).
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  // The group's ranks in the world, ascending, and this one's: members()[rank()].
  const std::vector<int>& members() const { return members_; }
  int world_rank() const { return members_[static_cast<size_t>(rank_)]; }
  const std::string& name() const { return options_.name; }
  const GroupOptions& options() const { return options_; }
  // Shared with the other groups of the world.
  const std::shared_ptr<ControlPlane>& control() const { return control_; }
  // Where tensors must be.
  virtual Device device() const = 0;

  // Calls that take a `purpose` show it in errors and flight records, such as "bucket 3
  // ('wte.weight' and 7 more)".

  // In place: `tensor` becomes the reduction of all ranks' tensors.
  WorkPtr AllReduce(const Tensor& tensor, ReduceOp op = ReduceOp::kSum,
                    const std::string& purpose = {});
  // Part r of `input`, which has size() times the elements of `output`, is reduced to rank r.
  // `output` may be that part.
  WorkPtr ReduceScatter(const Tensor& input, const Tensor& output, ReduceOp op = ReduceOp::kSum,
                        const std::string& purpose = {});
  // Part r of `output`, which has size() times the elements of `input`, is the input of rank r.
  // `input` may be that part.
  WorkPtr AllGather(const Tensor& input, const Tensor& output, const std::string& purpose = {});
  // In place, from `root`.
  WorkPtr Broadcast(const Tensor& tensor, int root, const std::string& purpose = {});
  // Part p of `input` goes to rank p, and part p of `output` comes from rank p. Without counts the
  // parts are equal; otherwise input_counts[p] and output_counts[p] are their elements, in order
  // and without gaps. Input and output do not overlap.
  WorkPtr AllToAll(const Tensor& input, const Tensor& output,
                   std::span<const int64_t> input_counts = {},
                   std::span<const int64_t> output_counts = {}, const std::string& purpose = {});
  // Concurrent sends and receives as one operation, in which only this rank and its peers take
  // part. Between two ranks, transfers match in order; a rank may not send to itself. Two ranks
  // that swap data must each do so in a single Exchange.
  WorkPtr Exchange(std::vector<Transfer> transfers, const std::string& purpose = {});
  WorkPtr Send(const Tensor& tensor, int peer, const std::string& purpose = {});
  WorkPtr Receive(const Tensor& tensor, int peer, const std::string& purpose = {});
  WorkPtr Barrier();

  // Has the same outcome on all ranks: returns if they have made the same calls so far, otherwise
  // throws CollectiveError. Call it before relying on results irrevocably (the weight update): with
  // NCCL the host waits until the results of all calls are there. It is itself a call.
  virtual void CheckInStep() = 0;

  // When the work already submitted to the calling thread's current stream is done; null on the
  // host, where it is done at once. Not a call of the group.
  virtual std::shared_ptr<Moment> Mark() const { return nullptr; }

  // Ends the ranks' work together; all of them must call it, like a collective. As soon as this
  // rank gets here, a rank that calls anything else throws "rank 1 has left the group". Waiting for
  // this Work is optional. The destructor calls it for its own group; an object that uses several
  // groups calls it for all of them before it waits for any, since it cannot know which of them the
  // others are in. The group remains usable once all ranks have made the call.
  virtual WorkPtr Leave();

  // Gives up: pending and future calls of all ranks throw an error that names this rank and the
  // reason, or the failure that this rank learned of earlier from a duplicate of this group. Any
  // thread may call it; only the first reason counts.
  virtual void Abort(const std::string& reason) = 0;

  // A group of the ranks `ranks` of this one (ascending, with this rank among them). Collective
  // over this group: every rank names the part that it is in. Throws ArgumentError, on all ranks,
  // if ranks of a part name different ones. The name must differ from those of all groups of this
  // rank that exist or have failed. most_blocks: as in GroupOptions.
  virtual std::shared_ptr<ProcessGroup> Split(const std::string& name,
                                              const std::vector<int>& ranks, int most_blocks = 0);
  // Another group over the same ranks, with its own order of calls, for concurrent operations.
  std::shared_ptr<ProcessGroup> Duplicate(const std::string& name);

 protected:
  // A call whose tensors have been checked. Unused tensors are undefined.
  struct Call {
    Collective collective;
    Tensor input, output;
    int root = 0;  // within the group, where the collective has the world's rank
    // Elements per rank (all_to_all).
    std::vector<int64_t> input_counts, output_counts;
    std::vector<Transfer> transfers;
    std::string purpose;
  };

  ProcessGroup(std::vector<int> members, GroupOptions options,
               std::shared_ptr<ControlPlane> control);
  // Without a control plane: for planning.
  ProcessGroup(int size, int rank, GroupOptions options);

  virtual WorkPtr Submit(Call call) = 0;
  // Makes the group of these world ranks; each of them calls it. No operation may be in progress.
  virtual std::shared_ptr<ProcessGroup> MakePart(std::vector<int> members,
                                                 const GroupOptions& options) = 0;
  // Bumps the versions of the tensors that the call writes. A broadcast only reads its root's.
  void BumpVersions(const Call& call) const;
  // The number of the next call that all ranks make.
  int64_t NextSequence() { return ++sequence_; }

 private:
  void CheckTensor(const char* what, const char* argument, const Tensor& tensor) const;
  void CheckReduction(const char* what, const Tensor& tensor) const;
  void CheckRank(const char* what, const char* argument, int rank) const;
  WorkPtr SubmitCollective(Call call, const std::string& purpose = {});

  const std::vector<int> members_;
  const int rank_;
  const GroupOptions options_;
  const std::shared_ptr<ControlPlane> control_;
  int64_t sequence_ = 0, exchanges_ = 0;
};

// The size of a group that may be null, which means a single rank.
inline int SizeOf(const ProcessGroup* group) { return group ? group->size() : 1; }
inline int RankIn(const ProcessGroup* group) { return group ? group->rank() : 0; }
// This rank and those that are a multiple of `step` away from it, as Split takes them.
std::vector<int> EveryNth(const ProcessGroup& group, int64_t step);

}  // namespace lockstep::dist
