// The functions of kernels/unary and their derivatives, shared by all devices.
#pragma once

#include <cmath>
#include <tuple>
#include <utility>

#include "core/philox.h"  // LS_HOST_DEVICE
#include "kernels/unary/unary.h"

namespace lockstep {

// A: the type of the arithmetic, float or double. Math: the device's elementary functions of A, as
// static functions. Derivative takes what kUnaryInfo says is saved: x or the result.
//
// Comparisons are such that NaN takes the branch that hands it on.
template <class A, class Math>
struct UnaryFunctions {
  struct Numbers {
    A a, b;
  };

  struct Relu : Numbers {
    LS_HOST_DEVICE A Forward(A x) const { return x <= A(0) ? A(0) : x; }
    LS_HOST_DEVICE A Derivative(A y) const { return y <= A(0) ? A(0) : A(1); }
  };
  struct Relu2 : Numbers {
    LS_HOST_DEVICE A Forward(A x) const { return x <= A(0) ? A(0) : x * x; }
    LS_HOST_DEVICE A Derivative(A x) const { return x <= A(0) ? A(0) : A(2) * x; }
  };
  struct Tanh : Numbers {
    LS_HOST_DEVICE A Forward(A x) const { return Math::Tanh(x); }
    LS_HOST_DEVICE A Derivative(A x) const {
      const A y = Math::Tanh(x);
      return A(1) - y * y;
    }
  };
  struct Sigmoid : Numbers {
    LS_HOST_DEVICE A Forward(A x) const { return A(1) / (A(1) + Math::Exp(-x)); }
    LS_HOST_DEVICE A Derivative(A x) const {
      const A y = Forward(x);
      return y * (A(1) - y);
    }
  };
  struct Silu : Numbers {
    LS_HOST_DEVICE A Forward(A x) const { return x / (A(1) + Math::Exp(-x)); }
    LS_HOST_DEVICE A Derivative(A x) const {
      const A s = Sigmoid().Forward(x);
      return s * (A(1) + x * (A(1) - s));
    }
  };
  struct Exp : Numbers {
    LS_HOST_DEVICE A Forward(A x) const { return Math::Exp(x); }
    LS_HOST_DEVICE A Derivative(A y) const { return y; }
  };
  struct Expm1 : Numbers {
    LS_HOST_DEVICE A Forward(A x) const { return Math::Expm1(x); }
    LS_HOST_DEVICE A Derivative(A x) const { return Math::Exp(x); }
  };
  struct Log : Numbers {
    LS_HOST_DEVICE A Forward(A x) const { return Math::Log(x); }
    LS_HOST_DEVICE A Derivative(A x) const { return A(1) / x; }
  };
  struct Log1p : Numbers {
    LS_HOST_DEVICE A Forward(A x) const { return Math::Log1p(x); }
    LS_HOST_DEVICE A Derivative(A x) const { return A(1) / (A(1) + x); }
  };
  struct Sqrt : Numbers {
    LS_HOST_DEVICE A Forward(A x) const { return std::sqrt(x); }
    LS_HOST_DEVICE A Derivative(A y) const { return A(0.5) / y; }
  };
  struct Rsqrt : Numbers {
    LS_HOST_DEVICE A Forward(A x) const { return Math::Rsqrt(x); }
    LS_HOST_DEVICE A Derivative(A x) const { return A(-0.5) * Math::Rsqrt(x) / x; }
  };
  struct Reciprocal : Numbers {
    LS_HOST_DEVICE A Forward(A x) const { return A(1) / x; }
    LS_HOST_DEVICE A Derivative(A x) const {
      const A y = A(1) / x;
      return -y * y;
    }
  };
  struct Square : Numbers {
    LS_HOST_DEVICE A Forward(A x) const { return x * x; }
    LS_HOST_DEVICE A Derivative(A x) const { return A(2) * x; }
  };
  struct Sign : Numbers {
    LS_HOST_DEVICE A Forward(A x) const { return x > A(0) ? A(1) : x < A(0) ? A(-1) : x; }
  };
  struct Abs : Numbers {
    LS_HOST_DEVICE A Forward(A x) const { return std::fabs(x); }
    LS_HOST_DEVICE A Derivative(A x) const { return Sign().Forward(x); }
  };
  struct Sin : Numbers {
    LS_HOST_DEVICE A Forward(A x) const { return Math::Sin(x); }
    LS_HOST_DEVICE A Derivative(A x) const { return Math::Cos(x); }
  };
  struct Cos : Numbers {
    LS_HOST_DEVICE A Forward(A x) const { return Math::Cos(x); }
    LS_HOST_DEVICE A Derivative(A x) const { return -Math::Sin(x); }
  };
  struct Erf : Numbers {
    LS_HOST_DEVICE A Forward(A x) const { return Math::Erf(x); }
    LS_HOST_DEVICE A Derivative(A x) const {
      return A(1.12837916709551257390) * Math::Exp(-x * x);  // 2 / sqrt(pi)
    }
  };
  struct Softplus : Numbers {
    LS_HOST_DEVICE A Forward(A x) const {
      return (x > A(0) ? x : A(0)) + Math::Log1p(Math::Exp(-std::fabs(x)));
    }
    LS_HOST_DEVICE A Derivative(A x) const { return Sigmoid().Forward(x); }
  };
  struct Floor : Numbers {
    LS_HOST_DEVICE A Forward(A x) const { return std::floor(x); }
  };
  struct Ceil : Numbers {
    LS_HOST_DEVICE A Forward(A x) const { return std::ceil(x); }
  };
  struct Round : Numbers {
    LS_HOST_DEVICE A Forward(A x) const { return std::rint(x); }
  };
  struct Clamp : Numbers {
    LS_HOST_DEVICE A Forward(A x) const {
      return x < this->a ? this->a : x > this->b ? this->b : x;
    }
    LS_HOST_DEVICE A Derivative(A x) const { return x < this->a || x > this->b ? A(0) : A(1); }
  };
  struct Pow : Numbers {
    LS_HOST_DEVICE A Forward(A x) const { return Math::Pow(x, this->a); }
    LS_HOST_DEVICE A Derivative(A x) const {
      return this->a == A(0) ? A(0) : this->a * Math::Pow(x, this->a - A(1));
    }
  };
  struct LeakyRelu : Numbers {
    LS_HOST_DEVICE A Forward(A x) const { return x <= A(0) ? this->a * x : x; }
    LS_HOST_DEVICE A Derivative(A x) const { return x <= A(0) ? this->a : A(1); }
  };
  struct Elu : Numbers {
    LS_HOST_DEVICE A Forward(A x) const { return x <= A(0) ? this->a * Math::Expm1(x) : x; }
    LS_HOST_DEVICE A Derivative(A x) const { return x <= A(0) ? this->a * Math::Exp(x) : A(1); }
  };
  struct Softcap : Numbers {
    LS_HOST_DEVICE A Forward(A x) const { return this->a * Math::Tanh(x / this->a); }
    LS_HOST_DEVICE A Derivative(A x) const {
      const A y = Math::Tanh(x / this->a);
      return A(1) - y * y;
    }
  };
  struct AddNumber : Numbers {
    LS_HOST_DEVICE A Forward(A x) const { return x + this->a; }
  };
  struct SubNumber : Numbers {
    LS_HOST_DEVICE A Forward(A x) const { return x - this->a; }
  };
  struct SubFrom : Numbers {
    LS_HOST_DEVICE A Forward(A x) const { return this->a - x; }
  };
  struct DivideInto : Numbers {
    LS_HOST_DEVICE A Forward(A x) const { return this->a / x; }
    LS_HOST_DEVICE A Derivative(A x) const { return -(this->a / x) / x; }
  };
  struct PowOf : Numbers {
    LS_HOST_DEVICE A Forward(A x) const { return Math::Pow(this->a, x); }
    LS_HOST_DEVICE A Derivative(A y) const { return y * this->b; }
  };

  // Indexed by UnaryOp.
  using All =
      std::tuple<Relu, Relu2, Tanh, Sigmoid, Silu, Exp, Expm1, Log, Log1p, Sqrt, Rsqrt, Reciprocal,
                 Square, Abs, Sign, Sin, Cos, Erf, Softplus, Floor, Ceil, Round, Clamp, Pow,
                 LeakyRelu, Elu, Softcap, AddNumber, SubNumber, SubFrom, DivideInto, PowOf>;
  static_assert(std::tuple_size_v<All> == kNumUnaryOps);
};

// Calls f with the function that `op` is of `Functions`, a UnaryFunctions<A, Math>: all of them, or
// those that have a derivative to compute.
template <class Functions, bool derivatives, class F>
void DispatchUnary(UnaryOp op, double a, double b, const F& f) {
  const auto call = [&]<size_t i>() {
    if constexpr (!derivatives || kUnaryInfo[i].saves != UnarySaves::kNothing) {
      using Function = std::tuple_element_t<i, typename Functions::All>;
      using A = decltype(Function::a);
      f(Function{{static_cast<A>(a), static_cast<A>(b)}});
    }
  };
  [&]<size_t... i>(std::index_sequence<i...>) {
    ((op == static_cast<UnaryOp>(i) ? call.template operator()<i>() : void()), ...);
  }
  (std::make_index_sequence<kNumUnaryOps>());
}

}  // namespace lockstep
