// Parameters with given values and gradients, and what PyTorch made of them.
#pragma once

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "core/parameter.h"
#include "core/philox.h"

namespace lockstep::optim {

// Uniform in [-scale, scale), a function of (stream, index).
inline Tensor Noise(const Shape& shape, uint64_t stream, double scale = 1,
                    DType dtype = DType::kF32) {
  std::vector<double> values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = scale * (2.0 * ToUniform(Philox(7).At(stream, i)) - 1);
  }
  return Tensor::FromVector(values, shape).To(dtype);
}

inline std::shared_ptr<Parameter> MakeParameter(const std::string& name, const Tensor& value,
                                                bool decay) {
  auto p = std::make_shared<Parameter>(value.shape(), nullptr, decay);
  p->set_name(name);
  p->SetValue(value.Clone());
  return p;
}

inline std::vector<uint8_t> Bits(const Tensor& t) {
  const Tensor host = t.Detach().Contiguous();
  std::vector<uint8_t> bits(static_cast<size_t>(host.bytes()));
  if (!bits.empty()) std::memcpy(bits.data(), host.raw_data(), bits.size());
  return bits;
}

// What PyTorch computed (tests/peers/make_adamw_golden.py, make_optimizer_goldens.py), by name.
using Golden = std::map<std::string, std::vector<double>>;

inline Golden ReadGolden(const std::string& kind) {
  const std::string path = "tests/optim/testdata/" + kind + ".txt";
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path << " is missing";
  Golden out;
  for (std::string text; std::getline(file, text);) {
    std::istringstream line(text);
    std::string name;
    line >> name;
    for (double value; line >> value;) out[name].push_back(value);
  }
  return out;
}

// |got - want| <= tolerance * (|want| + rms(want)); NaN does not pass.
inline void ExpectClose(const Tensor& got, const std::vector<double>& want, double tolerance,
                        const std::string& what) {
  const std::vector<double> values = got.Detach().To(DType::kF64).ToVector<double>();
  ASSERT_EQ(values.size(), want.size()) << what;
  double squares = 0;
  for (const double w : want) squares += w * w;
  const double rms = std::sqrt(squares / static_cast<double>(want.size()));
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(std::abs(values[i] - want[i]) <= tolerance * (std::abs(want[i]) + rms))
        << what << "[" << i << "]: got " << values[i] << ", want " << want[i];
  }
}

// Expects that `statement` throws an E whose message contains `part`.
template <class E, class F>
void ExpectError(const F& statement, const std::string& part) {
  try {
    statement();
    ADD_FAILURE() << "nothing was thrown; expected: " << part;
  } catch (const E& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr(part));
  }
}

}  // namespace lockstep::optim
