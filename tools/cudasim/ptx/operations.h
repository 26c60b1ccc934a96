// What computes lane by lane: a table from opcodes to handlers, made of plain functions of one
// lane's values.
#ifndef CUDASIM_PTX_OPERATIONS_H_
#define CUDASIM_PTX_OPERATIONS_H_

#include <immintrin.h>

#include <algorithm>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tools/cudasim/ptx/warp.h"

namespace cudasim {
namespace ptx {

struct Operation {
  Handler run = nullptr;
  Width result = Width::kPred;
  Width arguments[3] = {};
  int count = 0;
};

namespace operations_internal {

// A lane's values of 8 bits are kept in 16.
template <typename T>
struct Stored {
  using Type = T;
};
template <>
struct Stored<uint8_t> {
  using Type = uint16_t;
};
template <>
struct Stored<int8_t> {
  using Type = int16_t;
};
template <typename T>
using StoredType = typename Stored<T>::Type;

template <typename T>
constexpr Width WidthFor() {
  if (std::is_same_v<T, bool>) return Width::kPred;
  return sizeof(T) <= 2 ? Width::k16 : sizeof(T) == 4 ? Width::k32 : Width::k64;
}

// The lanes for which holds(k).
template <size_t kBytes, typename F>
inline __attribute__((always_inline)) uint32_t Vote(F holds) {
  uint32_t lanes = 0;
  if constexpr (kBytes == 8) {
    alignas(64) int64_t votes[kLanes];
#pragma GCC ivdep
    for (int k = 0; k < kLanes; ++k) votes[k] = holds(k) ? -1 : 0;
    for (int v = 0; v < 8; ++v) {
      const __m256d four = _mm256_load_pd(reinterpret_cast<const double*>(votes) + 4 * v);
      lanes |= static_cast<uint32_t>(_mm256_movemask_pd(four)) << (4 * v);
    }
  } else {
    alignas(64) int32_t votes[kLanes];
#pragma GCC ivdep
    for (int k = 0; k < kLanes; ++k) votes[k] = holds(k) ? -1 : 0;
    for (int v = 0; v < 4; ++v) {
      const __m256 eight = _mm256_load_ps(reinterpret_cast<const float*>(votes) + 8 * v);
      lanes |= static_cast<uint32_t>(_mm256_movemask_ps(eight)) << (8 * v);
    }
  }
  return lanes;
}

template <typename F, typename R, typename... A>
struct Lanewise {
  template <int kIndex>
  using Argument = std::tuple_element_t<kIndex, std::tuple<A...>>;

  static const Instruction* Run(Warp& warp, const Instruction* i) {
    const Slot slots[] = {i->a, i->b, i->c};
    return [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
      const std::tuple<const StoredType<A>*...> from(warp.Lanes<StoredType<A>>(slots[kIndex])...);
      const auto value = [=](int k) { return F{}(static_cast<A>(std::get<kIndex>(from)[k])...); };
      if constexpr (std::is_same_v<R, bool>) {
        SetPredicate(warp, i->d, Vote<sizeof(Argument<0>)>(value));
      } else {
        SetLanes<StoredType<R>>(warp, i->d, [=](int k) { return StoredType<R>(value(k)); });
      }
      return i + 1;
    }
    (std::index_sequence_for<A...>());
  }
};

}  // namespace operations_internal

class OperationTable {
 public:
  // The operation of a name such as "add.s32": an opcode without modifiers for rounding. Null if
  // there is none.
  const Operation* Find(std::string_view name) const {
    const auto found = operations_.find(name);
    return found != operations_.end() ? &found->second : nullptr;
  }

  // A function without captures of one lane's values, as [](float a, float b) { return a + b; }.
  template <typename F>
  void Define(const std::string& name, F) {
    DefineAs<F>(name, &F::operator());
  }
  // An operation on whole warps.
  void DefineHandler(const std::string& name, Handler run, Width result,
                     std::initializer_list<Width> arguments) {
    Operation& operation =
        operations_[name] = {run, result, {}, static_cast<int>(arguments.size())};
    std::copy(arguments.begin(), arguments.end(), operation.arguments);
  }
  void Alias(const std::string& name, const std::string& same) {
    operations_[name] = operations_.at(same);
  }

 private:
  template <typename F, typename R, typename... A>
  void DefineAs(const std::string& name, R (F::*)(A...) const) {
    using operations_internal::WidthFor;
    operations_[name] = {&operations_internal::Lanewise<F, R, A...>::Run,
                         WidthFor<R>(),
                         {WidthFor<A>()...},
                         static_cast<int>(sizeof...(A))};
  }

  std::map<std::string, Operation, std::less<>> operations_;
};

// All operations; made at the first use.
const OperationTable& Operations();

// The parts of the table.
void DefineArithmetic(OperationTable* table);
void DefineComparisons(OperationTable* table);
void DefineConversions(OperationTable* table);
void DefineSmallFloats(OperationTable* table);

}  // namespace ptx
}  // namespace cudasim

#endif  // CUDASIM_PTX_OPERATIONS_H_
