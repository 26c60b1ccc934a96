// Hugging Face folders of large models: several files with an index.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/io/file.h"
#include "core/io/safetensors.h"
#include "models/gpt/hf/hf_format.h"
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
    const auto index = nlohmann::json::parse(ReadFile(to + "/model.safetensors.index.json"));
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

}  // namespace
}  // namespace lockstep::models
