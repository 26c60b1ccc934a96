#include "models/export/gguf_writer.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/io/fault.h"
#include "core/io/json.h"
#include "tests/message_of.h"
#include "tests/models/export/gguf_file.h"
#include "tests/models/temp_folder.h"

namespace lockstep::models {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

GgufTensor Of(const std::string& name, GgufType type, const Tensor& x) {
  return {name, type, x.shape(), {[x] { return x; }}};
}

Tensor Ramp(const Shape& shape) {
  std::vector<float> values;
  for (int64_t i = 0; i < shape.numel(); ++i) {
    values.push_back(std::sin(static_cast<float>(i)) * static_cast<float>(1 + i % 7));
  }
  return Tensor::FromVector(values, shape);
}

TEST(GgufWriterTest, WritesAllTypesOfValues) {
  const test::TempFolder folder("gguf");
  const GgufMetadata metadata = {{"number", uint32_t{4'000'000'000}},
                                 {"float", 0.1F},
                                 {"flag", true},
                                 {"text", std::string("gr\u00fc\u00df\0e", 8)},
                                 {"texts", std::vector<std::string>{"", "a b"}},
                                 {"floats", std::vector<float>{-1, 2.5F}},
                                 {"integers", std::vector<int32_t>{-7}},
                                 {"none", std::vector<std::string>{}}};
  WriteGguf(folder.Path("f"), metadata, {});
  const test::GgufFile file(folder.Path("f"));
  ASSERT_EQ(file.metadata.size(), metadata.size());
  for (const auto& [key, value] : metadata) EXPECT_EQ(file.metadata.at(key), value) << key;
}

TEST(GgufWriterTest, WritesTensorsOfAnyTypeRoundedOnce) {
  const test::TempFolder folder("gguf");
  const Tensor x = Ramp({3, 2, 96}), bf16 = x.To(DType::kBF16);
  WriteGguf(folder.Path("f"), {},
            std::vector{Of("a", GgufType::kF32, x), Of("b", GgufType::kF16, x),
                        Of("c", GgufType::kBF16, x), Of("d", GgufType::kQ8_0, x),
                        Of("e", GgufType::kF32, bf16), Of("odd", GgufType::kF16, Ramp({5}))});
  const test::GgufFile file(folder.Path("f"));
  for (const auto& [name, t] : file.tensors) {
    if (name == "odd") continue;
    EXPECT_THAT(t.sizes, ElementsAre(96, 2, 3)) << name;
  }
  const auto floats = [](const Tensor& t) { return t.To(DType::kF32).ToVector<float>(); };
  EXPECT_EQ(file.tensors.at("a").Floats(), floats(x));
  EXPECT_EQ(file.tensors.at("b").Floats(), floats(x.To(DType::kF16)));
  EXPECT_EQ(file.tensors.at("c").Floats(), floats(bf16));
  EXPECT_EQ(file.tensors.at("e").Floats(), floats(bf16));
  EXPECT_EQ(file.tensors.at("odd").bytes.size(), 10u);
  const std::vector<float> q = file.tensors.at("d").Floats(), exact = floats(x);
  // Half a step, and 127 times the rounding of the step to f16.
  const double bound = 7.0 / 127 * (0.5 + 127.0 / 2048);
  for (size_t i = 0; i < q.size(); ++i) EXPECT_NEAR(q[i], exact[i], bound) << i;
}

// More than is converted at a time, in several parts, transposed.
TEST(GgufWriterTest, WritesInPieces) {
  const test::TempFolder folder("gguf");
  const Tensor a = Ramp({1000, 301}).Transpose(0, 1), b = Ramp({301, 1000});
  WriteGguf(folder.Path("f"), {},
            std::vector{GgufTensor{
                "x", GgufType::kF32, {2, 301, 1000}, {[a] { return a; }, [b] { return b; }}}});
  const test::GgufFile file(folder.Path("f"));
  std::vector<float> both = a.Contiguous().ToVector<float>();
  const std::vector<float> second = b.ToVector<float>();
  both.insert(both.end(), second.begin(), second.end());
  EXPECT_EQ(file.tensors.at("x").Floats(), both);
}

// tests/peers/make_gguf_goldens.py made it, with gguf-py.
TEST(GgufWriterTest, Q8HasTheBitsOfGgufPy) {
  const auto golden = Json::parse(ReadFile("tests/models/export/testdata/q8_0_golden.json"));
  const std::vector<uint32_t> bits = golden["f32_bits"];
  const std::vector<uint8_t> blocks = golden["blocks"];
  std::vector<float> x;
  for (const uint32_t u : bits) x.push_back(std::bit_cast<float>(u));
  ASSERT_GE(x.size(), 512u);
  std::vector<std::byte> out(blocks.size());
  QuantizeQ8_0(x, out);
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(std::to_integer<int>(out[i]), blocks[i]) << "block " << i / 34 << ", byte " << i % 34;
  }
}

TEST(GgufWriterTest, RefusesWhatItCannotWrite) {
  const test::TempFolder folder("gguf");
  const auto write = [&](GgufType type, float value) {
    const Tensor x = Tensor::Full({2, 32}, value, DType::kF32);
    return test::MessageOf<InputError>(
        [&] { WriteGguf(folder.Path("f"), {}, std::vector{Of("x.weight", type, x)}); });
  };
  EXPECT_THAT(write(GgufType::kF32, std::nanf("")),
              AllOf(HasSubstr("'x.weight' has a nan"), HasSubstr("earlier checkpoint")));
  EXPECT_THAT(write(GgufType::kQ8_0, -std::numeric_limits<float>::infinity()), HasSubstr("-inf"));
  EXPECT_THAT(write(GgufType::kF16, -65520), HasSubstr("--dtype=bf16"));
  EXPECT_THAT(write(GgufType::kQ8_0, 127 * 65520.F), HasSubstr("--dtype=bf16"));
  EXPECT_EQ(ListDirectory(folder.path()), std::vector<std::string>{});
  EXPECT_EQ(write(GgufType::kF16, 65519), "no error");
  EXPECT_EQ(write(GgufType::kQ8_0, 127 * 65503.F), "no error");
  const auto argument = [&](const std::vector<GgufTensor>& tensors) {
    return test::MessageOf([&] { WriteGguf(folder.Path("g"), {}, tensors); });
  };
  const GgufTensor t = Of("t", GgufType::kF32, Ramp({2, 3}));
  EXPECT_THAT(argument({t, t}), HasSubstr("two entries are called 't'"));
  EXPECT_THAT(argument({Of("t", GgufType::kQ8_0, Ramp({32, 3}))}), HasSubstr("whole blocks"));
  GgufTensor wrong = t;
  wrong.shape = {2, 4};
  EXPECT_THAT(argument({wrong}), HasSubstr("has 6 numbers"));
  EXPECT_EQ(ListDirectory(folder.path()), std::vector<std::string>{"f"});
}

TEST(GgufWriterTest, LeavesNothingBehindOnAFullDisk) {
  const test::TempFolder folder("gguf");
  const std::vector<GgufTensor> tensors = {Of("x", GgufType::kF32, Ramp({700, 1000}))};
  FaultInjector counter;
  {
    const ScopedFaultInjector scope(&counter);
    WriteGguf(folder.Path("whole"), {}, tensors);
  }
  ASSERT_GT(counter.operations(), 4);
  for (int64_t at = 1; at <= counter.operations(); ++at) {
    FaultInjector injector(FaultPlan::Parse(StrCat("enospc@", at, "+")));
    const ScopedFaultInjector scope(&injector);
    EXPECT_THROW(WriteGguf(folder.Path("f"), {}, tensors), IoError) << at;
  }
  for (const std::string& name : ListDirectory(folder.path())) {
    // The last operations make what is complete survive a power loss.
    EXPECT_EQ(ReadFile(folder.Path(name)), ReadFile(folder.Path("whole"))) << name;
  }
}

}  // namespace
}  // namespace lockstep::models
