// Atomics and fences. Here all are sequentially consistent; on a GPU atomics are relaxed, and only
// fences order memory.
#ifndef CUDASIM_ATOMICS_H_
#define CUDASIM_ATOMICS_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cudasim/thread.h"

namespace cudasim {

void Fence();

template <typename T>
using BitsOf = std::conditional_t<sizeof(T) == 2, uint16_t,
                                  std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;

template <typename To, typename From>
To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// Replaces *address by update(*address); returns the old value.
template <typename T, typename Update>
T AtomicUpdate(T* address, Update update) {
  using Bits = BitsOf<T>;
  auto* bits = reinterpret_cast<Bits __attribute__((may_alias))*>(address);
  Bits old = __atomic_load_n(bits, __ATOMIC_SEQ_CST);
  while (!__atomic_compare_exchange_n(bits, &old, BitCast<Bits>(update(BitCast<T>(old))), false,
                                      __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
  }
  return BitCast<T>(old);
}

template <typename T>
struct Identity {
  using type = T;
};
// Makes atomicAdd(&u64, 1) deduce T only from the pointer.
template <typename T>
using Same = typename Identity<T>::type;

template <typename T>
inline constexpr bool kIsAtomicInt = std::is_integral_v<T> && (sizeof(T) == 4 || sizeof(T) == 8);

}  // namespace cudasim

template <typename T>
T atomicAdd(T* address, cudasim::Same<T> value) {
  if constexpr (cudasim::kIsAtomicInt<T>) {
    return __atomic_fetch_add(address, value, __ATOMIC_SEQ_CST);
  } else {
    return cudasim::AtomicUpdate(address, [&](T old) { return old + value; });
  }
}
template <typename T>
T atomicSub(T* address, cudasim::Same<T> value) {
  static_assert(cudasim::kIsAtomicInt<T> && sizeof(T) == 4, "atomicSub takes int and unsigned");
  return __atomic_fetch_sub(address, value, __ATOMIC_SEQ_CST);
}
template <typename T>
T atomicExch(T* address, cudasim::Same<T> value) {
  static_assert(cudasim::kIsAtomicInt<T> || std::is_same_v<T, float>);
  return cudasim::AtomicUpdate(address, [&](T) { return value; });
}
template <typename T>
T atomicMin(T* address, cudasim::Same<T> value) {
  static_assert(cudasim::kIsAtomicInt<T>, "atomicMin takes integers");
  return cudasim::AtomicUpdate(address, [&](T old) { return value < old ? value : old; });
}
template <typename T>
T atomicMax(T* address, cudasim::Same<T> value) {
  static_assert(cudasim::kIsAtomicInt<T>, "atomicMax takes integers");
  return cudasim::AtomicUpdate(address, [&](T old) { return old < value ? value : old; });
}
inline unsigned atomicInc(unsigned* address, unsigned bound) {
  return cudasim::AtomicUpdate(address, [&](unsigned old) { return old >= bound ? 0u : old + 1; });
}
inline unsigned atomicDec(unsigned* address, unsigned bound) {
  return cudasim::AtomicUpdate(
      address, [&](unsigned old) { return old == 0 || old > bound ? bound : old - 1; });
}
template <typename T>
T atomicAnd(T* address, cudasim::Same<T> value) {
  static_assert(cudasim::kIsAtomicInt<T>);
  return __atomic_fetch_and(address, value, __ATOMIC_SEQ_CST);
}
template <typename T>
T atomicOr(T* address, cudasim::Same<T> value) {
  static_assert(cudasim::kIsAtomicInt<T>);
  return __atomic_fetch_or(address, value, __ATOMIC_SEQ_CST);
}
template <typename T>
T atomicXor(T* address, cudasim::Same<T> value) {
  static_assert(cudasim::kIsAtomicInt<T>);
  return __atomic_fetch_xor(address, value, __ATOMIC_SEQ_CST);
}
template <typename T>
T atomicCAS(T* address, cudasim::Same<T> compare, cudasim::Same<T> value) {
  static_assert(std::is_integral_v<T> && sizeof(T) >= 2,
                "atomicCAS takes integers of 2 bytes and more");
  __atomic_compare_exchange_n(address, &compare, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return compare;
}

// Orders memory only within the block, whose threads run one at a time here anyway.
inline void __threadfence_block() {}
inline void __threadfence() { cudasim::Fence(); }
inline void __threadfence_system() { __threadfence(); }

// Loads and stores with cache hints, which are plain ones here.
template <typename T>
T __ldg(const T* p) {
  return *p;
}
template <typename T>
T __ldca(const T* p) {
  return *p;
}
template <typename T>
T __ldcg(const T* p) {
  return *p;
}
template <typename T>
T __ldcs(const T* p) {
  return *p;
}
template <typename T>
T __ldlu(const T* p) {
  return *p;
}
template <typename T>
T __ldcv(const T* p) {
  return *p;
}
template <typename T>
void __stwb(T* p, cudasim::Same<T> value) {
  *p = value;
}
template <typename T>
void __stcg(T* p, cudasim::Same<T> value) {
  *p = value;
}
template <typename T>
void __stcs(T* p, cudasim::Same<T> value) {
  *p = value;
}
template <typename T>
void __stwt(T* p, cudasim::Same<T> value) {
  *p = value;
}

#endif  // CUDASIM_ATOMICS_H_
