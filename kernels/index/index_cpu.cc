#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "kernels/cpu/elementwise.h"
#include "kernels/index/index.h"

namespace lockstep::cpu {
namespace {

void GatherCpu(Stream, const Tensor& x, const Tensor& index, const Tensor& y) {
  if (y.numel() == 0) return;
  const int64_t v = x.dim(1), n = y.dim(1), inner = y.dim(2);
  const Shape& steps = index.strides();
  const int64_t* id = index.data<int64_t>();
  DispatchUnit(SizeOf(x.dtype()), [&]<class Unit>(TypeTag<Unit>) {
    const Unit* in = Units<const Unit>(x);
    Unit* out = Units<Unit>(y);
    ParallelForEach(y.dim(0) * n, GrainOf(inner), [=](int64_t row) {
      const int64_t o = row / n;
      const int64_t* at = id + o * steps[0] + row % n * steps[1];
      const Unit* from = in + o * v * inner;
      Unit* to = out + row * inner;
      if (steps[2] == 0) {
        std::memcpy(to, from + *at * inner, static_cast<size_t>(inner) * sizeof(Unit));
      } else {
        for (int64_t i = 0; i < inner; ++i) to[i] = from[at[i * steps[2]] * inner + i];
      }
    });
  });
}

// Calls f(target, places) for every element of y [O, v, I] that the index [O, J, I] names: where it
// is, and which elements of the index name it, by ascending j.
template <class F>
void ForEachTarget(const Tensor& index, int64_t v, const F& f) {
  const int64_t n = index.dim(1), inner = index.dim(2);
  if (index.numel() == 0) return;
  const int64_t* id = index.data<int64_t>();
  ParallelFor(index.dim(0) * inner, GrainOf(8 * n), [=, &f](int64_t begin, int64_t end) {
    std::vector<int64_t> places(static_cast<size_t>(n));
    for (int64_t column = begin; column < end; ++column) {
      const int64_t o = column / inner, i = column % inner;
      for (int64_t j = 0; j < n; ++j) places[j] = (o * n + j) * inner + i;
      std::stable_sort(places.begin(), places.end(),
                       [=](int64_t a, int64_t b) { return id[a] < id[b]; });
      for (int64_t from = 0, to = 0; from < n; from = to) {
        while (to < n && id[places[to]] == id[places[from]]) ++to;
        f((o * v + id[places[from]]) * inner + i,
          std::span<const int64_t>(places).subspan(from, to - from));
      }
    }
  });
}

void ScatterCpu(Stream, const Tensor& index, const Tensor& source, const Tensor& y) {
  DispatchUnit(SizeOf(y.dtype()), [&]<class Unit>(TypeTag<Unit>) {
    const Unit* in = Units<const Unit>(source);
    Unit* out = Units<Unit>(y);
    ForEachTarget(index, y.dim(1), [=](int64_t target, std::span<const int64_t> places) {
      out[target] = in[places.back()];
    });
  });
}

void ScatterSourceGradientCpu(Stream, const Tensor& index, const Tensor& dy,
                              const Tensor& dsource) {
  DispatchFloat("scatter", dy.dtype(), [&]<class T>(TypeTag<T>) {
    const T* in = dy.data<T>();
    T* out = dsource.data<T>();
    ForEachTarget(index, dy.dim(1), [=](int64_t target, std::span<const int64_t> places) {
      for (const int64_t place : places) out[place] = T{};
      out[places.back()] = in[target];
    });
  });
}

void ScatterAddCpu(Stream, const Tensor& index, const Tensor& source, const Tensor& y) {
  DispatchFloat("scatter_add", y.dtype(), [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const T* in = source.data<T>();
    T* out = y.data<T>();
    ForEachTarget(index, y.dim(1), [=](int64_t target, std::span<const int64_t> places) {
      A sum = 0;
      for (const int64_t place : places) sum += Convert<A>(in[place]);
      out[target] = Convert<T>(Convert<A>(out[target]) + sum);
    });
  });
}

LS_REGISTER(gather_slot, DeviceType::kCpu, GatherCpu);
LS_REGISTER(scatter_slot, DeviceType::kCpu, ScatterCpu);
LS_REGISTER(scatter_source_gradient, DeviceType::kCpu, ScatterSourceGradientCpu);
LS_REGISTER(scatter_add_slot, DeviceType::kCpu, ScatterAddCpu);

}  // namespace
}  // namespace lockstep::cpu
