#include <vector>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cpu/simd.h"
#include "kernels/expert_dispatch/expert_dispatch.h"

namespace lockstep::cpu {
namespace {

void SortByExpertCpu(Stream, const SortByExpertArgs& args) {
  const int64_t n = args.experts.numel(), e = args.offsets.numel() - 1;
  const int32_t* experts = args.experts.data<int32_t>();
  int32_t *offsets = args.offsets.data<int32_t>(), *rows = args.rows.data<int32_t>();
  int32_t* places = args.places.data<int32_t>();
  LS_CHECK(n < INT32_MAX, "sort_by_expert: ", n, " choices are more than it can sort (2^31 - 2)");
  std::vector<int32_t> next(static_cast<size_t>(e) + 1);
  for (int64_t i = 0; i < n; ++i) {
    LS_CHECK(experts[i] >= 0 && experts[i] < e, "sort_by_expert: expert ", experts[i],
             " is not one of ", e);
    ++next[experts[i] + 1];
  }
  for (int64_t i = 0; i < e; ++i) next[i + 1] += next[i];
  std::copy(next.begin(), next.end(), offsets);
  for (int64_t i = 0; i < n; ++i) {
    const int32_t row = next[experts[i]]++;
    rows[row] = static_cast<int32_t>(i);
    places[i] = row;
  }
}

// Calls f(T, gate type) for the dtype of the rows.
template <class F>
void Dispatch(const char* op, DType dtype, const F& f) {
  DispatchFloat(op, dtype, [&]<class T>(TypeTag<T> tag) { f(tag, TypeTag<Acc<T>>()); });
}

void GatherRowsCpu(Stream, const GatherRowsArgs& args) {
  const int64_t c = args.from.dim(1), k = args.k;
  Dispatch("gather_rows", args.from.dtype(), [&]<class T, class A>(TypeTag<T>, TypeTag<A>) {
    const T* from = args.from.data<T>();
    const A* gates = args.gates.defined() ? args.gates.data<A>() : nullptr;
    const int32_t* rows = args.rows.data<int32_t>();
    T* to = args.to.data<T>();
    const bool accumulate = args.accumulate;
    VectorisedParallelFor<T>(args.rows.numel(), GrainOf(c), [=](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* x = from + rows[row] / k * c;
        T* y = to + row * c;
        if (gates == nullptr && !accumulate) {
          std::copy(x, x + c, y);
          continue;
        }
        const A gate = gates != nullptr ? gates[rows[row]] : A(1);
        WriteOrAdd(accumulate, 0, c, y, [=](int64_t i) { return gate * Convert<A>(x[i]); });
      }
    });
  });
}

void SumSlotsCpu(Stream, const SumSlotsArgs& args) {
  constexpr int64_t kBlock = 512;
  const int64_t c = args.from.dim(1), k = args.places.dim(1);
  Dispatch("sum_slots", args.from.dtype(), [&]<class T, class A>(TypeTag<T>, TypeTag<A>) {
    const T* from = args.from.data<T>();
    const A* gates = args.gates.defined() ? args.gates.data<A>() : nullptr;
    const int32_t* places = args.places.data<int32_t>();
    T* to = args.to.data<T>();
    const bool accumulate = args.accumulate;
    VectorisedParallelFor<T>(args.to.dim(0), GrainOf(c * k), [=](int64_t begin, int64_t end) {
      A sum[kBlock];
      for (int64_t token = begin; token < end; ++token) {
        for (int64_t first = 0; first < c; first += kBlock) {
          const int64_t n = std::min(kBlock, c - first);
          std::fill(sum, sum + n, A(0));
          for (int64_t slot = 0; slot < k; ++slot) {
            const T* x = from + places[token * k + slot] * c + first;
            const A gate = gates != nullptr ? gates[token * k + slot] : A(1);
            for (int64_t i = 0; i < n; ++i) sum[i] += gate * Convert<A>(x[i]);
          }
          T* y = to + token * c + first;
          WriteOrAdd(accumulate, 0, n, y, [&](int64_t i) { return sum[i]; });
        }
      }
    });
  });
}

void GateGradientsCpu(Stream, const GateGradientsArgs& args) {
  const int64_t c = args.rows.dim(1), k = args.places.dim(1);
  Dispatch("gate_gradients", args.rows.dtype(), [&]<class T, class A>(TypeTag<T>, TypeTag<A>) {
    const T *rows = args.rows.data<T>(), *dy = args.dy.data<T>();
    const int32_t* places = args.places.data<int32_t>();
    A* dgates = args.dgates.data<A>();
    const bool accumulate = args.accumulate;
    VectorisedParallelFor<T>(args.places.numel(), GrainOf(c), [=](int64_t begin, int64_t end) {
      for (int64_t pair = begin; pair < end; ++pair) {
        const T *x = rows + places[pair] * c, *g = dy + pair / k * c;
        const A dot =
            PairwiseSum<A>(0, c, [=](int64_t i) { return Convert<A>(g[i]) * Convert<A>(x[i]); });
        dgates[pair] = accumulate ? dgates[pair] + dot : dot;
      }
    });
  });
}

void CountRowsCpu(Stream, const Tensor& offsets, const Tensor& load) {
  const int32_t* from = offsets.data<int32_t>();
  int64_t* to = load.data<int64_t>();
  for (int64_t e = 0; e < load.numel(); ++e) to[e] += from[e + 1] - from[e];
}

LS_REGISTER(sort_by_expert, DeviceType::kCpu, SortByExpertCpu);
LS_REGISTER(gather_rows, DeviceType::kCpu, GatherRowsCpu);
LS_REGISTER(sum_slots, DeviceType::kCpu, SumSlotsCpu);
LS_REGISTER(gate_gradients, DeviceType::kCpu, GateGradientsCpu);
LS_REGISTER(count_rows, DeviceType::kCpu, CountRowsCpu);

}  // namespace
}  // namespace lockstep::cpu
