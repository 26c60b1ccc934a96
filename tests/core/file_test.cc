#include "core/io/file.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "core/io/fault.h"
#include "core/io/mapped_file.h"
#include "core/io/sha256.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = JoinPath(::testing::TempDir(), "file_test.XXXXXX");
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { RemoveTree(folder_); }

  std::string Path(std::string_view name) const { return JoinPath(folder_, name); }

  std::string folder_;
};

// The message of the IoError that f throws; fails the test if it throws none.
template <class F>
std::string IoErrorOf(const F& f) {
  try {
    f();
  } catch (const IoError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no IoError";
  return "";
}

// Runs f behind an injector with this plan.
template <class F>
void With(std::string_view plan, const F& f) {
  FaultInjector injector(FaultPlan::Parse(plan));
  const ScopedFaultInjector scope(&injector);
  f();
}

std::string Pattern(size_t size) {
  std::string text(size, '\0');
  for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 131 + (i >> 8));
  return text;
}

TEST_F(FileTest, WritesAcrossBufferBoundaries) {
  const std::string text = Pattern(1000);
  for (const size_t buffer : {size_t{1}, size_t{7}, size_t{999}, size_t{1000}, size_t{4096}}) {
    for (const size_t piece : {size_t{1}, size_t{6}, size_t{7}, size_t{8}, size_t{1000}}) {
      FileWriter file(Path("f"), {.sha256 = true, .buffer_bytes = buffer});
      for (size_t at = 0; at < text.size(); at += piece) {
        file.Write(std::string_view(text).substr(at, piece));
      }
      EXPECT_EQ(file.bytes(), 1000);
      file.Sync();
      file.Close();
      EXPECT_EQ(ReadFile(Path("f")), text) << buffer << " " << piece;
      EXPECT_EQ(file.Sha256Hex(), Sha256Of(text));
    }
  }
}

TEST_F(FileTest, ModesTruncateAppendAndRefuse) {
  const auto write = [&](std::string_view text, FileWriterOptions::Mode mode) {
    FileWriter file(Path("f"), {.mode = mode});
    file.Write(text);
    file.Close();
  };
  write("long text", FileWriterOptions::Mode::kTruncate);
  write("ab", FileWriterOptions::Mode::kTruncate);
  write("cd", FileWriterOptions::Mode::kAppend);
  EXPECT_EQ(ReadFile(Path("f")), "abcd");
  EXPECT_THAT(IoErrorOf([&] { write("x", FileWriterOptions::Mode::kCreateNew); }),
              AllOf(HasSubstr(Path("f")), HasSubstr("EEXIST")));
}

TEST_F(FileTest, DestructorWritesNothing) {
  { FileWriter(Path("f")).Write("never flushed"); }
  EXPECT_EQ(ReadFile(Path("f")), "");
}

TEST_F(FileTest, ShortWritesAndEintrAreInvisible) {
  const std::string text = Pattern(300);
  for (const char* plan : {"short@1+", "eintr@1", "eintr@2", "eintr@3"}) {
    With(plan, [&] {
      FileWriter file(Path("f"), {.sha256 = true, .buffer_bytes = 64});
      file.Write(text);
      file.Sync();
      file.Close();
      EXPECT_EQ(file.Sha256Hex(), Sha256Of(text));
    });
    EXPECT_EQ(ReadFile(Path("f")), text) << plan;
  }
}

TEST_F(FileTest, DiskFullNamesPathAndBytesAndPoisonsTheWriter) {
  With("enospc@2", [&] {
    FileWriter file(Path("full"));
    file.ExpectBytes(5000);
    file.Write("abc");
    EXPECT_THAT(IoErrorOf([&] { file.Flush(); }),
                AllOf(HasSubstr("cannot write " + Path("full")), HasSubstr("ENOSPC"),
                      HasSubstr("5000 more bytes are needed"), HasSubstr("bytes are free")));
    EXPECT_THAT(IoErrorOf([&] { file.Write("x"); }), HasSubstr("an earlier write"));
    EXPECT_THROW(file.Sync(), IoError);
    EXPECT_THROW(file.Close(), IoError);
  });
}

TEST_F(FileTest, FailedFsyncIsNotTriedAgain) {
  With("eio@3", [&] {
    FileWriter file(Path("f"));
    file.Write("abc");
    EXPECT_THAT(IoErrorOf([&] { file.Sync(); }), AllOf(HasSubstr("sync"), HasSubstr("EIO")));
    EXPECT_THROW(file.Sync(), IoError);
  });
}

TEST_F(FileTest, ErrorsNameOperationPathReasonAndFix) {
  EXPECT_THAT(IoErrorOf([&] { ReadFile(Path("none")); }),
              AllOf(HasSubstr("open"), HasSubstr(Path("none")), HasSubstr("No such file"),
                    HasSubstr("Check the path")));
  EXPECT_THAT(IoErrorOf([&] { ReadFile(folder_); }), HasSubstr("EISDIR"));
  WriteFileAtomically(Path("plain"), "x");
  EXPECT_THAT(IoErrorOf([&] { FileWriter file(Path("plain/below")); }), HasSubstr("ENOTDIR"));
  EXPECT_THAT(IoErrorOf([&] { MakeDirectories(Path("plain/below/deep")); }), HasSubstr("ENOTDIR"));
  EXPECT_THAT(IoErrorOf([&] { MakeDirectories(Path("plain")); }), HasSubstr("ENOTDIR"));
  std::filesystem::create_symlink("absent", Path("dangling"));
  EXPECT_THAT(IoErrorOf([&] { MakeDirectories(Path("dangling/below")); }),
              HasSubstr("it is a link to absent, which is not there"));
  EXPECT_THAT(IoErrorOf([&] { FileWriter file(Path("no/such/folder")); }), HasSubstr("ENOENT"));
  With("eacces@1", [&] {
    EXPECT_THAT(IoErrorOf([&] { RequireWritableDirectory(folder_); }), HasSubstr("permissions"));
  });
  With("erofs@1", [&] {
    EXPECT_THAT(IoErrorOf([&] { MakeDirectories(Path("new")); }), HasSubstr("mounted read-only"));
  });
  WriteFileAtomically(Path("large"), Pattern(100));
  EXPECT_THAT(IoErrorOf([&] { ReadFile(Path("large"), 99); }), HasSubstr("larger than the 99"));
  EXPECT_EQ(ReadFile(Path("large"), 100).size(), 100u);
}

TEST_F(FileTest, ErrorsNameTheFileAndNotItsTemporary) {
  const auto error = [](const std::string& path) {
    return test::MessageOf<IoError>([&] { ThrowIoError("write", path, EIO); });
  };
  EXPECT_THAT(error("out/.config.toml.tmp"), HasSubstr("write out/config.toml:"));
  EXPECT_THAT(error("out/checkpoints/.tmp-step-00000010-1234/model.safetensors"),
              HasSubstr("write out/checkpoints/step-00000010/model.safetensors:"));
  EXPECT_THAT(error("out/.tmp-model/a.b.tmp"), HasSubstr("write out/model/a.b.tmp:"));
}

// What cannot be seen is not taken for absent.
TEST_F(FileTest, OnlyWhatIsNotThereIsAbsent) {
  const std::string loop = Path("loop");
  ASSERT_EQ(symlink("loop", loop.c_str()), 0);
  EXPECT_TRUE(PathExists(loop));
  EXPECT_THROW(PathExists(loop + "/file"), IoError);
  EXPECT_THROW(IsDirectory(loop), IoError);
  EXPECT_FALSE(PathExists(Path("none/file")));
  EXPECT_FALSE(PathExists(std::string(5000, 'x')));  // a text that may be a path
  EXPECT_FALSE(IsDirectory(Path("none")));
}

TEST_F(FileTest, PipesAreRefusedWithoutWaiting) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(IoErrorOf([&] { ReadFile(Path("pipe")); }), HasSubstr("regular file"));
  EXPECT_THAT(IoErrorOf([&] { MappedFile mapped(Path("pipe")); }), HasSubstr("regular file"));
}

TEST_F(FileTest, MappedFileShowsTheBytes) {
  const std::string text = Pattern(10000);
  WriteFileAtomically(Path("f"), text);
  MappedFile mapped(Path("f"));
  ASSERT_EQ(mapped.bytes().size(), text.size());
  EXPECT_EQ(std::memcmp(mapped.bytes().data(), text.data(), text.size()), 0);
  const std::byte* address = mapped.bytes().data();
  MappedFile moved(std::move(mapped));
  EXPECT_EQ(moved.bytes().data(), address);
  WriteFileAtomically(Path("empty"), "");
  moved = MappedFile(Path("empty"));
  EXPECT_TRUE(moved.bytes().empty());
  EXPECT_THROW(MappedFile(Path("none")), IoError);
}

// Kills a child at every operation of a replacement; readers see the old or the new text.
TEST_F(FileTest, AtomicWriteSurvivesAKillAnywhere) {
  const std::string path = Path("f"), old_text = Pattern(500), new_text = Pattern(700);
  for (const std::string fault : {"kill@", "tear@"}) {
    bool completed = false;
    int kills = 0;
    for (int at = 1; !completed; ++at) {
      ASSERT_LT(at, 50);
      WriteFileAtomically(path, old_text);
      const pid_t child = fork();
      if (child == 0) {
        FaultInjector injector(FaultPlan::Parse(fault + std::to_string(at)));
        const ScopedFaultInjector scope(&injector);
        WriteFileAtomically(path, new_text);
        _exit(0);
      }
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      completed = WIFEXITED(status);
      kills += !completed;
      const std::string now = ReadFile(path);
      EXPECT_TRUE(now == new_text || (!completed && now == old_text)) << fault << at;
      WriteFileAtomically(path, new_text);  // leftovers do not matter
      EXPECT_EQ(ReadFile(path), new_text);
    }
    EXPECT_EQ(kills, 5);  // create, write, sync, rename, sync of the folder
  }
}

TEST_F(FileTest, AtomicWriteFailsWithoutTraces) {
  for (int at = 1; at <= 5; ++at) {
    WriteFileAtomically(Path("f"), "old");
    With("enospc@" + std::to_string(at) + "+",
         [&] { EXPECT_THROW(WriteFileAtomically(Path("f"), "new"), IoError) << at; });
    // After the rename only the durability of the folder's entry is in doubt.
    EXPECT_EQ(ReadFile(Path("f")), at < 5 ? "old" : "new") << at;
    EXPECT_THAT(ListDirectory(folder_), ElementsAre("f")) << at;
  }
}

TEST_F(FileTest, AnExceptionOfTheWriterLeavesTheOldFile) {
  WriteFileAtomically(Path("f"), "old");
  const auto write = [](FileWriter& file) {
    file.Write("new");
    file.Flush();
    throw InputError("no more of it");
  };
  EXPECT_THROW(ReplaceFile(Path("f"), write), InputError);
  EXPECT_EQ(ReadFile(Path("f")), "old");
  EXPECT_THAT(ListDirectory(folder_), ElementsAre("f"));
}

TEST_F(FileTest, AtomicWriteSyncsBeforeItRenames) {
  FaultInjector recorder;
  {
    const ScopedFaultInjector scope(&recorder);
    WriteFileAtomically(Path("f"), "text");
  }
  std::vector<std::string> seen;
  for (const FaultInjector::Event& event : recorder.events()) {
    seen.push_back(StrCat(Name(event.op), " ", event.path.substr(folder_.size())));
  }
  EXPECT_THAT(seen, ElementsAre("create /.f.tmp", "write /.f.tmp", "sync /.f.tmp", "rename /.f.tmp",
                                "sync "));
}

TEST_F(FileTest, FoldersAreMadeListedAndRemoved) {
  MakeDirectories(Path("a/b/c"));
  MakeDirectories(Path("a/b/c"));
  WriteFileAtomically(Path("a/b/2"), "x");
  WriteFileAtomically(Path("a/b/1"), "x");
  WriteFileAtomically(Path("outside"), "kept");
  ReplaceSymlink("../outside", Path("a/link"));
  ReplaceSymlink("nowhere", Path("a/dangling"));
  EXPECT_THAT(ListDirectory(Path("a/b")), ElementsAre("1", "2", "c"));
  EXPECT_TRUE(PathExists(Path("a/dangling")));
  RemoveTree(Path("a"));
  RemoveTree(Path("a"));
  EXPECT_THAT(ListDirectory(folder_), ElementsAre("outside"));
  EXPECT_EQ(ReadFile(Path("outside")), "kept");
  EXPECT_THAT(IoErrorOf([&] { ListDirectory(Path("a")); }), HasSubstr("list"));
}

TEST_F(FileTest, SymlinksAreSwapped) {
  MakeDirectories(Path("one"));
  MakeDirectories(Path("two"));
  ReplaceSymlink("one", Path("latest"));
  WriteFileAtomically(Path("latest/f"), "1");
  ReplaceSymlink("two", Path("latest"));
  EXPECT_EQ(ReadFile(Path("one/f")), "1");
  EXPECT_FALSE(PathExists(Path("latest/f")));
  EXPECT_THAT(IoErrorOf([&] { ReplaceSymlink("one", Path("two")); }), HasSubstr("EISDIR"));
  EXPECT_THAT(ListDirectory(folder_), ElementsAre("latest", "one", "two"));
}

TEST_F(FileTest, RequireWritableDirectoryLeavesNothing) {
  RequireWritableDirectory(Path("new/out"));
  EXPECT_TRUE(ListDirectory(Path("new/out")).empty());
  for (int at = 1; at <= 3; ++at) {  // create, write, sync
    With("enospc@" + std::to_string(at),
         [&] { EXPECT_THROW(RequireWritableDirectory(Path("new/out")), IoError) << at; });
    EXPECT_TRUE(ListDirectory(Path("new/out")).empty()) << at;
  }
}

// A disk that is actually full: a tmpfs of 1 MiB.
TEST_F(FileTest, FullFileSystem) {
  MakeDirectories(Path("small"));
  if (mount("tmpfs", Path("small").c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "mounting a small file system needs privileges: " << std::strerror(errno);
  }
  WriteFileAtomically(Path("small/f"), "old");
  const std::string message =
      IoErrorOf([&] { WriteFileAtomically(Path("small/f"), Pattern(2 << 20)); });
  const std::vector<std::string> left = ListDirectory(Path("small"));
  const std::string kept = ReadFile(Path("small/f"));
  WriteFileAtomically(Path("small/f"), Pattern(100'000));
  EXPECT_EQ(umount(Path("small").c_str()), 0);
  EXPECT_THAT(message, HasSubstr("The disk is full"));
  EXPECT_THAT(left, ElementsAre("f"));
  EXPECT_EQ(kept, "old");
}

TEST_F(FileTest, NoInodesLeft) {
  MakeDirectories(Path("few"));
  if (mount("tmpfs", Path("few").c_str(), "tmpfs", 0, "size=1m,nr_inodes=3") != 0) {
    GTEST_SKIP() << "mounting a small file system needs privileges: " << std::strerror(errno);
  }
  const std::string message = IoErrorOf([&] {
    for (const char* name : {"few/1", "few/2", "few/3"}) FileWriter(Path(name)).Close();
  });
  EXPECT_EQ(umount(Path("few").c_str()), 0);
  EXPECT_THAT(message, AllOf(HasSubstr("few/3"), HasSubstr("no inodes"), HasSubstr("df -i")));
}

TEST(PathTest, PartsOfPaths) {
  EXPECT_EQ(JoinPath("a", "b"), "a/b");
  EXPECT_EQ(JoinPath("a/", "b"), "a/b");
  EXPECT_EQ(JoinPath("", "b"), "b");
  EXPECT_EQ(JoinPath("a", "/b"), "/b");
  EXPECT_EQ(ParentPath("a/b"), "a");
  EXPECT_EQ(ParentPath("a//b/"), "a");
  EXPECT_EQ(ParentPath("b"), ".");
  EXPECT_EQ(ParentPath("/b"), "/");
  EXPECT_EQ(ParentPath("/"), "/");
  EXPECT_EQ(BaseName("a/b/"), "b");
  EXPECT_EQ(BaseName("b"), "b");
}

TEST(Sha256Test, KnownDigests) {  // FIPS 180-4 examples
  EXPECT_EQ(Sha256Of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256Of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Sha256Test, MayContinueAfterADigest) {
  Sha256 hash;
  hash.Update(std::as_bytes(std::span("a", 1)));
  EXPECT_EQ(hash.HexDigest(), Sha256Of("a"));
  hash.Update(std::as_bytes(std::span("bc", 2)));
  EXPECT_EQ(hash.HexDigest(), Sha256Of("abc"));
}

TEST(FaultPlanTest, RefusesWhatItDoesNotKnow) {
  for (const char* text : {"", "kill", "kill@", "kill@0", "kill@-1", "kill@x", "kill@1++", "die@1",
                           "@1", "kill@99999999999999999999"}) {
    EXPECT_THROW(FaultPlan::Parse(text), InputError) << text;
  }
  const FaultPlan plan = FaultPlan::Parse("enospc@7+");
  EXPECT_EQ(plan.error, ENOSPC);
  EXPECT_EQ(plan.at, 7);
  EXPECT_TRUE(plan.repeat);
}

TEST(FaultPlanDeathTest, EnvironmentInstallsIt) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const std::string path = JoinPath(::testing::TempDir(), "fault_environment");
  EXPECT_EXIT(
      {
        setenv("LOCKSTEP_FAULT", "kill@1", 1);
        WriteFileAtomically(path, "x");
      },
      ::testing::KilledBySignal(SIGKILL), "");
}

}  // namespace
}  // namespace lockstep
