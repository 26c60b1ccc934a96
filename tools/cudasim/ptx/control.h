// Instructions that decide what runs next, and those that act on other instructions.
#ifndef CUDASIM_PTX_CONTROL_H_
#define CUDASIM_PTX_CONTROL_H_

#include "tools/cudasim/ptx/program.h"

namespace cudasim {
namespace ptx {

// At the beginning of each block: lanes that waited here join, and those at a smaller instruction
// go first; in a random order, not always.
const Instruction* Meet(Warp& warp, const Instruction* i);
const Instruction* Branch(Warp& warp, const Instruction* i);  // next
// The lanes whose predicate a holds (option 1: does not) go to `next`.
const Instruction* BranchIf(Warp& warp, const Instruction* i);
// The lanes whose predicate a holds (option 1: does not) leave the function; a kernel's lanes exit.
const Instruction* ReturnIf(Warp& warp, const Instruction* i);
const Instruction* Return(Warp& warp, const Instruction* i);
const Instruction* Exit(Warp& warp, const Instruction* i);
const Instruction* BranchByIndex(Warp& warp, const Instruction* i);  // a, data: a table
const Instruction* CallFunction(Warp& warp, const Instruction* i);   // data: a Call
// d = the address of a variable in the frame at imm, as a local one of 64 bits.
const Instruction* FrameAddress(Warp& warp, const Instruction* i);

// Runs the next imm instructions for the lanes whose predicate a holds (option 1: does not).
const Instruction* Guard(Warp& warp, const Instruction* i);
// Runs the next instruction with these bits of the processor's MXCSR: rounding modes, and flushing
// of subnormal numbers.
const Instruction* WithMode(Warp& warp, const Instruction* i);
inline constexpr uint32_t kRoundDown = 0x2000, kRoundUp = 0x4000, kRoundToZero = 0x6000;
inline constexpr uint32_t kFlushSubnormals = 0x8040;

// a = the barrier, b = the number of threads (0: all of the block). With the predicate c of option
// 1 (2: negated) they vote.
const Instruction* Barrier(Warp& warp, const Instruction* i);
const Instruction* ArriveAtBarrier(Warp& warp, const Instruction* i);
// d = what the threads at barrier a voted: option 0: how many, 1: all, 2: any.
const Instruction* BarrierVotes(Warp& warp, const Instruction* i);

const Instruction* Trap(Warp& warp, const Instruction* i);
const Instruction* Sleep(Warp& warp, const Instruction* i);
const Instruction* Fence(Warp& warp, const Instruction* i);  // option 1: for the block alone
const Instruction* Clock(Warp& warp, const Instruction* i);  // d of 64 bits
const Instruction* NoOperation(Warp& warp, const Instruction* i);

// Functions that every program may call: vprintf, __assertfail, malloc, free. Null: unknown.
using Builtin = void (*)(Warp& warp, const Instruction* i);
Builtin FindBuiltin(std::string_view name);

}  // namespace ptx
}  // namespace cudasim

#endif  // CUDASIM_PTX_CONTROL_H_
