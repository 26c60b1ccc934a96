#include "tests/data/data_test_util.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "tests/sanitized.h"

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

int64_t GrowthKib(const std::function<void()>& f) {
  int ends[2];
  LS_INVARIANT(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto most = [] {
      rusage usage{};
      getrusage(RUSAGE_SELF, &usage);
      return int64_t{usage.ru_maxrss};
    };
    const int64_t before = most();
    f();
    const int64_t growth = most() - before;
    _exit(write(ends[1], &growth, sizeof(growth)) == sizeof(growth) ? 0 : 1);
  }
  int64_t growth = -1;
  close(ends[1]);
  EXPECT_EQ(read(ends[0], &growth, sizeof(growth)), static_cast<ssize_t>(sizeof(growth)));
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return growth;
}

testing::Matcher<int64_t> GrewLessThan(int64_t kib) {
  return testing::AllOf(testing::Ge(0), testing::Lt(test::kSanitized ? INT64_MAX : kib));
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
