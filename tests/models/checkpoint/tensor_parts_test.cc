#include "models/checkpoint/tensor_parts.h"

#include <gmock/gmock-matchers.h>

#include <memory>
#include <numeric>
#include <tuple>

#include "core/allocator.h"
#include "models/checkpoint/consolidate.h"
#include "tests/message_of.h"
#include "tests/models/checkpoint/saved_ranks.h"

namespace lockstep::models {
namespace {

using test::MessageOf;
using ::testing::AllOf;
using ::testing::HasSubstr;

class TensorPartsTest : public SavedRanksTest {
 protected:
  void SetUp() override {
    Save({2, 1}, Path("out"), /*async=*/false, {10});
    folder_ = Folder(Path("out"), 10);
  }
  std::string File(const std::string& name) const { return JoinPath(folder_, name); }
  std::string Error(const std::string& kind = "model") const {
    return MessageOf<lockstep::Error>([&] { TensorParts::Open(folder_, kind); });
  }
  // Replaces the only occurrence, in place of the same length.
  void Replace(const std::string& name, const std::string& from, const std::string& to) {
    std::string text = ReadFile(File(name));
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    WriteFileAtomically(File(name), text.replace(at, from.size(), to));
  }

  std::string folder_;
};

TEST_F(TensorPartsTest, WhatDoesNotFitTogetherIsRefused) {
  const std::string first = "model.part-00000-of-00002.safetensors";
  const std::string second = "model.part-00001-of-00002.safetensors";
  EXPECT_EQ(Error(), "no error");
  const std::string good = ReadFile(File(second));
  RemoveTree(File(second));
  EXPECT_THAT(Error(), HasSubstr(second));
  WriteFileAtomically(File(second), ReadFile(File(first)));
  EXPECT_THAT(Error(), AllOf(HasSubstr(kPartsIndex), HasSubstr(" are in two parts")));
  const std::vector<SafetensorsItem> none;
  FileWriter empty(File(second));
  WriteSafetensors(empty, none);
  empty.Close();
  EXPECT_THAT(Error(), AllOf(HasSubstr(kPartsIndex), HasSubstr(" are in no part")));
  WriteFileAtomically(File(second), good);
  EXPECT_EQ(Error(), "no error");

  const std::string index = ReadFile(File(kPartsIndex));
  const auto with = [&](const std::string& from, const std::string& to,
                        const std::string& kind = "model") {
    Replace(kPartsIndex, from, to);
    const std::string error = Error(kind);
    WriteFileAtomically(File(kPartsIndex), index);
    EXPECT_THAT(error, HasSubstr(kPartsIndex));
    return error;
  };
  EXPECT_THAT(with("\"format\": 2", "\"format\": 3"), HasSubstr("format 3"));
  EXPECT_THAT(with("\"parts\": 2", "\"parts\": 0"), HasSubstr("\"parts\" is 0"));
  EXPECT_THAT(with("\"model\"", "\"modal\""), HasSubstr("damaged"));
  EXPECT_THAT(with("\"F32\"", "\"F31\"", "model"), HasSubstr("is not a dtype"));
  EXPECT_THAT(with("\"F32\"", "\"F16\"", "model"), HasSubstr("is not f16"));
  EXPECT_THAT(with("\"ln_f.bias\"", "\"ln_g.bias\""), HasSubstr("is no part of a tensor"));
  EXPECT_THAT(with("    76", "    -1"), HasSubstr("negative size"));

  // Of another model: the same elements in another shape.
  GptConfig other = CutGpt();
  other.n_embd = 38;
  other.n_head = 1;
  Gpt model(other);
  model.Materialize(kCpu, 0);
  EXPECT_THAT(MessageOf<InputError>([&] { LoadWeights(folder_, model); }),
              AllOf(HasSubstr("has shape"), HasSubstr("model options differ")));
}

TEST_F(TensorPartsTest, ConsolidatesOnlyPartsAndIntoANewFolder) {
  EXPECT_THAT(MessageOf<InputError>([&] { Consolidate(folder_, folder_); }),
              HasSubstr("exists already"));
  Save({1, 1}, Path("alone"), /*async=*/false, {10});
  EXPECT_THAT(MessageOf<InputError>([&] { Consolidate(Folder(Path("alone"), 10), Path("to")); }),
              HasSubstr("Hugging Face folders themselves"));
  // Nothing beside the new folder is touched.
  MakeDirectories(Path("to.tmp"));
  WriteFileAtomically(Path("to.tmp/notes"), "mine");
  Consolidate(folder_, Path("to"));
  EXPECT_EQ(ReadFile(Path("to.tmp/notes")), "mine");
  EXPECT_TRUE(PathExists(Path("to/config.json")));
  for (const std::string& name : ListDirectory(Path(""))) {
    EXPECT_FALSE(name.starts_with(".tmp")) << name;
  }
}

// A matrix whose columns are cut has a run of elements for each row, and yet one entry for a rank.
TEST(TensorPartsOfColumns, HaveAnEntryForEachRankAndSegment) {
  const test::TempFolder folder("parts");
  constexpr int64_t kRows = 50, kColumns = 12, kRanks = 3;
  const Shape shape({kRows, kColumns});
  std::vector<float> values(kRows * kColumns);
  std::iota(values.begin(), values.end(), 0.f);
  const Tensor whole = Tensor::FromVector<float>(values, shape);
  for (const int64_t copies : {1, 2}) {
    const int64_t files = kRanks * copies;
    for (int64_t rank = 0; rank < files; ++rank) {
      Parameter p(shape, nullptr, true);
      p.SetLayout({.cuts = {{.axis = "tp", .dim = 1, .parts = kRanks, .part = rank / copies}}});
      const Tensor part = whole.Slice(1, rank / copies * 4, rank / copies * 4 + 4).Contiguous();
      std::vector<SafetensorsItem> items;
      AddPart(
          "w", p, part, {rank % copies, copies}, [](const Tensor& x) { return x; }, &items);
      EXPECT_LE(items.size(), copies == 1 ? 1u : 3u);
      FileWriter file(folder.Path(PartFile("model", rank, files)));
      WriteSafetensors(file, items);
      file.Close();
    }
    WriteFileAtomically(folder.Path(kPartsIndex),
                        PartsIndex(files, {{"model", {{"w", DType::kF32, shape}}}}));
    const TensorParts parts = TensorParts::Open(folder.path(), "model");
    EXPECT_EQ(parts.Read("w").ToVector<float>(), values);
    Parameter rows(shape, nullptr, true);  // others read it, cut otherwise
    rows.SetLayout({.cuts = {{.axis = "tp", .dim = 0, .parts = 2, .part = 1}}});
    EXPECT_EQ(parts.ReadPart("w", rows).ToVector<float>(),
              whole.Slice(0, kRows / 2, kRows).Contiguous().ToVector<float>());
  }
}

// A rank that continues reads what it wrote without a copy of it.
TEST(TensorPartsOfRows, AreTheFilesMemoryWhereTheyLieInOnePiece) {
  const test::TempFolder folder("parts");
  const Shape shape({6, 4});
  std::vector<float> values(24);
  std::iota(values.begin(), values.end(), 0.f);
  const Tensor whole = Tensor::FromVector<float>(values, shape);
  const auto cut = [&](int64_t parts, int64_t part) {
    auto p = std::make_unique<Parameter>(shape, nullptr, true);
    p->SetLayout({.cuts = {{.axis = "tp", .dim = 0, .parts = parts, .part = part}}});
    return p;
  };
  for (int64_t rank = 0; rank < 2; ++rank) {
    std::vector<SafetensorsItem> items;
    const auto p = cut(2, rank);
    AddPart(
        "w", *p, p->PartOf(whole), {}, [](const Tensor& x) { return x; }, &items);
    FileWriter file(folder.Path(PartFile("model", rank, 2)));
    WriteSafetensors(file, items);
    file.Close();
  }
  WriteFileAtomically(folder.Path(kPartsIndex),
                      PartsIndex(2, {{"model", {{"w", DType::kF32, shape}}}}));
  const auto read = [&](int64_t parts, int64_t part) {  // it outlives what it was read from
    return TensorParts::Open(folder.path(), "model").ReadPart("w", *cut(parts, part));
  };
  for (const auto& [parts, part, copied] : {std::tuple{2, 1, 0}, {6, 2, 0}, {3, 1, 32}}) {
    const int64_t before = GetAllocator(kCpu).stats().live_bytes;
    const Tensor tensor = read(parts, part);
    EXPECT_EQ(GetAllocator(kCpu).stats().live_bytes - before, copied) << parts;
    EXPECT_EQ(tensor.ToVector<float>(), cut(parts, part)->PartOf(whole).ToVector<float>());
  }
}

}  // namespace
}  // namespace lockstep::models
