#include "core/io/safetensors.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/safetensors_writer.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr char kReference[] = "tests/core/testdata/reference.safetensors";

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string Length(uint64_t length) {
  std::string text(8, '\0');
  for (int i = 0; i < 8; ++i) text[i] = static_cast<char>(length >> (8 * i));
  return text;
}

std::string File(std::string_view header, size_t data_bytes) {
  return Length(header.size()) + std::string(header) + std::string(data_bytes, '\1');
}

std::string ErrorOfFile(std::string_view file) {
  try {
    SafetensorsFile::Parse(Bytes(file), "m.safetensors");
  } catch (const InputError& error) {
    return error.what();
  }
  ADD_FAILURE() << "accepted " << file;
  return "";
}

std::string ErrorOf(std::string_view header, size_t data_bytes = 8) {
  const std::string message = ErrorOfFile(File(header, data_bytes));
  EXPECT_THAT(message, HasSubstr("m.safetensors: "));
  return message;
}

// A header with one tensor, "a", whose value is this text.
std::string OfA(std::string_view value) { return StrCat("{\"a\":", value, "}"); }

class SafetensorsFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = JoinPath(::testing::TempDir(), "safetensors_test.XXXXXX");
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { RemoveTree(folder_); }

  std::string Path(std::string_view name) const { return JoinPath(folder_, name); }

  std::string Save(std::string_view name, const std::vector<SafetensorsItem>& items,
                   const std::map<std::string, std::string>& metadata = {}) const {
    FileWriter file(Path(name));
    WriteSafetensors(file, items, metadata);
    file.Close();
    return Path(name);
  }

  std::string folder_;
};

TEST(SafetensorsTest, ReadsTheReferenceImplementationsFile) {
  const SafetensorsFile file = SafetensorsFile::Open(kReference);
  EXPECT_EQ(file.entries().size(), 12u);
  EXPECT_THAT(file.metadata(), ElementsAre(Pair("format", "pt")));
  EXPECT_EQ(file.Get("w.f64").ToTensor().ToVector<double>(), (std::vector<double>{0, 1, 2}));
  EXPECT_EQ(file.Get("w.i64").ToTensor().ToVector<int64_t>(), (std::vector<int64_t>{0, 1}));
  const Tensor b = file.Get("w.f32.b").ToTensor();
  EXPECT_EQ(b.shape(), Shape({2, 3}));
  EXPECT_EQ(b.ToVector<float>(), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(static_cast<float>(file.Get("w.f16").ToTensor().ToVector<F16>()[2]), 2.0f);
  EXPECT_EQ(file.Get("w.u16").ToTensor().ToVector<uint16_t>(), (std::vector<uint16_t>{0, 1, 2}));
  EXPECT_EQ(file.Get("w.bool").ToTensor().dtype(), DType::kBool);
  EXPECT_EQ(file.Get("scalar").ToTensor().ToVector<float>(), (std::vector<float>{7}));
  EXPECT_EQ(file.Get("scalar").ToTensor().ndim(), 0);
  EXPECT_EQ(file.Get("empty").ToTensor().shape(), Shape({0, 4}));
  EXPECT_EQ(file.Get("quote\"back\\slash\n\u00fc").bytes.size(), 4u);
  EXPECT_EQ(file.Find("w"), nullptr);
  EXPECT_THROW(file.Get("w"), InputError);
}

TEST_F(SafetensorsFilesTest, WritesTheReferenceImplementationsBytes) {
  const SafetensorsFile file = SafetensorsFile::Open(kReference);
  std::vector<SafetensorsItem> items;
  for (const SafetensorsEntry& entry : file.entries()) {
    items.insert(items.begin(), {entry.name, entry.dtype(), entry.shape, entry.bytes, {}});
  }
  EXPECT_EQ(ReadFile(Save("again", items)), ReadFile(kReference));
  items.clear();
  for (const SafetensorsEntry& entry : file.entries()) {
    items.push_back(SafetensorsItem::Of(entry.name, entry.ToTensor()));
  }
  EXPECT_EQ(ReadFile(Save("tensors", items)), ReadFile(kReference));
}

TEST_F(SafetensorsFilesTest, UserMetadataAndAlignment) {
  const Tensor x = Tensor::FromVector<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  const std::string path =
      Save("m", {SafetensorsItem::Of("x", x)}, {{"step", "10"}, {"format", "np"}});
  const SafetensorsFile file = SafetensorsFile::Open(path);
  EXPECT_THAT(file.metadata(), ElementsAre(Pair("format", "np"), Pair("step", "10")));
  EXPECT_EQ(file.Get("x").ToTensor().ToVector<float>(), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  // The header is padded so that the data is aligned to 8 bytes.
  EXPECT_EQ((ReadFile(path).size() - 24) % 8, 0u);
}

TEST_F(SafetensorsFilesTest, EntriesOutliveTheFileOnDisk) {
  const std::vector<float> values = {1, 2};
  const SafetensorsItem item = {"a", DType::kF32, {2}, std::as_bytes(std::span(values)), {}};
  const SafetensorsFile file = SafetensorsFile::Open(Save("m", {item}));
  RemoveTree(Path("m"));
  const SafetensorsFile copy = file;
  EXPECT_EQ(copy.Get("a").ToTensor().ToVector<float>(), values);
}

TEST(SafetensorsTest, EmptyFileOfTheFormat) {
  const SafetensorsFile file = SafetensorsFile::Parse(Bytes(File("{}      ", 0)), "m");
  EXPECT_TRUE(file.entries().empty());
  EXPECT_TRUE(file.metadata().empty());
}

TEST(SafetensorsTest, HeaderLength) {
  EXPECT_THAT(ErrorOfFile(""), HasSubstr("0 bytes"));
  EXPECT_THAT(ErrorOfFile("1234567"), HasSubstr("7 bytes"));
  EXPECT_THAT(ErrorOfFile(Length(0) + "{}"), HasSubstr("header length: 0"));
  EXPECT_THAT(ErrorOfFile(Length(3) + "{}"), HasSubstr("truncated"));
  EXPECT_THAT(ErrorOfFile(Length(100'000'001) + "{}"),
              HasSubstr("exceeds the maximum of 100000000"));
  EXPECT_THAT(ErrorOfFile(Length(~uint64_t{0}) + "{}"), HasSubstr("exceeds"));
  EXPECT_THAT(ErrorOfFile("version https://git-lfs.github.com/spec/v1"), HasSubstr("git lfs pull"));
  EXPECT_THAT(ErrorOfFile("PK\x03\x04 and so on"), HasSubstr("PyTorch"));
}

TEST(SafetensorsTest, HeaderSyntax) {
  EXPECT_THAT(ErrorOf("[]"), HasSubstr("begins with \"[\""));
  EXPECT_THAT(ErrorOf(" {}"), HasSubstr("begins with \" \""));
  EXPECT_THAT(ErrorOf("{}\n"), HasSubstr("ends with \"\\x0a\""));
  EXPECT_THAT(ErrorOf(std::string_view("{}\0", 3)), HasSubstr("ends with \"\\x00\""));
  EXPECT_THAT(ErrorOf("{}{}"), HasSubstr("not valid JSON at byte 11"));
  EXPECT_THAT(ErrorOf("{\"a\":}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(ErrorOf("{\"\xff\":{}}"), HasSubstr("not valid JSON"));
  std::string deep = "{\"a\":";
  for (int i = 0; i < 1'000'000; ++i) deep += "[";
  EXPECT_THAT(ErrorOf(deep + "}"), HasSubstr("must be an object, not an array"));
}

TEST(SafetensorsTest, FieldsOfTheHeader) {
  EXPECT_THAT(ErrorOf(OfA("1")), HasSubstr("tensor \"a\" must be an object, not a number"));
  EXPECT_THAT(ErrorOf(OfA("{}")), HasSubstr("tensor \"a\" has no dtype"));
  EXPECT_THAT(ErrorOf(OfA(R"({"dtype":"F32","data_offsets":[0,8]})")), HasSubstr("has no shape"));
  EXPECT_THAT(ErrorOf(OfA(R"({"dtype":"F32","shape":[2]})")), HasSubstr("has no data_offsets"));
  EXPECT_THAT(ErrorOf(OfA(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1})")),
              HasSubstr("unknown field \"x\""));
  EXPECT_THAT(ErrorOf(OfA(R"({"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]})")),
              HasSubstr("field \"dtype\" twice"));
  EXPECT_THAT(ErrorOf(OfA(R"({"dtype":7,"shape":[2],"data_offsets":[0,8]})")),
              HasSubstr("tensor \"a\", dtype: must be a string, not a number"));
  EXPECT_THAT(ErrorOf(OfA(R"({"dtype":"F31","shape":[2],"data_offsets":[0,8]})")),
              HasSubstr("tensor \"a\", dtype: \"F31\" is not known"));
  EXPECT_THAT(ErrorOf(OfA(R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})")),
              HasSubstr("tensor \"a\", shape: must be an array of integers, not a number"));
  EXPECT_THAT(ErrorOf(OfA(R"({"dtype":"F32","shape":[[2]],"data_offsets":[0,8]})")),
              HasSubstr("shape: must hold integers only, not an array"));
  EXPECT_THAT(ErrorOf(OfA(R"({"dtype":"F32","shape":null,"data_offsets":[0,8]})")),
              HasSubstr("not null"));
}

TEST(SafetensorsTest, DuplicateNamesAndMetadata) {
  const std::string a = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  const std::string b = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]})";
  EXPECT_THAT(ErrorOf("{" + a + "," + b + "}"), HasSubstr("tensor \"a\" appears twice"));
  EXPECT_THAT(ErrorOf(R"({"__metadata__":{"k":"1","k":"2"}})", 0),
              HasSubstr("\"k\" appears twice"));
  EXPECT_THAT(ErrorOf(R"({"__metadata__":{},"__metadata__":{}})", 0),
              HasSubstr("__metadata__ appears twice"));
  EXPECT_THAT(ErrorOf(R"({"__metadata__":{"k":1}})", 0), HasSubstr("\"k\" must be a string"));
  EXPECT_THAT(ErrorOf(R"({"__metadata__":{"k":{}}})", 0), HasSubstr("not an object"));
  EXPECT_THAT(ErrorOf(R"({"__metadata__":"x"})", 0), HasSubstr("must be an object, not a string"));
}

TEST(SafetensorsTest, Shapes) {
  const auto with_shape = [](std::string_view shape) {
    return OfA(StrCat(R"({"dtype":"F32","shape":)", shape, R"(,"data_offsets":[0,8]})"));
  };
  EXPECT_THAT(ErrorOf(with_shape("[-2]")), HasSubstr("tensor \"a\", shape: is negative: -2"));
  EXPECT_THAT(ErrorOf(with_shape("[2.0]")), HasSubstr("not an integer below 2^64: \"2.0\""));
  EXPECT_THAT(ErrorOf(with_shape("[9223372036854775808]")), HasSubstr("too large"));
  EXPECT_THAT(ErrorOf(with_shape("[18446744073709551618]")), HasSubstr("not an integer"));
  EXPECT_THAT(ErrorOf(with_shape("[4294967296,4294967296]")), HasSubstr("elements overflows"));
  EXPECT_THAT(ErrorOf(with_shape("[0,4294967296,4294967296]")), HasSubstr("elements overflows"));
  // 2^61 + 2 elements: the byte count, modulo 2^64, would be the right 8.
  EXPECT_THAT(ErrorOf(with_shape("[2305843009213693954]")), HasSubstr("bytes overflows"));
  EXPECT_THAT(ErrorOf(with_shape("[3]")),
              AllOf(HasSubstr("data_offsets: [0, 8] span 8"), HasSubstr("[3] takes 12")));
  EXPECT_THAT(ErrorOf(OfA(R"({"dtype":"F4","shape":[3],"data_offsets":[0,1]})"), 1),
              HasSubstr("do not fill whole bytes"));
}

TEST(SafetensorsTest, Offsets) {
  const auto with_offsets = [](std::string_view offsets) {
    return OfA(StrCat(R"({"dtype":"U8","shape":[8],"data_offsets":)", offsets, "}"));
  };
  EXPECT_NO_THROW(SafetensorsFile::Parse(Bytes(File(with_offsets("[0,8]"), 8)), "m"));
  EXPECT_THAT(ErrorOf(with_offsets("[]")), HasSubstr("data_offsets: has fewer than two"));
  EXPECT_THAT(ErrorOf(with_offsets("[0]")), HasSubstr("data_offsets: has fewer than two"));
  EXPECT_THAT(ErrorOf(with_offsets("[0,8,9]")), HasSubstr("more than two"));
  EXPECT_THAT(ErrorOf(with_offsets("[-1,7]")), HasSubstr("data_offsets: is negative"));
  EXPECT_THAT(ErrorOf(with_offsets("[8,0]")), HasSubstr("end before they begin"));
  EXPECT_THAT(ErrorOf(with_offsets("[0,8]"), 7), HasSubstr("reach beyond the 7 bytes of data"));
  EXPECT_THAT(ErrorOf(with_offsets("[0,8]"), 9), HasSubstr("end at byte 8"));
  EXPECT_THAT(ErrorOf(with_offsets("[18446744073709551615,7]")), HasSubstr("end before"));
  EXPECT_THAT(ErrorOf(with_offsets("[1,9]"), 9), HasSubstr("holes are not allowed"));
  EXPECT_THAT(ErrorOf("{}", 1), HasSubstr("end at byte 0"));
}

TEST(SafetensorsTest, HolesAndOverlaps) {
  const auto two = [](int a, int b, int c, int d) {
    return StrCat(R"({"a":{"dtype":"U8","shape":[)", b - a, R"(],"data_offsets":[)", a, ",", b,
                  R"(]},"b":{"dtype":"U8","shape":[)", d - c, R"(],"data_offsets":[)", c, ",", d,
                  "]}}");
  };
  EXPECT_NO_THROW(SafetensorsFile::Parse(Bytes(File(two(4, 8, 0, 4), 8)), "m"));
  EXPECT_NO_THROW(SafetensorsFile::Parse(Bytes(File(two(0, 8, 8, 8), 8)), "m"));
  EXPECT_THAT(ErrorOf(two(0, 5, 4, 8)),
              AllOf(HasSubstr("tensor \"b\""), HasSubstr("\"a\" reaches to 5: they overlap")));
  EXPECT_THAT(ErrorOf(two(0, 3, 4, 8)), HasSubstr("\"b\", data_offsets: begins at 4, but bytes "
                                                  "from 3 on belong to no tensor"));
  EXPECT_THAT(ErrorOf(two(0, 8, 4, 4)), HasSubstr("overlap"));
  EXPECT_THAT(ErrorOf(two(0, 8, 0, 8)), HasSubstr("overlap"));
}

TEST(SafetensorsTest, UnsupportedDTypesAreListedButNotRead) {
  const std::string file = File(OfA(R"({"dtype":"I8","shape":[8],"data_offsets":[0,8]})"), 8);
  const SafetensorsFile parsed = SafetensorsFile::Parse(Bytes(file), "m.safetensors");
  EXPECT_EQ(parsed.entries()[0].dtype_name, "I8");
  try {
    parsed.Get("a").ToTensor();
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("m.safetensors: tensor \"a\", dtype: \"I8\""),
                                    HasSubstr("convert")));
  }
}

TEST(SafetensorsTest, TensorsThatCannotBe) {
  std::string file = File(OfA(R"({"dtype":"BOOL","shape":[8],"data_offsets":[0,8]})"), 8);
  EXPECT_NO_THROW(SafetensorsFile::Parse(Bytes(file), "m").Get("a").ToTensor());
  file.back() = 2;
  const SafetensorsFile parsed = SafetensorsFile::Parse(Bytes(file), "m");
  EXPECT_THROW(parsed.Get("a").ToTensor(), InputError);
  const std::string deep =
      File(OfA(R"({"dtype":"U8","shape":[1,1,1,1,1,1,1,1,8],"data_offsets":[0,8]})"), 8);
  EXPECT_THROW(SafetensorsFile::Parse(Bytes(deep), "m").Get("a").ToTensor(), InputError);
}

TEST_F(SafetensorsFilesTest, UnalignedDataIsCopied) {
  std::string file = File(OfA(R"({"dtype":"F64","shape":[1],"data_offsets":[0,8]})") + " ", 8);
  const double value = 1.5;
  for (int spaces = 0; spaces < 8; ++spaces) {
    file = File(
        OfA(R"({"dtype":"F64","shape":[1],"data_offsets":[0,8]})") + std::string(spaces, ' '), 8);
    std::memcpy(file.data() + file.size() - 8, &value, 8);
    EXPECT_EQ(SafetensorsFile::Parse(Bytes(file), "m").Get("a").ToTensor().ToVector<double>()[0],
              1.5);
  }
}

// Every truncation of a real file, and every flipped bit outside of the data, is either refused
// with an error that names the file, or harmless (a letter of a name or of metadata).
TEST(SafetensorsTest, DamagedReferenceFile) {
  const std::string good = ReadFile(kReference);
  for (size_t size = 0; size < good.size(); ++size) ErrorOfFile(good.substr(0, size));
  ErrorOfFile(good + "x");
  const size_t data = 8 + (static_cast<unsigned char>(good[0]) | good[1] << 8);
  int refused = 0;
  for (size_t at = 0; at < data; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
      try {
        const SafetensorsFile parsed = SafetensorsFile::Parse(Bytes(bad), "m.safetensors");
        EXPECT_EQ(parsed.entries().size(), 12u);
      } catch (const InputError& error) {
        ++refused;
        EXPECT_THAT(error.what(), HasSubstr("m.safetensors: "));
      }
    }
  }
  EXPECT_GT(refused, 4000);
}

TEST_F(SafetensorsFilesTest, WriterRefusesWhatReadersWould) {
  const std::vector<float> values = {1, 2};
  const SafetensorsItem a = {"a", DType::kF32, {2}, std::as_bytes(std::span(values)), {}};
  SafetensorsItem bad = a;
  EXPECT_THROW(Save("m", {a, a}), ArgumentError);
  bad.name = "__metadata__";
  EXPECT_THROW(Save("m", {bad}), ArgumentError);
  bad.name = "\xff";
  EXPECT_THROW(Save("m", {bad}), ArgumentError);
  EXPECT_THROW(Save("m", {a}, {{"k", "\xff"}}), ArgumentError);
  bad = a;
  bad.shape = {3};
  EXPECT_THROW(Save("m", {bad}), ArgumentError);
  bad.shape = {-1};
  EXPECT_THROW(Save("m", {bad}), ArgumentError);
  bad.shape = {int64_t{1} << 62, 2};
  EXPECT_THROW(Save("m", {bad}), ArgumentError);
}

TEST_F(SafetensorsFilesTest, FoldersWithOneFile) {
  const std::vector<float> values = {1, 2};
  Save("model.safetensors", {{"a", DType::kF32, {2}, std::as_bytes(std::span(values)), {}}});
  for (const std::string& path : {folder_, Path("model.safetensors")}) {
    const SafetensorsSet set = SafetensorsSet::Open(path);
    EXPECT_THAT(set.names(), ElementsAre("a"));
    EXPECT_EQ(set.Get("a").ToTensor().ToVector<float>(), values);
    EXPECT_THROW(set.Get("b"), InputError);
  }
  RemoveTree(Path("model.safetensors"));
  EXPECT_THROW(SafetensorsSet::Open(folder_), IoError);
}

TEST_F(SafetensorsFilesTest, FoldersWithShards) {
  const std::vector<float> values = {1, 2};
  const auto item = [&](std::string name) {
    return SafetensorsItem{std::move(name), DType::kF32, {2}, std::as_bytes(std::span(values)), {}};
  };
  Save("model-00001-of-00002.safetensors", {item("a"), item("hidden")});
  Save("model-00002-of-00002.safetensors", {item("b")});
  const auto open = [&](std::string_view index) {
    WriteFileAtomically(Path("model.safetensors.index.json"), index);
    return SafetensorsSet::Open(folder_);
  };
  const auto error_of = [&](std::string_view index) -> std::string {
    try {
      open(index);
    } catch (const InputError& error) {
      return error.what();
    }
    ADD_FAILURE() << "accepted " << index;
    return "";
  };
  SafetensorsSet set = open(R"({"metadata": {"total_size": 16}, "weight_map": {
      "b": "model-00002-of-00002.safetensors", "a": "model-00001-of-00002.safetensors"}})");
  const SafetensorsSet moved = std::move(set);
  EXPECT_THAT(moved.names(), ElementsAre("a", "b"));
  EXPECT_EQ(moved.Get("b").ToTensor().ToVector<float>(), values);
  EXPECT_EQ(moved.Find("hidden"), nullptr);

  EXPECT_THAT(error_of(R"({"weight_map": {"c": "model-00002-of-00002.safetensors"}})"),
              AllOf(HasSubstr("says that \"c\" is in"), HasSubstr("no such tensor")));
  EXPECT_THAT(error_of(R"({"weight_map": {"c": "../model.safetensors"}})"),
              HasSubstr("not the name of a file in the same folder"));
  EXPECT_THAT(error_of(R"({"weight_map": {"c": "/etc/passwd"}})"),
              HasSubstr("not the name of a file in the same"));
  EXPECT_THAT(error_of(R"({"weight_map": {"c": 1}})"), HasSubstr("must be a file name"));
  EXPECT_THAT(error_of(R"({"weight_map": {"c": "x", "c": "y"}})"), HasSubstr("appears twice"));
  for (const char* index : {"[]", "{}", "1", R"({"weight_map": {}})", R"({"weight_map": [1]})"}) {
    EXPECT_THAT(error_of(index), HasSubstr("weight_map")) << index;
  }
  EXPECT_THROW(open(R"({"weight_map": {"c": "none.safetensors"}})"), IoError);
}

}  // namespace
}  // namespace lockstep
