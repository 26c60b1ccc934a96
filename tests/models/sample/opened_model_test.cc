// What programs say of a model that does not fit in memory.
#include "models/sample/opened_model.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "tests/message_of.h"

namespace lockstep::models {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string Advice(const std::string& checkpoint, const std::string& device) {
  ModelSource source;
  source.checkpoint = checkpoint;
  source.device = device;
  return test::MessageOf<OutOfMemoryError>([&] {
    AdviseOnMemory(source, "--batch_size=1", "--nproc=2",
                   []() -> int { throw OutOfMemoryError("out of memory on it"); });
  });
}

TEST(AdviseOnMemory, LeavesTheErrorWhereTheModelIsGone) {
  EXPECT_EQ(Advice("no/such/folder", "cpu"), "out of memory on it");
}

// Its ranks would share the memory.
TEST(AdviseOnMemory, NamesNoRanksOnACpu) {
  EXPECT_THAT(
      Advice("tests/testdata/llama_parity", "cpu"),
      AllOf(HasSubstr("What takes less: --batch_size=1; --base=nf4"), Not(HasSubstr("--nproc"))));
}

}  // namespace
}  // namespace lockstep::models
