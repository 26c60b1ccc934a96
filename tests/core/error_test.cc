#include "core/error.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(ErrorTest, CheckThrowsArgumentErrorWithTheMessage) {
  const int got = 3;
  try {
    LS_CHECK(got == 2, "expected 2, got ", got);
    FAIL() << "LS_CHECK did not throw";
  } catch (const ArgumentError& error) {
    EXPECT_STREQ(error.what(), "expected 2, got 3");
  }
}

TEST(ErrorTest, PassingChecksDoNotEvaluateTheMessage) {
  int evaluations = 0;
  LS_CHECK(true, ++evaluations);
  LS_INVARIANT(true, ++evaluations);
  EXPECT_EQ(evaluations, 0);
}

TEST(ErrorTest, InvariantNamesFileAndCondition) {
  try {
    LS_INVARIANT(1 + 1 == 3, "arithmetic");
    FAIL() << "LS_INVARIANT did not throw";
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("error_test.cc:"), std::string::npos) << what;
    EXPECT_NE(what.find("1 + 1 == 3"), std::string::npos) << what;
    EXPECT_NE(what.find("arithmetic"), std::string::npos) << what;
  }
}

}  // namespace
}  // namespace lockstep
