#include "core/io/file_lock.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <thread>

#include "core/error.h"
#include "core/io/file.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using State = FileLock::State;
using std::chrono::milliseconds;

class FileLockTest : public testing::Test {
 protected:
  FileLockTest()
      : path_(JoinPath(testing::TempDir(),
                       testing::UnitTest::GetInstance()->current_test_info()->name())) {
    RemoveTree(path_);
  }

  // A process that holds the lock until it is killed.
  pid_t Holder() {
    std::array<int, 2> ready;
    EXPECT_EQ(pipe(ready.data()), 0);
    const pid_t child = fork();
    if (child == 0) {
      const FileLock lock(path_, "the child", {});
      [[maybe_unused]] const ssize_t n =
          write(ready[1], lock.state() == State::kHeld ? "y" : "n", 1);
      for (;;) pause();
    }
    char held = 0;
    EXPECT_EQ(read(ready[0], &held, 1), 1);
    EXPECT_EQ(held, 'y');
    close(ready[0]);
    close(ready[1]);
    return child;
  }

  static void Kill(pid_t child) {
    kill(child, SIGKILL);
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status));
  }

  const std::string path_;
};

TEST_F(FileLockTest, OneHoldsIt) {
  {
    const FileLock first(path_, "the first", {});
    EXPECT_EQ(first.state(), State::kHeld);
    const FileLock second(path_, "the second", {});
    EXPECT_EQ(second.state(), State::kBusy);
    EXPECT_EQ(second.why(), "the first");
    // Reading the file, which POSIX locks would not survive, changes nothing.
    EXPECT_EQ(ReadFile(path_), "the first");
    EXPECT_EQ(FileLock(path_, "the third", {}).state(), State::kBusy);
  }
  const FileLock next(path_, "next", {});
  EXPECT_EQ(next.state(), State::kHeld);
  EXPECT_EQ(ReadFile(path_), "next") << "the longer note of the one before is gone";
}

TEST_F(FileLockTest, OfAnotherProcessUntilItIsKilled) {
  const pid_t child = Holder();
  {
    const FileLock mine(path_, "mine", {});
    EXPECT_EQ(mine.state(), State::kBusy);
    EXPECT_EQ(mine.why(), "the child");
  }
  Kill(child);
  EXPECT_EQ(FileLock(path_, "mine", {}).state(), State::kHeld);
}

TEST_F(FileLockTest, WaitsForOneThatIsAboutToEnd) {
  const pid_t child = Holder();
  std::thread killer([&] {
    std::this_thread::sleep_for(milliseconds(100));
    Kill(child);
  });
  EXPECT_EQ(FileLock(path_, "mine", milliseconds(60000)).state(), State::kHeld);
  killer.join();
}

TEST_F(FileLockTest, AProgramThatIsStartedMeanwhileDoesNotKeepIt) {
  pid_t child = -1;
  {
    const FileLock lock(path_, "mine", {});
    child = fork();
    if (child == 0) {
      execlp("sleep", "sleep", "1000", nullptr);
      _exit(1);
    }
    std::this_thread::sleep_for(milliseconds(50));
  }
  EXPECT_EQ(FileLock(path_, "mine", milliseconds(60000)).state(), State::kHeld);
  Kill(child);
}

TEST_F(FileLockTest, WhereNoFileCanBe) {
  EXPECT_THAT(test::MessageOf<IoError>([&] { FileLock(JoinPath(path_, "lock"), "", {}); }),
              HasSubstr("No such file or directory"));
}

}  // namespace
}  // namespace lockstep
