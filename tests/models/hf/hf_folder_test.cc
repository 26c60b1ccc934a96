// Hugging Face folders of large models: several files with an index.
#include <fmt/format.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "core/io/file.h"
#include "core/io/json.h"
#include "core/io/safetensors.h"
#include "models/gpt/hf/hf_format.h"
#include "tests/message_of.h"
#include "tests/models/training.h"

namespace lockstep::models {
namespace {

// In the layout of save_pretrained.
TEST(HfFolder, ALargeModelIsSeveralFilesThatLoadAsOne) {
  Gpt model(SmallGpt(0));
  model.Materialize(kCpu, 3);
  const auto tensors = ToHfTensors(model);
  const std::string config = ToHfConfig(model.config());
  const auto folder = [&](int64_t max_bytes) {
    const std::string to = JoinPath(testing::TempDir(), StrCat("of", max_bytes));
    RemoveTree(to);
    WriteHfFolder(to, config, tensors, max_bytes);
    return to;
  };
  const std::string whole = folder(int64_t{1} << 40);
  EXPECT_EQ(ListDirectory(whole), (std::vector<std::string>{"config.json", "model.safetensors"}));
  const auto one = SafetensorsFile::Open(whole + "/model.safetensors");
  for (const int64_t max_bytes : {1, 2000, 8000}) {
    const std::string to = folder(max_bytes);
    const auto index = Json::parse(ReadFile(to + "/model.safetensors.index.json"));
    std::set<std::string> files;
    int64_t total = 0;
    for (const SafetensorsEntry& e : one.entries()) {
      const std::string name = index.at("weight_map").at(e.name);
      files.insert(name);
      total += std::ssize(e.bytes);
      const auto file = SafetensorsFile::Open(JoinPath(to, name));
      EXPECT_TRUE(std::ranges::equal(file.Get(e.name).bytes, e.bytes)) << e.name;
      EXPECT_EQ(file.metadata().at("format"), "pt");
    }
    EXPECT_EQ(index.at("metadata").at("total_size"), total);
    EXPECT_EQ(index.at("weight_map").size(), one.entries().size());
    ASSERT_GT(files.size(), 1u);
    EXPECT_EQ(ListDirectory(to).size(), files.size() + 2);
    int64_t number = 0;
    for (const std::string& name : files) {
      EXPECT_EQ(name, fmt::format("model-{:05}-of-{:05}.safetensors", ++number, files.size()));
      const auto file = SafetensorsFile::Open(JoinPath(to, name));
      int64_t bytes = 0;
      for (const SafetensorsEntry& e : file.entries()) bytes += std::ssize(e.bytes);
      EXPECT_TRUE(bytes <= max_bytes || file.entries().size() == 1u) << name;
    }
    Gpt loaded(ReadHfConfig(to));
    loaded.Materialize(kCpu, 4);
    LoadHfWeights(loaded, to);
    EXPECT_EQ(WeightsOf(loaded), WeightsOf(model)) << max_bytes;
  }
}

class HfFolderOfOthers : public testing::Test {
 protected:
  HfFolderOfOthers() {
    RemoveTree(folder_);
    model_.Materialize(kCpu, 3);
    WriteHfFolder(folder_, ToHfConfig(model_.config()), ToHfTensors(model_), int64_t{1} << 40);
  }
  std::string Path(const std::string& name) const { return JoinPath(folder_, name); }
  std::vector<float> Load() const {
    Gpt loaded(ReadHfConfig(folder_));
    loaded.Materialize(kCpu, 4);
    LoadHfWeights(loaded, folder_);
    return WeightsOf(loaded);
  }
  std::string LoadError() const {
    return test::MessageOf<InputError>([&] { Load(); });
  }
  // Writes the single file again, with other names.
  void Rename(const std::function<std::string(const std::string&)>& name) const {
    const std::string path = Path("model.safetensors");
    std::vector<SafetensorsItem> items;
    {
      const auto file = SafetensorsFile::Open(path);
      for (const SafetensorsEntry& e : file.entries()) {
        if (const std::string to = name(e.name); !to.empty()) {
          items.push_back(SafetensorsItem::Of(to, e.ToTensor()));
        }
      }
    }
    ReplaceFile(path, [&](FileWriter& file) { WriteSafetensors(file, items); });
  }

  const std::string folder_ = JoinPath(testing::TempDir(), "of_others");
  Gpt model_{SmallGpt(0)};
};

// An index of an earlier save that was left there, as transformers sees it.
TEST_F(HfFolderOfOthers, TheSingleFileCountsBesideAnIndex) {
  WriteFileAtomically(Path("model.safetensors.index.json"),
                      R"({"weight_map": {"wte.weight": "gone.safetensors"}})");
  EXPECT_EQ(Load(), WeightsOf(model_));
}

TEST_F(HfFolderOfOthers, ATiedEmbeddingMayBeTheHeadAlone) {
  ASSERT_TRUE(model_.config().tie_embeddings);
  Rename([](const std::string& name) {
    return name.ends_with("wte.weight") ? "lm_head.weight" : name;
  });
  EXPECT_EQ(Load(), WeightsOf(model_));
}

TEST_F(HfFolderOfOthers, PicklesAreNamedAndHowToConvertThem) {
  RenameDurably(Path("model.safetensors"), Path("pytorch_model.bin"));
  EXPECT_THAT(LoadError(), testing::AllOf(testing::HasSubstr("pytorch_model.bin"),
                                          testing::HasSubstr("save_pretrained")));
}

TEST_F(HfFolderOfOthers, AMissingModelTypeIsSaidToBeMissing) {
  WriteFileAtomically(Path("config.json"), R"({"hidden_size": 64, "num_hidden_layers": 2})");
  EXPECT_THAT(LoadError(), testing::HasSubstr("\"model_type\" is missing"));
}

}  // namespace
}  // namespace lockstep::models
