// trainer_state.json, which may come from anywhere.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/io/file.h"
#include "models/checkpoint/checkpoint.h"
#include "tests/message_of.h"
#include "tests/models/temp_folder.h"

namespace lockstep::models {
namespace {

using test::MessageOf;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kText[] = R"({"format": 1, "step": 7, "tokens_seen": 4294967296,
  "best_val_loss": 1.5, "last_loss": 2, "finished": false, "data_fingerprint": "x", "config": "",
  "loss_scale": {"scale": 1024, "good_steps": 3, "skipped": 2}})";

TEST(TrainerStateTest, ReadsTheNumbersThatFitAndRefusesOthers) {
  const test::TempFolder folder("trainer_state");
  const auto read = [&](const std::string& text) {
    WriteFileAtomically(folder.Path("trainer_state.json"), text);
    return ReadTrainerState(folder.path());
  };
  const TrainerState state = read(kText);
  EXPECT_EQ(state.step, 7);
  EXPECT_EQ(state.tokens_seen, int64_t{1} << 32);
  EXPECT_EQ(state.last_loss, 2);
  ASSERT_TRUE(state.loss_scale.has_value());
  EXPECT_EQ(state.loss_scale->good_steps, 3);
  EXPECT_TRUE(state.data_files.empty());  // as older ones

  const auto refusal = [&](const std::string& from, const std::string& to) {
    std::string text = kText;
    text.replace(text.find(from), from.size(), to);
    return MessageOf<InputError>([&] { read(text); });
  };
  EXPECT_THAT(refusal("\"format\": 1", "\"format\": 4294967297"), HasSubstr("\"format\""));
  EXPECT_THAT(refusal("\"step\": 7", "\"step\": 1e30"),
              AllOf(HasSubstr("trainer_state.json: \"step\": "), HasSubstr("is not an integer")));
  EXPECT_THAT(refusal("\"step\": 7", "\"step\": 18446744073709551615"), HasSubstr("is too large"));
  EXPECT_THAT(refusal("\"step\": 7", "\"step\": true"), HasSubstr("true is not an integer"));
  EXPECT_THAT(refusal("\"step\": 7", "\"step\": -7"), HasSubstr("\"step\""));
  EXPECT_THAT(refusal("\"step\": 7, ", ""), HasSubstr("\"step\" is missing"));
  EXPECT_THAT(refusal("\"good_steps\": 3", "\"good_steps\": 4294967296"),
              HasSubstr("\"good_steps\""));
  EXPECT_THAT(refusal("\"finished\": false", "\"finished\": 0"), HasSubstr("\"finished\""));
  EXPECT_THAT(refusal("\"x\"", "\"x\", \"data_files\": [\"a b\"]"), HasSubstr("a b"));
  EXPECT_THAT(refusal("\"x\"", "\"x\", \"data_files\": 3"), HasSubstr("\"data_files\""));
}

}  // namespace
}  // namespace lockstep::models
