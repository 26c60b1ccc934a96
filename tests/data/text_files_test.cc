#include "data/text/text_files.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/error.h"
#include "tests/data/data_test_util.h"

namespace lockstep::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ListTextFiles, FoldersPatternsAndFiles) {
  const std::string folder = TestFolder();
  for (const char* name :
       {"b.txt", "a.jsonl.gz", "c.text.zst", "d.ndjson", "x.bin", "y.py", ".z.txt"}) {
    WriteText(folder + "/" + name, "x");
  }
  std::filesystem::create_directory(folder + "/aa");
  WriteText(folder + "/aa/e.json", "x");
  std::filesystem::create_directory_symlink(folder, folder + "/aa/loop");
  std::filesystem::create_directory_symlink("aa", folder + "/a_again");
  // Where the data of many are kept: its own links lead on, and back.
  const std::string elsewhere = folder + "-elsewhere";
  std::filesystem::remove_all(elsewhere);
  std::filesystem::create_directories(elsewhere + "/far/further");
  WriteText(elsewhere + "/far/f.txt", "x");
  WriteText(elsewhere + "/far/further/g.txt", "x");
  std::filesystem::create_directory_symlink(elsewhere + "/far", folder + "/zz");
  std::filesystem::create_directory_symlink(folder, elsewhere + "/far/further/back");
  std::filesystem::create_directory_symlink(elsewhere, elsewhere + "/far/up");
  std::vector<std::string> want;
  for (const char* name : {"a.jsonl.gz", "aa/e.json", "b.txt", "c.text.zst", "d.ndjson", "zz/f.txt",
                           "zz/further/g.txt"}) {
    want.push_back(folder + "/" + name);
  }
  EXPECT_EQ(ListTextFiles(std::vector{folder}), want);
  EXPECT_THAT(ListTextFiles(std::vector{folder + "/*.py", folder + "/b.txt"}),
              ElementsAre(folder + "/y.py", folder + "/b.txt"));
  const auto message = [](const std::vector<std::string>& paths) {
    return MessageOf<InputError>([&] { ListTextFiles(paths); });
  };
  EXPECT_THAT(message({folder + "/b.txt", folder + "/*.txt"}), HasSubstr("twice"));
  EXPECT_THAT(message({folder + "/b.txt", folder + "/./b.txt"}),
              AllOf(HasSubstr("/./b.txt"), HasSubstr("twice, as " + folder + "/b.txt")));
  std::filesystem::create_directory(folder + "/copies");
  std::filesystem::create_symlink("../b.txt", folder + "/copies/link.txt");
  EXPECT_THAT(message({folder + "/b.txt", folder + "/copies"}), HasSubstr("twice"));
  std::filesystem::remove_all(folder + "/copies");
  std::filesystem::create_directory(folder + "/packed");
  for (const char* name : {"c.jsonl.gz", "c.jsonl.zst"}) WriteText(folder + "/packed/" + name, "x");
  EXPECT_THAT(message({folder + "/packed"}),
              AllOf(HasSubstr("c.jsonl.gz and "), HasSubstr("differ only by .gz or .zst")));
  std::filesystem::remove_all(folder + "/packed");
  EXPECT_THAT(message({folder + "/x.bin"}), HasSubstr("token file"));
  EXPECT_THAT(message({folder + "/none"}), HasSubstr("no such file"));
  EXPECT_THAT(message({"-", folder + "/b.txt"}), HasSubstr("only source"));
  std::filesystem::create_directory(folder + "/empty");
  EXPECT_THAT(message({folder + "/empty"}), HasSubstr("no text file"));
}

}  // namespace
}  // namespace lockstep::data
