// What f32 computes on the CPU has the same bits with every compiler, C library and instruction
// set: those in testdata/ops.txt. Where a change of bits is wanted, replace that file:
//   bazel run //tests/golden:ops_test -- --print >tests/golden/testdata/ops.txt
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <map>

#include "core/philox.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/simd.h"
#include "tests/op_check_run.h"

namespace lockstep {
namespace {

// f of numbers of all sizes, in the loops that ops have.
template <class A, class F>
uint64_t OfFunction(const F& f) {
  constexpr size_t kNumbers = 100'003;  // not whole vectors
  std::vector<A> x(kNumbers), y(kNumbers);
  for (size_t i = 0; i < kNumbers; ++i) {
    const Philox::Block block = Philox(0)(sizeof(A), i);
    const auto bits = uint64_t{block.v[0]} << 32 | block.v[1];
    const double unit = static_cast<double>(bits >> 11) * 0x1p-53 - 0.5;
    if (i % 2 != 0) {
      x[i] = static_cast<A>(std::ldexp(unit, static_cast<int>(block.v[2] % 24) - 16));
    } else if constexpr (sizeof(A) == 4) {
      x[i] = std::bit_cast<float>(block.v[0]);
    } else {
      x[i] = std::bit_cast<double>(bits);
    }
  }
  cpu::Vectorised([&f, in = x.data(), out = y.data()] {
    for (size_t i = 0; i < kNumbers; ++i) out[i] = f(in[i]);
  });
  check::Hash hash;
  for (const A v : y) hash.Add(double{v});
  return hash.value();
}

using Table = std::map<std::string, uint64_t>;

void AddFunctions(Table& table) {
#define ADD(name) table["math::" #name] = OfFunction<double>([](double x) { return math::name(x); })
  ADD(Exp);
  ADD(Expm1);
  ADD(Log);
  ADD(Log1p);
  ADD(Sin);
  ADD(Cos);
#undef ADD
  table["math::Pow"] = OfFunction<double>([](double x) { return math::Pow(x, 1.7 - x); });
#define ADD(name) table["cpu::" #name] = OfFunction<float>([](float x) { return cpu::name(x); })
  ADD(Exp);
  ADD(Exp2);
  ADD(Expm1);
  ADD(Log);
  ADD(Log1p);
  ADD(Sin);
  ADD(Cos);
  ADD(Tanh);
  ADD(Erf);
  ADD(Silu);
  ADD(SiluDerivative);
  ADD(Gelu);
  ADD(GeluDerivative);
  ADD(GeluExact);
  ADD(GeluExactDerivative);
#undef ADD
  table["cpu::Pow"] = OfFunction<float>([](float x) { return cpu::Pow(x, 1.7f - x); });
}

// Results and gradients of all samples.
uint64_t OfCase(const OpCase& c) {
  check::Hash hash;
  for (const OpSample& s : c.samples()) {
    if (s.benchmark) continue;
    const std::vector<bool> needs =
        c.differentiable ? check::AllNeeds(s) : std::vector<bool>(s.inputs.size());
    hash.Add(check::RunAll(s, check::Values(s, DType::kF32), needs, DType::kF32, kCpu));
  }
  return hash.value();
}

Table Bits() {
  Table table;
  AddFunctions(table);
  for (const OpCase& c : AllOpCases()) {
    table[c.name] = OfCase(c);
  }
  return table;
}

TEST(GoldenOps, FunctionsAndOpsHaveTheBitsThatAreOnFile) {
  Table golden;
  std::ifstream file("tests/golden/testdata/ops.txt");
  uint64_t hash;
  for (std::string name; file >> name >> std::hex >> hash;) golden[name] = hash;
  const Table bits = Bits();
  for (const auto& [name, value] : bits) EXPECT_EQ(golden[name], value) << name;
  EXPECT_EQ(golden.size(), bits.size()) << "tests/golden/testdata/ops.txt has other names";
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc == 1) return RUN_ALL_TESTS();
  for (const auto& [name, hash] : lockstep::Bits()) {
    std::printf("%s %016lx\n", name.c_str(), static_cast<unsigned long>(hash));
  }
}
