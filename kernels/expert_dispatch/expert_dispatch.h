// From tokens to the rows that experts multiply, and back.
#pragma once

#include "core/dispatcher.h"
#include "core/tensor.h"

namespace lockstep {

// The (token, slot) pairs of a batch of N tokens with k experts each, sorted by expert; pairs of
// the same expert keep the order of tokens and slots. No pair is dropped. All on one device, which
// knows the counts and need not tell the host.
struct ExpertOrder {
  Tensor offsets;  // i32 [E + 1]: expert e has the rows offsets[e] ... offsets[e + 1] - 1
  Tensor rows;     // i32 [N k]: the pair of a row, as token * k + slot
  Tensor places;   // i32 [N, k]: the row of a pair
};

namespace ops {

// experts: i32 [N, k], each in [0, n_expert). A stable counting sort, without atomics.
ExpertOrder SortByExpert(const Tensor& experts, int64_t n_expert);

// x [N, C] -> [N k, C]: each row is a copy of its token's. In backward the k rows of a token are
// added in the order of its slots, in f32 or wider. Saves only the order.
Tensor Dispatch(const Tensor& x, const ExpertOrder& order);

// The inverse: y [N k, C], gates [N, k] (f32; f64 with f64) -> [N, C], the sum of gate * row over
// the slots of a token, in their order, in f32 or wider, rounded once. Saves y, gates and the
// order.
Tensor Combine(const Tensor& y, const Tensor& gates, const ExpertOrder& order);

// load (i64 [E]) += how many rows each expert has. Stays on the device.
void CountRows(const ExpertOrder& order, const Tensor& load);

}  // namespace ops

struct SortByExpertArgs {
  Tensor experts;                // i32 [N, k]
  Tensor offsets, rows, places;  // ExpertOrder's, written
};
inline constinit Slot<void(const SortByExpertArgs&)> sort_by_expert{"sort_by_expert"};

// to[row] = gate of the row's pair * from[its token], or += that.
struct GatherRowsArgs {
  Tensor from;   // [N, C]
  Tensor gates;  // [N, k]; undefined: all 1
  Tensor rows;   // i32 [N k]
  int64_t k = 1;
  Tensor to;  // [N k, C], written
  bool accumulate = false;
};
inline constinit Slot<void(const GatherRowsArgs&)> gather_rows{"gather_rows"};

// to[token] = the sum over its slots of gate * from[row of the pair], or += that.
struct SumSlotsArgs {
  Tensor from;    // [N k, C]
  Tensor gates;   // [N, k]; undefined: all 1
  Tensor places;  // i32 [N, k]
  Tensor to;      // [N, C], written
  bool accumulate = false;
};
inline constinit Slot<void(const SumSlotsArgs&)> sum_slots{"sum_slots"};

// dgates[token, slot] = <dy[token], rows[row of the pair]>, or += that.
struct GateGradientsArgs {
  Tensor rows;    // [N k, C]
  Tensor dy;      // [N, C]
  Tensor places;  // i32 [N, k]
  Tensor dgates;  // [N, k], written
  bool accumulate = false;
};
inline constinit Slot<void(const GateGradientsArgs&)> gate_gradients{"gate_gradients"};

// load[e] += offsets[e + 1] - offsets[e].
inline constinit Slot<void(const Tensor& offsets, const Tensor& load)> count_rows{"count_rows"};

}  // namespace lockstep
