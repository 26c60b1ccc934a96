#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/radix_sort.cuh"
#include "kernels/index/index.h"

namespace lockstep::cuda {
namespace {

// ---- Gathering ----

struct Steps {
  int64_t outer, picked, inner;  // of the index, in elements
};

// y [O, n, inner] from x [O, v, inner], one unit per thread; no shared memory. A unit is an
// element, or several side by side that one index picks. An index outside of [0, v) cannot be
// reported to the host: all bytes of its unit are `missing`.
template <class Unit>
__global__ void GatherKernel(const Unit* x, const int64_t* index, Steps steps, int64_t units,
                             int64_t v, int64_t n, int64_t inner, int missing, Unit* y) {
  const int64_t at = GlobalThread();
  if (at >= units) return;
  const int64_t row = at / inner, i = at - row * inner, o = row / n, j = row - o * n;
  const int64_t id = index[o * steps.outer + j * steps.picked + i * steps.inner];
  Unit out;
  if (id >= 0 && id < v) {
    out = x[(o * v + id) * inner + i];
  } else {
    memset(&out, missing, sizeof(out));
  }
  y[at] = out;
}

template <class Unit>
void GatherUnits(Stream stream, const Tensor& x, const Tensor& index, const Tensor& y) {
  const int64_t per_unit = static_cast<int64_t>(sizeof(Unit)) / SizeOf(y.dtype());
  const Shape& steps = index.strides();
  const int64_t units = y.numel() / per_unit;
  // NaN in every floating dtype; of bools, false.
  const int missing = y.dtype() == DType::kBool ? 0 : 0xff;
  LaunchThreads({"gather", x, index}, GatherKernel<Unit>, units, stream, Units<const Unit>(x),
                Data<int64_t>(index), Steps{steps[0], steps[1], steps[2]}, units, x.dim(1),
                y.dim(1), y.dim(2) / per_unit, missing, Units<Unit>(y));
}

void GatherCuda(Stream stream, const Tensor& x, const Tensor& index, const Tensor& y) {
  if (y.numel() == 0) return;
  const int64_t element = SizeOf(y.dtype());
  int64_t unit = element;
  const auto fits = [&](int64_t bytes) {
    return y.dim(2) * element % bytes == 0 &&
           reinterpret_cast<uintptr_t>(x.raw_data()) % bytes == 0 &&
           reinterpret_cast<uintptr_t>(y.raw_data()) % bytes == 0;
  };
  while (index.strides()[2] == 0 && unit < 16 && fits(2 * unit)) unit *= 2;
  DispatchWideUnit(unit,
                   [&]<class Unit>(TypeTag<Unit>) { GatherUnits<Unit>(stream, x, index, y); });
}

// ---- Scattering ----
//
// The elements of the index are sorted by where they point to: those for one place are a run, by
// ascending j. No atomics, and an order that depends only on the index.

struct Targets {
  const int64_t* index;  // [O, n, inner]
  const int* places;     // sorted; null: in their order
  int64_t elements, v, n, inner;

  __device__ int64_t Place(int64_t i) const { return places != nullptr ? places[i] : i; }
  // Where in y [O, v, inner] the element of the index points to; -1: nowhere.
  __device__ int64_t Of(int64_t place) const {
    const int64_t id = index[place];
    if (id < 0 || id >= v) return -1;
    return (place / (n * inner) * v + id) * inner + place % inner;
  }
  __device__ bool Same(int64_t i, int64_t target) const {
    return i >= 0 && i < elements && Of(Place(i)) == target;
  }
};

// The sum of each run is added to its place, by the thread of its first element. Grid: one thread
// per element of the index. No shared memory.
template <class T>
__global__ void AddRunsKernel(Targets targets, const T* source, T* y) {
  int64_t i = GlobalThread();
  if (i >= targets.elements) return;
  const int64_t target = targets.Of(targets.Place(i));
  if (target < 0 || targets.Same(i - 1, target)) return;
  float sum = 0;
  for (; targets.Same(i, target); ++i) sum += ToFloat(source[targets.Place(i)]);
  y[target] = Convert<T>(ToFloat(y[target]) + sum);
}

// The last element of each run goes to its place; or, if `back`, comes from there, and all others
// become 0. Grid: one thread per element of the index. No shared memory.
template <class Unit>
__global__ void MoveRunsKernel(Targets targets, bool back, Unit* source, Unit* y) {
  const int64_t i = GlobalThread();
  if (i >= targets.elements) return;
  const int64_t place = targets.Place(i), target = targets.Of(place);
  const bool counts = target >= 0 && !targets.Same(i + 1, target);
  if (back) {
    source[place] = counts ? y[target] : Unit(0);
  } else if (counts) {
    y[target] = source[place];
  }
}

// Calls f(targets) for an index of [O, n, inner] into y [O, v, inner].
template <class F>
void WithTargets(Stream stream, const Tensor& index, int64_t v, const F& f) {
  const int64_t elements = index.numel(), n = index.dim(1), inner = index.dim(2);
  if (elements == 0) return;
  Targets targets{Data<int64_t>(index), nullptr, elements, v, n, inner};
  if (n == 1) return f(targets);  // all point to different places
  const LaunchName name("scatter_sort", index);
  RadixSort sort(name, stream, elements);
  sort.By(Data<int64_t>(index), 0, v, false);
  sort.ByColumn(n, inner);
  targets.places = Data<int>(sort.places());
  f(targets);
}

void ScatterAddCuda(Stream stream, const Tensor& index, const Tensor& source, const Tensor& y) {
  WithTargets(stream, index, y.dim(1), [&](const Targets& targets) {
    DispatchFloat("scatter_add", y.dtype(), [&]<class T>(TypeTag<T>) {
      LaunchThreads({"scatter_add", index, y}, AddRunsKernel<T>, targets.elements, stream, targets,
                    Data<T>(source), Data<T>(y));
    });
  });
}

void MoveRuns(Stream stream, bool back, const Tensor& index, const Tensor& source,
              const Tensor& y) {
  WithTargets(stream, index, y.dim(1), [&](const Targets& targets) {
    DispatchUnit(SizeOf(y.dtype()), [&]<class Unit>(TypeTag<Unit>) {
      LaunchThreads({"scatter", index, y}, MoveRunsKernel<Unit>, targets.elements, stream, targets,
                    back, Units<Unit>(source), Units<Unit>(y));
    });
  });
}

void ScatterCuda(Stream stream, const Tensor& index, const Tensor& source, const Tensor& y) {
  MoveRuns(stream, false, index, source, y);
}
void ScatterSourceGradientCuda(Stream stream, const Tensor& index, const Tensor& dy,
                               const Tensor& dsource) {
  MoveRuns(stream, true, index, dsource, dy);
}

LS_REGISTER(gather_slot, DeviceType::kCuda, GatherCuda);
LS_REGISTER(scatter_slot, DeviceType::kCuda, ScatterCuda);
LS_REGISTER(scatter_source_gradient, DeviceType::kCuda, ScatterSourceGradientCuda);
LS_REGISTER(scatter_add_slot, DeviceType::kCuda, ScatterAddCuda);

}  // namespace
}  // namespace lockstep::cuda
