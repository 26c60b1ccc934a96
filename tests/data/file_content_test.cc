// Whether changes of token files and their indexes are noticed, and what is read again for it.
#include "data/file_content.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "data/token_file.h"
#include "tests/data/dataset_fixture.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

class FileContentTest : public DatasetTest {
 protected:
  FileContentTest() {
    options_ = {.path = tokens_, .val_fraction = 0};
    std::vector<int32_t> tokens(1 << 20);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i % 50000);
    WriteTokenFile(tokens_, TokenFormat::kNanoGpt, tokens);
    WriteIndex({0, 70, 900});
    first_ = OpenDataset(options_);
  }

  void WriteIndex(const std::vector<uint64_t>& starts) const {
    WriteText(folder_ + "/a.idx",
              {reinterpret_cast<const char*>(starts.data()), starts.size() * sizeof(starts[0])});
  }
  // As an editor of bytes does that gives the file its old time back.
  void Overwrite(int64_t at) const {
    const auto time = fs::last_write_time(tokens_);
    std::fstream(tokens_, std::ios::in | std::ios::out | std::ios::binary).seekp(at) << '\1';
    fs::last_write_time(tokens_, time);
  }

  const std::string tokens_ = folder_ + "/a.bin";
  Dataset first_;
};

TEST_F(FileContentTest, AnyByteAndTheIndexCount) {
  Overwrite(1 << 20);  // the middle: 2 bytes a token
  const Dataset changed = OpenDataset(options_);
  EXPECT_NE(changed.fingerprint, first_.fingerprint);
  EXPECT_EQ(changed.older_fingerprint, first_.older_fingerprint);
  // What version 0.1.0 wrote of these tokens.
  EXPECT_EQ(first_.older_fingerprint,
            "38f8cd5a0d3afcd46e14dfcbe467baee77507dd102997c3c2c713536b1ffe11d");
  WriteIndex({0, 71, 900});
  EXPECT_NE(OpenDataset(options_).fingerprint, changed.fingerprint);
  fs::remove(folder_ + "/a.idx");
  EXPECT_NE(OpenDataset(options_).fingerprint, changed.fingerprint);
}

TEST_F(FileContentTest, CopiesAndTouchedFilesAreTheSame) {
  fs::create_directory(folder_ + "/b");
  for (const char* name : {"/a.bin", "/a.idx"}) fs::copy(folder_ + name, folder_ + "/b" + name);
  fs::last_write_time(tokens_, fs::file_time_type::clock::now() + std::chrono::hours(1));
  options_.known_files = first_.files;
  for (const std::string& path : {tokens_, folder_ + "/b/a.bin", folder_ + "/b"}) {
    options_.path = path;
    EXPECT_EQ(OpenDataset(options_).fingerprint, first_.fingerprint) << path;
  }
}

TEST_F(FileContentTest, KnownFilesAreReadAgainOnlyAfterAChange) {
  options_.known_files = first_.files;
  ASSERT_EQ(options_.known_files.size(), 2u);
  const std::string mark(64, 'f');
  options_.known_files[0].sha256 = mark;  // would not be so if the bytes were read
  EXPECT_EQ(OpenDataset(options_).files[0].sha256, mark);
  EXPECT_EQ(OpenDataset(options_).vocab_size, 50000);
  options_.vocab_size = 49000;
  EXPECT_THAT(OpenError(options_), testing::HasSubstr("token 49000 at position 49000"));
  options_.vocab_size = 0;
  Overwrite(1 << 20);
  EXPECT_NE(OpenDataset(options_).files[0].sha256, mark);
}

TEST_F(FileContentTest, TimesThatMayNotShowAnotherChangeAreTold) {
  EXPECT_TRUE(first_.files[0].recent);  // the test has just written it
  const FileContent again = ParseFileContent(ToLine(first_.files[0]), "here");
  EXPECT_EQ(ToLine(again), ToLine(first_.files[0]));
  EXPECT_EQ(again.stamp, first_.files[0].stamp);
  EXPECT_EQ(again.largest, 49999);
  for (const char* bad : {"", "x 1 recent 5", "3"}) {
    EXPECT_THROW(ParseFileContent(bad, "here"), InputError) << bad;
  }
}

}  // namespace
}  // namespace lockstep::data
