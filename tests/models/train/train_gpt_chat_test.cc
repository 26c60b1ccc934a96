// Fine-tuning on conversations as users run it: train_gpt on a file of them, then sample_gpt
// --chat.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <utility>

#include "core/io/file.h"
#include "core/io/json.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/training/bpe_trainer.h"
#include "tests/subprocess.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr std::string_view kChatMl =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

constexpr std::array<std::pair<const char*, const char*>, 6> kColours = {{
    {"sky", "blue"},
    {"grass", "green"},
    {"coal", "black"},
    {"snow", "white"},
    {"blood", "red"},
    {"sun", "yellow"},
}};

class TrainGptChat : public testing::Test {
 protected:
  TrainGptChat() {
    folder_ =
        JoinPath(testing::TempDir(), testing::UnitTest::GetInstance()->current_test_info()->name());
    RemoveTree(folder_);
    MakeDirectories(Path("tokenizer"));
    data::BpeTrainerOptions options{.allow_fewer = true};
    options.special_tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    options.vocab_size = 3 + 256;  // bytes suffice
    WriteFileAtomically(
        Path("tokenizer/tokenizer.json"),
        data::ToHuggingFaceJson(data::TrainBpe({}, options), data::Gpt2PreTokenizer(), nullptr));
    WriteFileAtomically(Path("tokenizer/chat_template.jinja"), std::string(kChatMl));
    WriteConversations();
  }

  std::string Path(const std::string& name) const { return JoinPath(folder_, name); }

  // 300 conversations about colours, of one to three questions.
  void WriteConversations() const {
    std::mt19937 random(3);
    std::string lines;
    for (size_t i = 0; i < 300; ++i) {
      Json messages = Json::array();
      for (size_t turn = 0; turn <= i % 3; ++turn) {
        const auto& [thing, colour] = kColours[random() % kColours.size()];
        messages.push_back({{"role", "user"}, {"content", std::string(thing) + "?"}});
        messages.push_back({{"role", "assistant"}, {"content", colour}});
      }
      lines += Json{{"messages", messages}}.dump() + "\n";
    }
    WriteFileAtomically(Path("chat.jsonl"), lines);
  }

  Result Train(const std::vector<std::string>& more) const {
    const auto gives = [&](const std::string& option) {
      return std::ranges::any_of(more,
                                 [&](const auto& given) { return given.starts_with(option); });
    };
    std::vector<std::string> all = {"models/train_gpt", "--train.batch_size=4", "--threads=2"};
    if (!gives("--data.mix")) all.push_back("--data.path=" + Path("chat.jsonl"));
    if (!gives("--train.sample_tokens")) all.push_back("--train.sample_tokens=0");
    all.insert(all.end(), more.begin(), more.end());
    return RunProgram(all);
  }
  std::vector<std::string> Fresh(const std::string& out, int steps) const {
    return {"--data.tokenizer=" + Path("tokenizer/tokenizer.json"),
            "--out_dir=" + Path(out),
            "--model.block_size=96",
            "--model.n_layer=2",
            "--model.n_head=2",
            "--model.n_embd=48",
            "--model.position=rope",
            "--optim.lr=1e-2",
            "--optim.warmup=10",
            "--train.eval_every=50",
            "--train.steps=" + std::to_string(steps)};
  }
  Result Chat(const std::string& checkpoint, const std::vector<std::string>& more) const {
    std::vector<std::string> all = {"models/sample_gpt",
                                    "--checkpoint=" + Path(checkpoint),
                                    "--chat",
                                    "--temperature=0",
                                    "--tokens=12",
                                    "--threads=1"};
    all.insert(all.end(), more.begin(), more.end());
    return RunProgram(all);
  }

  std::string folder_;
};

TEST_F(TrainGptChat, ASmallModelAnswersWhatItWasTunedOn) {
  std::vector<std::string> options = Fresh("out", 200);
  options.insert(options.end(), {"--train.sample_tokens=12", "--train.sample_prompt=sky?"});
  const Result training = Train(options);
  ASSERT_EQ(training.exit_code, 0) << training;
  // What a sample continues is what a user says.
  EXPECT_THAT(training.out, HasSubstr("---- sample ----\n<|im_start|>user\nsky?<|im_end|>\n"
                                      "<|im_start|>assistant\nblue<|im_end|>\n----------------"));
  // Without --chat a prompt is text.
  const Result plain =
      RunProgram({"models/sample_gpt", "--checkpoint=" + Path("out"), "--prompt=sky?", "--tokens=4",
                  "--temperature=0", "--threads=1"});
  EXPECT_THAT(plain.out, testing::StartsWith("sky?"));
  EXPECT_THAT(plain.err, HasSubstr("prompt: 4 tokens"));
  EXPECT_THAT(training.out + training.err, HasSubstr("conversations in"));
  // The checkpoint has the tokenizer and the template. Each answer ends by its end token.
  std::string answers;
  std::vector<std::string> questions;
  for (const auto& [thing, colour] : kColours) {
    questions.push_back("--prompt=" + std::string(thing) + "?");
    answers += std::string(colour) + "\n";
  }
  for (size_t i = 0; i < kColours.size(); ++i) {
    const Result one = Chat("out/latest", {questions[i]});
    ASSERT_EQ(one.exit_code, 0) << one;
    EXPECT_EQ(one.out, std::string(kColours[i].second) + "\n") << one;
  }
  // The history is kept, and forgotten where it outgrows the context: all six in a row.
  const Result all = Chat("out/latest", questions);
  ASSERT_EQ(all.exit_code, 0) << all;
  EXPECT_EQ(all.out, answers);
  EXPECT_THAT(all.err, HasSubstr("what was said first is forgotten"));
  // Who loads it knows where answers end.
  const auto generation = [&](const std::string& checkpoint) {
    return Json::parse(ReadFile(Path(checkpoint + "/generation_config.json")));
  };
  EXPECT_THAT(generation("out/latest")["eos_token_id"], testing::Contains(2));
  // The run folder's checkpoint is what tuning goes on from, with nothing else named, and with its
  // settings.
  WriteFileAtomically(Path("out/latest/generation_config.json"),
                      R"({"eos_token_id": 0, "top_k": 20})");
  const Result tuned = Train({"--init_from=" + Path("out/latest"), "--out_dir=" + Path("tuned"),
                              "--train.steps=2", "--optim.lr=1e-5", "--model.position=rope"});
  ASSERT_EQ(tuned.exit_code, 0) << tuned;
  EXPECT_EQ(Chat("tuned", {"--prompt=sky?"}).out, "blue\n");
  EXPECT_EQ(generation("tuned/latest"), (Json{{"eos_token_id", {0, 2}}, {"top_k", 20}}));
}

TEST_F(TrainGptChat, ADryRunShowsARowWithItsMask) {
  std::vector<std::string> options = Fresh("dry", 5);
  options.push_back("--dry_run");
  const Result run = Train(options);
  ASSERT_EQ(run.exit_code, 0) << run;
  EXPECT_THAT(run.out, AllOf(HasSubstr("300 conversations in "),
                             HasSubstr(" rows of 96 tokens, which they "
                                       "fill to "),
                             HasSubstr("of their tokens are learnt"),
                             HasSubstr("?<|im_end|>\n<|im_start|>assistant\n>>>"),
                             HasSubstr("<|im_end|><<<\n<|im_start|>user\n")));
  EXPECT_FALSE(PathExists(Path("dry")));
}

TEST_F(TrainGptChat, ARunThatStopsGoesOnAsIfItHadNot) {
  std::vector<std::string> options = Fresh("whole", 8);
  options.push_back("--checkpoint.every=3");
  options.push_back("--checkpoint.keep=0");
  options.push_back("--train.sample_tokens=4");
  const Result whole = Train(options);
  ASSERT_EQ(whole.exit_code, 0) << whole;
  // By default a conversation that is held out is sampled from.
  EXPECT_THAT(whole.out, testing::ContainsRegex("---- sample ----\n<\\|im_start\\|>user\n[a-z]+\\?"
                                                "<\\|im_end\\|>\n<\\|im_start\\|>assistant\n"));
  const std::string at_3 = Path("whole/checkpoints/step-00000003");
  options[1] = "--out_dir=" + Path("resumed");
  options.push_back("--checkpoint.resume=" + at_3);
  const Result resumed = Train(options);
  ASSERT_EQ(resumed.exit_code, 0) << resumed;
  const std::string end = "/checkpoints/step-00000008/model.safetensors";
  EXPECT_EQ(ReadFile(Path("resumed") + end), ReadFile(Path("whole") + end));
}

TEST_F(TrainGptChat, AMixtureWithTextGoesOnAsIfItHadNotStopped) {
  std::string text;
  for (int line = 0; line < 300; ++line) text += "Line " + std::to_string(line) + " of a text.\n";
  WriteFileAtomically(Path("plain.txt"), text);
  std::vector<std::string> options = Fresh("whole", 8);
  const auto run = [&](const std::string& more) {
    options.push_back(more);
    const Result result = Train(options);
    EXPECT_EQ(result.exit_code, 0) << result;
    return result.out;
  };
  options.push_back("--data.mix=" + Path("plain.txt") + ":0.25," + Path("chat.jsonl") + ":0.75");
  EXPECT_THAT(run("--dry_run"),
              AllOf(HasSubstr("300 conversations in "), HasSubstr("assistant\n>>>")));
  options.pop_back();
  options.push_back("--checkpoint.every=3");
  EXPECT_THAT(run("--checkpoint.keep=0"),
              AllOf(HasSubstr("plain.txt: weight 1, "), HasSubstr("chat.jsonl: weight 3, "),
                    HasSubstr("step 8 | validation loss ")));
  options[1] = "--out_dir=" + Path("resumed");
  run("--checkpoint.resume=" + Path("whole/checkpoints/step-00000003"));
  const std::string end = "/checkpoints/step-00000008/model.safetensors";
  EXPECT_EQ(ReadFile(Path("resumed") + end), ReadFile(Path("whole") + end));
}

TEST_F(TrainGptChat, ErrorsSayWhatToDo) {
  const auto error = [&](const std::vector<std::string>& more) {
    std::vector<std::string> options = Fresh("out", 5);
    options.insert(options.end(), more.begin(), more.end());
    const Result run = Train(options);
    EXPECT_EQ(run.exit_code, 2) << run;
    return run.err;
  };
  EXPECT_THAT(error({"--data.order=random"}), HasSubstr("conversations are packed into rows"));
  EXPECT_THAT(error({"--data.if_long=error", "--model.block_size=16"}),
              HasSubstr("chat.jsonl:1: this conversation has "));
  EXPECT_THAT(error({"--data.tokenizer=auto"}), HasSubstr("conversations need a tokenizer"));
  EXPECT_THAT(error({"--data.path=-"}), HasSubstr("say which with --data.format=text or "));
  WriteFileAtomically(Path("both.jsonl"), R"({"text":"a","prompt":"b","completion":"c"})");
  EXPECT_THAT(error({"--data.path=" + Path("both.jsonl")}),
              AllOf(HasSubstr("both.jsonl:1: "), HasSubstr("choose with --data.format=chat or ")));
  RemoveTree(Path("tokenizer/chat_template.jinja"));
  EXPECT_THAT(error({}), AllOf(HasSubstr("conversations need the model's chat template"),
                               HasSubstr("--data.chat_template=FILE")));
}

// As the page has it: epochs, no warm-up of one's own.
TEST_F(TrainGptChat, AFewEpochsAreEnoughToLearn) {
  std::vector<std::string> options = Fresh("out", 0);
  std::erase(options, "--optim.warmup=10");
  options.push_back("--train.epochs=4");
  const Result run = Train(options);
  ASSERT_EQ(run.exit_code, 0) << run;
  int steps = 0, warmup = 0;
  const size_t length = run.out.find(" steps, "), rise = run.out.find(" steps of warm-up");
  ASSERT_NE(length, std::string::npos) << run;
  ASSERT_NE(rise, std::string::npos) << run;
  steps = std::stoi(run.out.substr(run.out.rfind(' ', length - 1) + 1));
  warmup = std::stoi(run.out.substr(run.out.rfind(' ', rise - 1) + 1));
  EXPECT_LT(steps, 300);
  EXPECT_EQ(warmup, steps / 10);
  EXPECT_THAT(run.err, Not(HasSubstr("optim.warmup")));
  EXPECT_EQ(Chat("out/latest", {"--prompt=sky?"}).out, "blue\n");
  // One that is given stays, and is told of.
  options.insert(options.end(), {"--optim.warmup=10000", "--dry_run"});
  EXPECT_THAT(Train(options).err,
              HasSubstr("optim.warmup = 10000 (command line) is more than half"));
}

}  // namespace
}  // namespace lockstep
