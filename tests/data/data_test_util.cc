#include "tests/data/data_test_util.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace lockstep::data {

namespace fs = std::filesystem;

std::string TestFolder() {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  const fs::path folder =
      fs::path(testing::TempDir()) / (std::string(test->test_suite_name()) + "." + test->name());
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder.string();
}

void WriteText(const std::string& path, std::string_view contents) {
  std::ofstream file(path, std::ios::binary);
  file << contents;
  ASSERT_TRUE(file.flush().good()) << path;
}

std::string TestData(const std::string& name) { return "tests/data/testdata/" + name; }

std::optional<std::string> SharedData(const std::string& name) {
  if (const char* folder = std::getenv("LOCKSTEP_TEST_DATA")) {
    return (fs::path(folder) / name).string();
  }
  // The runfiles are links into the workspace.
  std::error_code error;
  fs::path folder = fs::canonical(TestData("gpt2_goldens.json"), error);
  while (folder.has_relative_path()) {
    folder = folder.parent_path();
    if (fs::exists(folder / "shared/data" / name, error)) {
      return (folder / "shared/data" / name).string();
    }
  }
  return std::nullopt;
}

std::vector<int32_t> All(const TokenSource& source) {
  std::vector<int32_t> tokens(source.size());
  source.Read(0, tokens);
  return tokens;
}

std::vector<int32_t> RandomIds(std::mt19937* random, int64_t count, int32_t limit) {
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>((*random)() % limit);
  return ids;
}

}  // namespace lockstep::data
