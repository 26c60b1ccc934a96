#include "tools/cudasim/ptx/control.h"

#include <immintrin.h>

#include <chrono>
#include <cstring>
#include <limits>

#include "tools/cudasim/ptx/addresses.h"
#include "tools/cudasim/ptx/block.h"
#include "tools/cudasim/ptx/collectives.h"
#include "tools/cudasim/ptx/detectors/counters.h"

namespace cudasim {
namespace ptx {
namespace {

uint32_t LanesThatHold(const Warp& warp, const Instruction* i) {
  return (warp.Predicate(i->a) ^ (i->option == 1 ? kAllLanes : 0)) & warp.mask;
}

// The instruction where a branch leads; with no one to meet, the one after its Meet.
const Instruction* Target(const Warp& warp, const Instruction* i) {
  return warp.waiting.empty() ? i->next + 1 : i->next;
}

[[noreturn]] void FailBarrier(const Warp& warp, const Instruction* i, int lane, int absent) {
  const bool exited = (warp.live >> absent & 1) == 0;
  warp.Fail(Bug::kBarrierDivergence, i, lane,
            "lane " + std::to_string(absent) + " of the warp " +
                (exited ? "has exited" : "is not at this barrier"));
}

// At barrier a, for b threads. Returns the barrier's number.
int Arrive(const Warp& warp, const Instruction* i, uint32_t votes, bool waits) {
  const int first = __builtin_ctz(warp.mask);
  const uint32_t barrier = warp.Lanes<uint32_t>(i->a)[first];
  const uint32_t threads = warp.Lanes<uint32_t>(i->b)[first];
  if (barrier > 15 || threads % kLanes != 0) {
    warp.Fail(Bug::kOther, i, first, "there are 16 barriers, for multiples of 32 threads");
  }
  warp.block->Arrive(warp, static_cast<int>(barrier), threads, votes, waits);
  return static_cast<int>(barrier);
}

// The callee's frame ends: the caller's lanes that are still live go on.
const Instruction* EndCall(Warp& warp) {
  Frame frame = std::move(warp.frames.back());
  warp.frames.pop_back();
  const uint32_t callee_local = warp.local;
  for (const Passed& result : frame.call->results) {
    for (int lane : LanesOf(frame.mask)) {
      std::byte* const local = warp.local_memory + static_cast<size_t>(lane) * warp.local_stride;
      std::memcpy(local + frame.local + result.caller, local + callee_local + result.callee,
                  result.bytes);
    }
  }
  warp.files[kRegisters] = frame.registers;
  warp.program = frame.program;
  warp.files[kConstants] = frame.program->constants.data();
  warp.code = frame.program->code.data();
  warp.local = frame.local;
  warp.waiting = std::move(frame.waiting);
  warp.first_waiting = kAllLanes;
  for (const Group& group : warp.waiting) {
    warp.first_waiting = std::min(warp.first_waiting, group.at);
  }
  warp.SetMask(frame.mask & warp.live);
  return frame.next;
}

// No lane of the current group is left.
const Instruction* EndGroup(Warp& warp) {
  for (;;) {
    for (Group& group : warp.waiting) group.mask &= warp.live;
    std::erase_if(warp.waiting, [](const Group& group) { return group.mask == 0; });
    if (!warp.waiting.empty()) return warp.NextGroup();
    if (warp.frames.empty()) return warp.Wait(Warp::State::kDone, nullptr);
    const Instruction* const next = EndCall(warp);
    if (warp.mask != 0) return next;
  }
}

// A lane exits that the others of a barrier or collective wait for.
[[noreturn]] void FailMissing(const Warp& warp, const Group& group, int lane) {
  const Instruction* const i = warp.code + group.at;
  const int first = __builtin_ctz(group.mask);
  if (i->run == &Barrier) FailBarrier(warp, i, first, lane);
  FailMissingLane(warp, i, first, lane);
}

const Instruction* Leave(Warp& warp, const Instruction* i, uint32_t lanes, bool exit) {
  if (exit || warp.frames.empty()) {
    if ((lanes & warp.wanted) != 0) [[unlikely]] {
      for (const Group& group : warp.waiting) {
        if (warp.IsStuck(group)) FailMissing(warp, group, __builtin_ctz(lanes & warp.wanted));
      }
    }
    warp.live &= ~lanes;
  }
  const uint32_t remaining = warp.mask & ~lanes;
  if (remaining == 0) return EndGroup(warp);
  warp.SetMask(remaining);
  return i + 1;
}

}  // namespace

const Instruction* Meet(Warp& warp, const Instruction* i) {
  if (warp.waiting.empty()) [[likely]]
    return i + 1;
  const uint32_t at = warp.NumberOf(i);
  if (at < warp.first_waiting || warp.block->Chance(2)) return i + 1;
  warp.AddWaiting({at, warp.mask});
  const Instruction* const next = warp.NextGroup();
  return next == i ? i + 1 : next;
}

const Instruction* Branch(Warp& warp, const Instruction* i) { return Target(warp, i); }

const Instruction* BranchIf(Warp& warp, const Instruction* i) {
  const uint32_t lanes = LanesThatHold(warp, i);
  if (lanes == 0) return i + 1;
  if (lanes == warp.mask) return Target(warp, i);
  const uint32_t others = warp.mask & ~lanes;
  warp.AddWaiting({warp.NumberOf(i->next), lanes});
  warp.AddWaiting({warp.NumberOf(i) + 1, others});
  const Instruction* const next = warp.NextGroup();
  return warp.block->Chance(2) ? warp.Yield(next) : next;
}

const Instruction* ReturnIf(Warp& warp, const Instruction* i) {
  const uint32_t lanes = LanesThatHold(warp, i);
  return lanes == 0 ? i + 1 : Leave(warp, i, lanes, false);
}

const Instruction* Return(Warp& warp, const Instruction* i) {
  return Leave(warp, i, warp.mask, false);
}

const Instruction* Exit(Warp& warp, const Instruction* i) {
  return Leave(warp, i, warp.mask, true);
}

const Instruction* BranchByIndex(Warp& warp, const Instruction* i) {
  const auto& table = *static_cast<const std::vector<const Instruction*>*>(i->data);
  const uint32_t* const index = warp.Lanes<uint32_t>(i->a);
  for (int lane : LanesOf(warp.mask)) {
    if (index[lane] >= table.size()) {
      warp.Fail(Bug::kOther, i, lane, "brx.idx goes beyond its list of targets");
    }
    warp.AddWaiting({warp.NumberOf(table[index[lane]]), uint32_t{1} << lane});
  }
  return warp.NextGroup();
}

const Instruction* CallFunction(Warp& warp, const Instruction* i) {
  const auto& call = *static_cast<const Call*>(i->data);
  if (call.builtin != nullptr) {
    call.builtin(warp, i);
    return i + 1;
  }
  const Program* callee = call.callee;
  if (callee == nullptr) {
    const uint64_t* const addresses = warp.Lanes<uint64_t>(i->a);
    const int first = __builtin_ctz(warp.mask);
    for (int lane : LanesOf(warp.mask)) {
      if (addresses[lane] != addresses[first]) {
        warp.Fail(Bug::kOther, i, lane,
                  "calls of different functions by pointers at the same "
                  "time are not implemented");
      }
    }
    callee = reinterpret_cast<const Program*>(addresses[first]);
    if (callee == nullptr) warp.Fail(Bug::kOutOfBounds, i, first, "a call of a null pointer");
  }
  const uint32_t local = (warp.local + warp.program->local_bytes + 15) / 16 * 16;
  if (local + callee->local_bytes > warp.local_stride) {
    warp.Fail(Bug::kOutOfBounds, i, __builtin_ctz(warp.mask), "the stack overflows");
  }
  for (const Passed& argument : call.arguments) {
    for (int lane : LanesOf(warp.mask)) {
      std::byte* const memory = warp.local_memory + static_cast<size_t>(lane) * warp.local_stride;
      std::memcpy(memory + local + argument.callee, memory + warp.local + argument.caller,
                  argument.bytes);
    }
  }
  const size_t depth = warp.frames.size();
  if (warp.frame_registers.size() <= depth) warp.frame_registers.resize(depth + 1);
  warp.frames.push_back({warp.files[kRegisters], warp.program, i + 1, warp.mask, warp.local, &call,
                         std::move(warp.waiting)});
  warp.waiting.clear();
  warp.first_waiting = kAllLanes;
  warp.files[kRegisters] = warp.frame_registers[depth].Reserve(callee->register_bytes);
  warp.program = callee;
  warp.files[kConstants] = callee->constants.data();
  warp.code = callee->code.data();
  warp.local = local;
  return warp.code;
}

const Instruction* FrameAddress(Warp& warp, const Instruction* i) {
  const uint64_t address = warp.local + i->imm;
  SetLanes<uint64_t>(warp, i->d, [=](int) { return address; });
  return i + 1;
}

const Instruction* Guard(Warp& warp, const Instruction* i) {
  const uint32_t lanes = LanesThatHold(warp, i);
  const Instruction* const end = i + 1 + i->imm;
  if (lanes == 0) return end;
  const uint32_t mask = warp.mask;
  const int64_t patience = warp.patience;
  warp.patience = std::numeric_limits<int64_t>::max();  // what is guarded does not yield
  if (lanes != mask) warp.SetMask(lanes);
  for (const Instruction* j = i + 1; j != end;) {
    if (Tally* const tally = warp.block->tally(); tally != nullptr) tally->Count(warp, j);
    j = j->run(warp, j);
  }
  if (lanes != mask) warp.SetMask(mask);
  warp.patience = patience;
  return end;
}

const Instruction* WithMode(Warp& warp, const Instruction* i) {
  const unsigned before = _mm_getcsr();
  _mm_setcsr((before & ~kRoundToZero) | static_cast<unsigned>(i->imm));
  asm volatile("" ::: "memory");
  const Instruction* const next = i[1].run(warp, i + 1);
  asm volatile("" ::: "memory");
  _mm_setcsr(before);
  return next;
}

const Instruction* Barrier(Warp& warp, const Instruction* i) {
  if (warp.mask != warp.live) {
    const uint32_t absent = warp.live & ~warp.mask;
    if (const Instruction* const others = LetOthersCatchUp(warp, i, absent)) return others;
    FailBarrier(warp, i, __builtin_ctz(warp.mask), __builtin_ctz(absent));
  }
  const int first = __builtin_ctz(warp.mask);
  if (warp.live != warp.existing && warp.block->settings().report_exited) {
    FailBarrier(warp, i, first, __builtin_ctz(warp.existing & ~warp.live));
  }
  uint32_t votes = 0;
  if (i->option != 0) votes = (warp.Predicate(i->c) ^ (i->option == 2 ? kAllLanes : 0)) & warp.mask;
  warp.barrier = Arrive(warp, i, votes, true);
  return warp.Wait(Warp::State::kAtBarrier, i + 1);
}

const Instruction* ArriveAtBarrier(Warp& warp, const Instruction* i) {
  Arrive(warp, i, 0, false);
  return warp.AfterAccess(i);
}

const Instruction* BarrierVotes(Warp& warp, const Instruction* i) {
  const Block::Votes votes =
      warp.block->LastVotes(static_cast<int>(warp.Lanes<uint32_t>(i->a)[__builtin_ctz(warp.mask)]));
  if (i->option == 0) {
    SetLanes<uint32_t>(warp, i->d, [=](int) { return votes.for_it; });
  } else {
    const bool result = i->option == 1 ? votes.for_it == votes.threads : votes.for_it != 0;
    SetPredicate(warp, i->d, result ? kAllLanes : 0);
  }
  return i + 1;
}

const Instruction* Trap(Warp& warp, const Instruction* i) {
  warp.Fail(Bug::kTrap, i, __builtin_ctz(warp.mask), "the kernel gave up");
}

const Instruction* Sleep(Warp& warp, const Instruction* i) { return warp.Yield(i + 1); }

const Instruction* Fence(Warp& warp, const Instruction* i) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  if (warp.block->races() != nullptr) warp.block->races()->clocks().Fence(warp, i->option == 0);
  return warp.AfterAccess(i);
}

const Instruction* Clock(Warp& warp, const Instruction* i) {
  const auto time =
      static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  SetLanes<uint64_t>(warp, i->d, [=](int) { return time; });
  return i + 1;
}

const Instruction* NoOperation(Warp&, const Instruction* i) { return i + 1; }

}  // namespace ptx
}  // namespace cudasim
