#include "models/checkpoint/tensor_parts.h"

#include <gmock/gmock-matchers.h>

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
  EXPECT_THAT(with("\"format\": 1", "\"format\": 2"), HasSubstr("format 2"));
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

}  // namespace
}  // namespace lockstep::models
