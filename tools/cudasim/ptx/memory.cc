// Loads and stores. Each has a fast path for lanes that access consecutive values.
#include "tools/cudasim/ptx/memory.h"

#include <immintrin.h>

#include <cstring>

#include "tools/cudasim/ptx/addresses.h"

namespace cudasim {
namespace ptx {
namespace {

// Whether all 32 lanes run and access values of kBytes one after the other.
template <typename A, int kBytes>
inline bool IsContiguous(const Warp& warp, const A* a) {
  if (warp.mask != kAllLanes) return false;
  const A first = a[0];
  A difference = 0;
  for (int k = 0; k < kLanes; ++k) difference |= a[k] ^ (first + static_cast<A>(k * kBytes));
  return difference == 0;
}

// Where the contiguous values lie; null if the usual checks must say what is wrong.
template <Space kSpace, typename A>
inline std::byte* ContiguousAt(const Warp& warp, const Instruction* i, const A* a, uint32_t bytes) {
  const auto at = static_cast<A>(a[0] + static_cast<A>(i->imm));
  if (at % bytes != 0) return nullptr;
  if constexpr (kSpace == Space::kShared) {
    if (warp.block->races() != nullptr) return nullptr;
    const uint64_t end = uint64_t{at} + kLanes * bytes;
    if (at > end || end > warp.block->shared_bytes()) return nullptr;
    return warp.block->shared() + at;
  } else {
    if (!warp.block->CachedExtent(i).Contains(at, kLanes * bytes)) return nullptr;
    return reinterpret_cast<std::byte*>(at);
  }
}

// Global and shared memory have handlers of their own; the other spaces, and shared memory through
// addresses of 64 bits, decide as they run.
template <Space kSpace, typename A>
inline void ResolveIn(Warp& warp, const Instruction* i, uint32_t bytes, Addresses* addresses) {
  if constexpr (kSpace == Space::kGeneric) {
    ResolveAny(warp, i, bytes, addresses);
  } else {
    Resolve<kSpace, A>(warp, i, bytes, addresses);
  }
}

// M: the type in memory; R: in registers.
template <Space kSpace, typename A, typename M, typename R>
const Instruction* Load(Warp& warp, const Instruction* i) {
  if constexpr (kSpace != Space::kGeneric && sizeof(M) == sizeof(R)) {
    const A* const a = warp.Lanes<A>(i->a);
    if (IsContiguous<A, sizeof(M)>(warp, a)) {
      if (const std::byte* from = ContiguousAt<kSpace>(warp, i, a, sizeof(M)); from != nullptr) {
        std::memcpy(warp.Lanes<R>(i->d), from, kLanes * sizeof(M));
        return warp.AfterAccess(i);
      }
    }
  }
  Addresses addresses;
  ResolveIn<kSpace, A>(warp, i, sizeof(M), &addresses);
  R values[kLanes];
  for (int k = 0; k < kLanes; ++k) values[k] = static_cast<R>(addresses.Load<M>(k));
  SetLanes<R>(warp, i->d, [&](int k) { return values[k]; });
  return warp.AfterAccess(i);
}

template <Space kSpace, typename A, typename M, typename R>
const Instruction* LoadVector(Warp& warp, const Instruction* i) {
  Addresses addresses;
  ResolveIn<kSpace, A>(warp, i, sizeof(M) * i->count, &addresses);
  const Slot* const slots = warp.program->slots.data() + i->extra;
  if constexpr (sizeof(M) == 4 && sizeof(R) == 4) {
    if (i->count == 4 && warp.mask == kAllLanes) {
      float* const out[] = {warp.Lanes<float>(slots[0]), warp.Lanes<float>(slots[1]),
                            warp.Lanes<float>(slots[2]), warp.Lanes<float>(slots[3])};
      for (int k = 0; k < kLanes; k += 4) {
        __m128 a = addresses.Load<__m128>(k), b = addresses.Load<__m128>(k + 1);
        __m128 c = addresses.Load<__m128>(k + 2), d = addresses.Load<__m128>(k + 3);
        _MM_TRANSPOSE4_PS(a, b, c, d);
        _mm_storeu_ps(out[0] + k, a);
        _mm_storeu_ps(out[1] + k, b);
        _mm_storeu_ps(out[2] + k, c);
        _mm_storeu_ps(out[3] + k, d);
      }
      return warp.AfterAccess(i);
    }
  }
  for (int j = 0; j < i->count; ++j) {
    R* const out = warp.Lanes<R>(slots[j]);
    if (!warp.partial) {
      for (int k = 0; k < kLanes; ++k) out[k] = static_cast<R>(addresses.Load<M>(k));
    } else {
      for (int k : LanesOf(warp.mask)) out[k] = static_cast<R>(addresses.Load<M>(k));
    }
    for (uintptr_t& at : addresses.at) at += sizeof(M);
  }
  return warp.AfterAccess(i);
}

template <Space kSpace, typename A, typename M, typename R>
const Instruction* Store(Warp& warp, const Instruction* i) {
  const R* const values = warp.Lanes<R>(i->d);
  if constexpr (kSpace != Space::kGeneric && sizeof(M) == sizeof(R)) {
    const A* const a = warp.Lanes<A>(i->a);
    if (IsContiguous<A, sizeof(M)>(warp, a)) {
      if (std::byte* to = ContiguousAt<kSpace>(warp, i, a, sizeof(M)); to != nullptr) {
        std::memcpy(to, values, kLanes * sizeof(M));
        return warp.AfterAccess(i);
      }
    }
  }
  Addresses addresses;
  ResolveIn<kSpace, A>(warp, i, sizeof(M), &addresses);
  for (int k : LanesOf(warp.mask)) addresses.Store(k, static_cast<M>(values[k]));
  return warp.AfterAccess(i);
}

template <Space kSpace, typename A, typename M, typename R>
const Instruction* StoreVector(Warp& warp, const Instruction* i) {
  Addresses addresses;
  ResolveIn<kSpace, A>(warp, i, sizeof(M) * i->count, &addresses);
  const Slot* const slots = warp.program->slots.data() + i->extra;
  if constexpr (sizeof(M) == 4 && sizeof(R) == 4) {
    if (i->count == 4 && warp.mask == kAllLanes) {
      for (int k = 0; k < kLanes; k += 4) {
        __m128 a = _mm_loadu_ps(warp.Lanes<float>(slots[0]) + k);
        __m128 b = _mm_loadu_ps(warp.Lanes<float>(slots[1]) + k);
        __m128 c = _mm_loadu_ps(warp.Lanes<float>(slots[2]) + k);
        __m128 d = _mm_loadu_ps(warp.Lanes<float>(slots[3]) + k);
        _MM_TRANSPOSE4_PS(a, b, c, d);
        addresses.Store(k, a);
        addresses.Store(k + 1, b);
        addresses.Store(k + 2, c);
        addresses.Store(k + 3, d);
      }
      return warp.AfterAccess(i);
    }
  }
  for (int k : LanesOf(warp.mask)) {
    M values[8];
    for (int j = 0; j < i->count; ++j) values[j] = static_cast<M>(warp.Lanes<R>(slots[j])[k]);
    std::memcpy(reinterpret_cast<void*>(addresses.at[k]), values, sizeof(M) * i->count);
  }
  return warp.AfterAccess(i);
}

template <typename M, typename R>
const Instruction* LoadParameter(Warp& warp, const Instruction* i) {
  M value;
  std::memcpy(&value, warp.block->parameters() + i->imm, sizeof(M));
  SetLanes<R>(warp, i->d, [value](int) { return static_cast<R>(value); });
  return i + 1;
}

// Calls f.operator()<M, R>() for the types of a load, whose registers are at least as wide as what
// it loads; with `is_signed` the rest is the sign. Stores need no sign.
template <typename F>
Handler ForTypes(int bytes, bool is_signed, Width width, F f) {
  const auto with = [&]<typename M>() -> Handler {
    if (width == Width::k64) return f.template operator()<M, uint64_t>();
    if constexpr (sizeof(M) <= 4) {
      if (width == Width::k32) return f.template operator()<M, uint32_t>();
    }
    if constexpr (sizeof(M) <= 2) {
      if (width == Width::k16) return f.template operator()<M, uint16_t>();
    }
    return nullptr;
  };
  switch (bytes) {
    case 1:
      return is_signed ? with.template operator()<int8_t>() : with.template operator()<uint8_t>();
    case 2:
      if (width == Width::k16) return f.template operator()<uint16_t, uint16_t>();
      return is_signed ? with.template operator()<int16_t>() : with.template operator()<uint16_t>();
    case 4:
      if (width == Width::k32) return f.template operator()<uint32_t, uint32_t>();
      return is_signed ? with.template operator()<int32_t>() : with.template operator()<uint32_t>();
    case 8:
      return with.template operator()<uint64_t>();
  }
  return nullptr;
}

// Calls f.operator()<kSpace, A>().
template <typename F>
Handler ForSpace(Space space, bool wide, F f) {
  if (space == Space::kGlobal || space == Space::kConst) {
    return wide ? f.template operator()<Space::kGlobal, uint64_t>() : nullptr;
  }
  if (space == Space::kShared && !wide) return f.template operator()<Space::kShared, uint32_t>();
  return wide ? f.template operator()<Space::kGeneric, uint64_t>() : nullptr;
}

}  // namespace

Handler LoadHandler(Space space, bool wide, bool vector, Type type, Width width) {
  return ForSpace(space, wide, [&]<Space kSpace, typename A>() {
    return ForTypes(BytesOf(type), IsSigned(type), width, [&]<typename M, typename R>() -> Handler {
      return vector ? &LoadVector<kSpace, A, M, R> : &Load<kSpace, A, M, R>;
    });
  });
}

Handler StoreHandler(Space space, bool wide, bool vector, Type type, Width width) {
  if (space == Space::kParam || space == Space::kConst) return nullptr;
  return ForSpace(space, wide, [&]<Space kSpace, typename A>() {
    return ForTypes(BytesOf(type), false, width, [&]<typename M, typename R>() -> Handler {
      return vector ? &StoreVector<kSpace, A, M, R> : &Store<kSpace, A, M, R>;
    });
  });
}

Handler ParameterHandler(Type type, Width width) {
  return ForTypes(BytesOf(type), IsSigned(type), width,
                  [&]<typename M, typename R>() -> Handler { return &LoadParameter<M, R>; });
}

}  // namespace ptx
}  // namespace cudasim
