#include "core/system/shared_library.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/io/file.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

using test::MessageOf;
using testing::HasSubstr;

const SharedLibrary::Wanted kMath{
    .name = "the C library's math", .files = {"libm.so.6"}, .install = "libc6"};

TEST(SharedLibrary, FindsFunctions) {
  const SharedLibrary math(kMath);
  double (*power)(double, double) = nullptr;
  math.Find("pow", &power);
  EXPECT_EQ(power(2, 10), 1024);
}

TEST(SharedLibrary, TakesTheFirstFileThatLoads) {
  SharedLibrary::Wanted wanted = kMath;
  wanted.files = {"liblockstep-none.so.1", "libm.so.6", "liblockstep-none.so.2"};
  double (*root)(double) = nullptr;
  SharedLibrary(wanted).Find("sqrt", &root);
  EXPECT_EQ(root(81), 9);
}

TEST(SharedLibrary, SaysWhyNoFileLoadsAndWhatToInstall) {
  const std::string damaged = JoinPath(testing::TempDir(), "libdamaged.so.1");
  WriteFileAtomically(damaged, "no library");
  const std::string message = MessageOf<Error>([&] {
    SharedLibrary({.name = "NCCL", .files = {"liblockstep-none.so.1", damaged}, .install = "nccl"});
  });
  EXPECT_THAT(message, testing::StartsWith("NCCL cannot be loaded (liblockstep-none.so.1: "));
  EXPECT_THAT(message, HasSubstr("; " + damaged + ": "));
  EXPECT_THAT(message, testing::EndsWith("); install nccl, or add its folder to LD_LIBRARY_PATH"));
}

TEST(SharedLibrary, NamesTheFunctionAndTheFileThatHasNone) {
  const SharedLibrary math(kMath);
  void (*function)() = nullptr;
  EXPECT_EQ(MessageOf<Error>([&] { math.Find("lockstep_none", &function); }),
            "libm.so.6 has no lockstep_none: it is too old; install libc6");
  EXPECT_EQ(function, nullptr);
}

}  // namespace
}  // namespace lockstep
