// Instructions by which the lanes of a warp exchange values, and matrix products.
#ifndef CUDASIM_PTX_COLLECTIVES_H_
#define CUDASIM_PTX_COLLECTIVES_H_

#include <string_view>

#include "tools/cudasim/ptx/program.h"

namespace cudasim {
namespace ptx {

// Lets lanes that wait elsewhere come to this instruction, too: those that run may be ahead of
// them, even by a turn of a loop. Returns what runs then; null if all lanes wait for others. Those
// of `wanted` must not exit instead.
const Instruction* LetOthersCatchUp(Warp& warp, const Instruction* i, uint32_t wanted = 0);
[[noreturn]] void FailMissingLane(const Warp& warp, const Instruction* i, int lane, int missing);

// d = the value, a = the source, b = lane or distance, c = clamp and segments; extra: the slots of
// the members' mask and of the predicate (if count is 2).
Handler ShuffleHandler(std::string_view mode);
// d = the result, a = the predicate (option 1: negated), c = the members' mask.
Handler VoteHandler(std::string_view mode);
// d = lanes, a = the value, c = the members' mask; extra: the predicate's slot (if count is 1).
Handler MatchHandler(std::string_view mode, Type type);
// d = the result, a = the value, c = the members' mask.
Handler ReduceHandler(std::string_view operation, Type type);
const Instruction* ActiveMask(Warp& warp, const Instruction* i);  // d
// d and, as a further slot, a predicate: the lowest lane of the members' mask c.
const Instruction* Elect(Warp& warp, const Instruction* i);
// Members' mask in c.
const Instruction* SynchronizeWarp(Warp& warp, const Instruction* i);

// `count` further slots for 8 x 8 matrices of 16 bits, a = the rows' addresses in shared memory (32
// bits), to which imm is added; option 1: transposed.
const Instruction* LoadMatrices(Warp& warp, const Instruction* i);

// D = A B + C. Further slots: of D, A, B, C. The fragments' layouts are PTX's.
struct MatrixShape {
  int m, n, k;
  Type a, b, c, d;
  int registers_d, registers_a, registers_b, registers_c;
};
// Of "m16n8k16" with these types; null if there is none.
const MatrixShape* FindMatrixShape(std::string_view shape, Type d, Type a, Type b, Type c);
Handler MatrixHandler(const MatrixShape& shape);  // data: the shape

// How mma adds floating-point products: each by a fused multiply-add, in ascending order; or as
// tensor cores do, measured by MMA-Sim (arXiv 2511.10909): the addend and eight products (of tf32,
// four) are aligned to the largest exponent, cut to 24 bits of fraction, added, and rounded towards
// zero, on Ampere; on Hopper the addend and all products of the instruction, with 25 bits.
// Process-wide; read when a kernel is decoded and when it runs.
enum class MatrixSums { kFused, kAmpere, kHopper };
extern MatrixSums matrix_sums;

}  // namespace ptx
}  // namespace cudasim

#endif  // CUDASIM_PTX_COLLECTIVES_H_
