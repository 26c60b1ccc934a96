// atom and red: lanes one after the other, atomically for other blocks, which run at the same time.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "cudasim/float_formats.h"
#include "tools/cudasim/ptx/addresses.h"
#include "tools/cudasim/ptx/bits.h"
#include "tools/cudasim/ptx/memory.h"

namespace cudasim {
namespace ptx {
namespace {

// T: unsigned; F gives the new value of the old one and the operands.
template <typename T, typename F>
const Instruction* Atomic(Warp& warp, const Instruction* i) {
  Addresses addresses;
  ResolveAny(warp, i, sizeof(T), &addresses);
  const T* const b = warp.Lanes<T>(i->b);
  const T* const c = warp.Lanes<T>(i->c);
  T* const d = warp.Lanes<T>(i->d);
  for (int lane : LanesOf(warp.mask)) {
    auto* const place = reinterpret_cast<T*>(addresses.at[lane]);
    T old = __atomic_load_n(place, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(place, &old, F{}(old, b[lane], c[lane]), true,
                                        __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
    }
    if (i->count != 0) d[lane] = old;
  }
  return warp.AfterAccess(i);
}

template <typename T, typename F>
Handler Make(F) {
  return &Atomic<T, F>;
}

// Through the operation of the same name, on bits.
template <typename T, typename Value, typename F>
Handler MakeOf(F) {
  return Make<T>([](T old, T b, T) -> T {
    return std::bit_cast<T>(
        static_cast<Value>(F{}(std::bit_cast<Value>(old), std::bit_cast<Value>(b))));
  });
}

template <typename T>
Handler ForBits(std::string_view operation) {
  if (operation == "and") return Make<T>([](T old, T b, T) -> T { return old & b; });
  if (operation == "or") return Make<T>([](T old, T b, T) -> T { return old | b; });
  if (operation == "xor") return Make<T>([](T old, T b, T) -> T { return old ^ b; });
  if (operation == "exch") return Make<T>([](T, T b, T) -> T { return b; });
  if (operation == "cas") return Make<T>([](T old, T b, T c) -> T { return old == b ? c : old; });
  return nullptr;
}

template <typename Value>
Handler ForInteger(std::string_view operation) {
  using T = std::make_unsigned_t<Value>;
  if (operation == "add") return Make<T>([](T old, T b, T) -> T { return old + b; });
  if (operation == "inc") return Make<T>([](T old, T b, T) -> T { return old >= b ? 0 : old + 1; });
  if (operation == "dec") {
    return Make<T>([](T old, T b, T) -> T { return old == 0 || old > b ? b : old - 1; });
  }
  if (operation == "min") {
    return MakeOf<T, Value>([](Value old, Value b) { return std::min(old, b); });
  }
  if (operation == "max") {
    return MakeOf<T, Value>([](Value old, Value b) { return std::max(old, b); });
  }
  return nullptr;
}

template <typename Value>
Handler ForFloat(std::string_view operation) {
  if (operation != "add") return nullptr;
  return MakeOf<BitsType<Value>, Value>([](Value old, Value b) { return Canonical(old + b); });
}

// Sums of small floats, alone or in pairs, rounded once.
template <double (*kValue)(uint16_t), uint16_t (*kRound)(double)>
uint16_t AddSmall(uint16_t a, uint16_t b) {
  return kRound(MultiplyAddToOdd(kValue(a), 1, kValue(b)));
}
double HalfValue(uint16_t bits) { return HalfToFloat(bits); }
double BfloatValue(uint16_t bits) { return Bf16ToFloat(bits); }

template <double (*kValue)(uint16_t), uint16_t (*kRound)(double)>
Handler ForSmall(std::string_view operation, bool pair) {
  if (operation != "add") return nullptr;
  if (!pair) {
    return Make<uint16_t>(
        [](uint16_t old, uint16_t b, uint16_t) { return AddSmall<kValue, kRound>(old, b); });
  }
  return Make<uint32_t>([](uint32_t old, uint32_t b, uint32_t) -> uint32_t {
    const auto high = AddSmall<kValue, kRound>(old >> 16, b >> 16);
    return uint32_t{high} << 16 | AddSmall<kValue, kRound>(old & 0xffff, b & 0xffff);
  });
}

}  // namespace

Handler AtomicHandler(std::string_view operation, Type type) {
  const bool bits = type == Type::kB16 || type == Type::kB32 || type == Type::kB64;
  switch (type) {
    case Type::kB16:
    case Type::kU16:
      return ForBits<uint16_t>(operation);
    case Type::kB32:
    case Type::kU32:
      if (Handler found = ForBits<uint32_t>(operation); found != nullptr || bits) return found;
      return ForInteger<uint32_t>(operation);
    case Type::kB64:
    case Type::kU64:
      if (Handler found = ForBits<uint64_t>(operation); found != nullptr || bits) return found;
      return ForInteger<uint64_t>(operation);
    case Type::kS32:
      return ForInteger<int32_t>(operation);
    case Type::kS64:
      return ForInteger<int64_t>(operation);
    case Type::kF32:
      return ForFloat<float>(operation);
    case Type::kF64:
      return ForFloat<double>(operation);
    case Type::kF16:
    case Type::kF16x2:
      return ForSmall<HalfValue, DoubleToHalf>(operation, type == Type::kF16x2);
    case Type::kBf16:
    case Type::kBf16x2:
      return ForSmall<BfloatValue, DoubleToBf16>(operation, type == Type::kBf16x2);
    default:
      return nullptr;
  }
}

}  // namespace ptx
}  // namespace cudasim
