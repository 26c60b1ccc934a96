// Parameters with given values and gradients.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
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

// That `statement` throws an E whose message contains `part`.
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
