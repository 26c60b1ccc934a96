// tools/mutate_kernels.py writes this into its copies of the kernels: operators that behave as
// usual, unless CUDASIM_ENVREG0 is their number. So one build holds all mutants of a file. Only the
// simulated GPU has that number in a kernel's %envreg0.
//
// A binary operator becomes two of the same around a tag, which keeps its precedence: a < b -> a <
// mutant::Less<7>{} > b
#pragma once

#include <cstdlib>

namespace mutant {

#ifdef __CUDACC__
#define LS_MUTANT_FUNCTION __host__ __device__
#else
#define LS_MUTANT_FUNCTION
#endif

#ifdef __CUDA_ARCH__
__device__ inline int Active() {
  int number;
  asm("mov.u32 %0, %%envreg0;" : "=r"(number));
  return number;
}
#else
inline int Active() {
  static const char* const number = std::getenv("CUDASIM_ENVREG0");
  static const int active = number == nullptr ? 0 : std::atoi(number);
  return active;
}
#endif
template <int N>
LS_MUTANT_FUNCTION bool On() {
  return Active() == N;
}

template <int N>
struct Less {};
template <int N>
struct LessEqual {};
template <int N>
struct Greater {};
template <int N>
struct GreaterEqual {};
template <int N>
struct Equal {};
template <int N>
struct NotEqual {};
template <int N>
struct Plus {};
template <int N>
struct Minus {};
template <int N>
struct Times {};

// The left operand, until the right one is applied.
template <template <int> class Tag, int N, class A>
struct Left {
  A a;
};

// clang-format off
template <class A, int N> LS_MUTANT_FUNCTION Left<Less, N, A> operator<(A a, Less<N>) { return {a}; }
template <class A, int N> LS_MUTANT_FUNCTION Left<LessEqual, N, A> operator<(A a, LessEqual<N>) { return {a}; }
template <class A, int N> LS_MUTANT_FUNCTION Left<Greater, N, A> operator<(A a, Greater<N>) { return {a}; }
template <class A, int N> LS_MUTANT_FUNCTION Left<GreaterEqual, N, A> operator<(A a, GreaterEqual<N>) { return {a}; }
template <class A, int N> LS_MUTANT_FUNCTION Left<Equal, N, A> operator==(A a, Equal<N>) { return {a}; }
template <class A, int N> LS_MUTANT_FUNCTION Left<NotEqual, N, A> operator!=(A a, NotEqual<N>) { return {a}; }
template <class A, int N> LS_MUTANT_FUNCTION Left<Plus, N, A> operator+(A a, Plus<N>) { return {a}; }
template <class A, int N> LS_MUTANT_FUNCTION Left<Minus, N, A> operator-(A a, Minus<N>) { return {a}; }
template <class A, int N> LS_MUTANT_FUNCTION Left<Times, N, A> operator*(A a, Times<N>) { return {a}; }

template <int N, class A, class B> LS_MUTANT_FUNCTION bool operator>(Left<Less, N, A> l, B b) { return On<N>() ? l.a <= b : l.a < b; }
template <int N, class A, class B> LS_MUTANT_FUNCTION bool operator>(Left<LessEqual, N, A> l, B b) { return On<N>() ? l.a < b : l.a <= b; }
template <int N, class A, class B> LS_MUTANT_FUNCTION bool operator>(Left<Greater, N, A> l, B b) { return On<N>() ? l.a >= b : l.a > b; }
template <int N, class A, class B> LS_MUTANT_FUNCTION bool operator>(Left<GreaterEqual, N, A> l, B b) { return On<N>() ? l.a > b : l.a >= b; }
template <int N, class A, class B> LS_MUTANT_FUNCTION bool operator==(Left<Equal, N, A> l, B b) { return On<N>() ? l.a != b : l.a == b; }
template <int N, class A, class B> LS_MUTANT_FUNCTION bool operator!=(Left<NotEqual, N, A> l, B b) { return On<N>() ? l.a == b : l.a != b; }
// clang-format on

// a + b -> a - b
template <int N, class A, class B>
LS_MUTANT_FUNCTION auto operator+(Left<Plus, N, A> l, B b) {
  return On<N>() ? l.a - b : l.a + b;
}
// a - b -> b - a, or of a pointer a + b
template <int N, class A, class B>
LS_MUTANT_FUNCTION auto operator-(Left<Minus, N, A> l, B b) {
  if constexpr (requires { b - l.a; }) {
    return On<N>() ? b - l.a : l.a - b;
  } else {
    return On<N>() ? l.a + b : l.a - b;
  }
}
// a * b -> a + b
template <int N, class A, class B>
LS_MUTANT_FUNCTION auto operator*(Left<Times, N, A> l, B b) {
  return On<N>() ? l.a + b : l.a * b;
}

// x[i] -> x[i + 1]
template <int N, class I>
LS_MUTANT_FUNCTION auto Index(I i) {
  return On<N>() ? i + 1 : i;
}

}  // namespace mutant

#define LS_MUTANT_BARRIER(n, barrier) \
  do {                                \
    if (!::mutant::On<n>()) barrier;  \
  } while (0)
