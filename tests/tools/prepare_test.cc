// The program `prepare`: killed at random times, its messages, and training on what it makes.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <random>
#include <thread>

#include "core/io/file.h"
#include "tests/models/temp_folder.h"
#include "tests/sanitized.h"
#include "tests/subprocess.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class PrepareProgram : public ::testing::Test {
 protected:
  void SetUp() override {
    std::mt19937 random(5);
    std::string lines;
    for (int i = 0; i < 20000; ++i) {
      lines += "{\"text\": \"";
      for (uint32_t word = random() % 100; word > 0; --word) {
        lines += std::to_string(random() % 1000) + " ";
      }
      lines += "\"}\n";
    }
    WriteFileAtomically(root_.Path("a.jsonl"), lines);
  }

  std::vector<std::string> Command(const std::string& out,
                                   const std::vector<std::string>& more = {},
                                   const std::string& tokenizer = "--data.tokenizer=byte") const {
    std::vector<std::string> command = {"tools/prepare",
                                        "--data.path=" + root_.Path("a.jsonl"),
                                        tokenizer,
                                        "--out_dir=" + root_.Path(out),
                                        "--shard_tokens=200000",
                                        "--threads=2"};
    command.insert(command.end(), more.begin(), more.end());
    return command;
  }
  std::map<std::string, std::string> Contents(const std::string& out) const {
    std::map<std::string, std::string> contents;
    for (const std::string& name : ListDirectory(root_.Path(out))) {
      contents[name] = ReadFile(JoinPath(root_.Path(out), name));
    }
    return contents;
  }

  const test::TempFolder root_{"lockstep_prepare_program_test"};
};

// Whatever is first to find no memory: the loader, a thread, an allocation, a map.
TEST_F(PrepareProgram, ALimitOfMemoryIsAnErrorAndNoCrash) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer maps terabytes";
  int named = 0;
  for (int kib = 20000; kib < 110000; kib += 12000) {
    std::vector<std::string> command = {
        "/bin/bash", "-c", "ulimit -v " + std::to_string(kib) + "; exec \"$@\"", "bash"};
    const std::vector<std::string> prepare = Command("limited" + std::to_string(kib));
    command.insert(command.end(), prepare.begin(), prepare.end());
    const Result run = RunProgram(command);
    EXPECT_TRUE(run.exit_code == 0 || run.exit_code == 1 || run.exit_code == 127) << run;
    if (run.exit_code != 1) continue;
    ++named;
    EXPECT_THAT(run.err, HasSubstr("ulimit -v"));
  }
  EXPECT_GT(named, 0);
}

TEST_F(PrepareProgram, KilledAtRandomItGivesTheSameBytes) {
  const auto begin = std::chrono::steady_clock::now();
  const Result whole = RunProgram(Command("whole"));
  ASSERT_EQ(whole.exit_code, 0) << whole;
  EXPECT_THAT(whole.out, AllOf(HasSubstr("is complete: "), HasSubstr("no end-of-text token"),
                               HasSubstr("train_gpt --data.path=" + root_.Path("whole"))));
  const auto most = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::steady_clock::now() - begin);
  std::mt19937 random(17);
  int killed = 0;
  for (int i = 0; i < 8; ++i) {
    Subprocess program(Command("killed"));
    std::this_thread::sleep_for(most * (random() % 100) / 120);
    program.Signal(SIGKILL);
    killed += program.Wait().signal == SIGKILL;
  }
  EXPECT_GT(killed, 0);
  const Result rest = RunProgram(Command("killed"));
  ASSERT_EQ(rest.exit_code, 0) << rest;
  EXPECT_EQ(Contents("killed"), Contents("whole"));
  EXPECT_THAT(RunProgram(Command("whole")).out, HasSubstr("was complete already"));
}

TEST_F(PrepareProgram, RefusesWithAReason) {
  ASSERT_EQ(RunProgram(Command("out")).exit_code, 0);
  const Result other = RunProgram(Command("out", {"--data.field=body"}));
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("field: text -> body"));
  EXPECT_THAT(RunProgram(Command("new", {"--train_tokenizer=400"})).err,
              AllOf(HasSubstr("train_tokenizer"), HasSubstr("leave one of the two out")));
  EXPECT_THAT(RunProgram({"tools/prepare"}).err, HasSubstr("--data.path"));
  EXPECT_THAT(RunProgram(Command("new", {"--data.field=body"})).err,
              AllOf(HasSubstr("a.jsonl:1"), HasSubstr("no field \"body\"")));
}

TEST_F(PrepareProgram, MessagesSayWhatToWrite) {
  const std::string file = root_.Path("a.jsonl");
  const auto error = [](const std::vector<std::string>& arguments) {
    std::vector<std::string> command = {"tools/prepare"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    const Result result = RunProgram(command);
    EXPECT_EQ(result.exit_code, 2) << result;
    return result.err;
  };
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           {file}, {"--data.path", "b.txt", file}, {"--out_dir=x", file}}) {
    EXPECT_THAT(error(arguments), HasSubstr("--data.path='" + file + "'"));
  }
  EXPECT_THAT(error({"-"}), HasSubstr("--data.path='-'"));
  const Result config = RunProgram(
      {"tools/prepare", "--data.path=missing.txt", "--data.tokenizer=byte", "--print_config"});
  WriteFileAtomically(root_.Path("p.toml"), config.out);
  EXPECT_THAT(error({root_.Path("p.toml"), "--out_dir=x"}), HasSubstr("missing.txt"));
  const std::string out = root_.Path("out");
  ASSERT_EQ(RunProgram(Command("out")).exit_code, 0);
  for (const std::string& prepared : {out, out + "/tokens_train_000000.bin"}) {
    EXPECT_THAT(error({"--data.path=" + prepared, "--data.tokenizer=byte",
                       "--out_dir=" + root_.Path("more")}),
                HasSubstr("train_gpt --data.path=" + prepared));
  }
  // Texts among the token files: the same command continues.
  const std::string texts = root_.Path("texts");
  MakeDirectories(texts);
  WriteFileAtomically(texts + "/a.txt", "some text");
  const std::vector<std::string> beside = {"tools/prepare", "--data.path=" + texts,
                                           "--data.tokenizer=byte", "--out_dir=" + texts};
  for (int call = 0; call < 2; ++call) EXPECT_EQ(RunProgram(beside).exit_code, 0);
  Subprocess(Command("begun", {}, "--train_tokenizer=400"), {{"LOCKSTEP_FAULT", "kill@30"}}).Wait();
  EXPECT_THAT(error({"--data.path=" + root_.Path("begun"), "--out_dir=x"}),
              HasSubstr("prepare has not finished this folder"));
  EXPECT_THAT(RunProgram(Command("new", {}, "--train_tokenizer=60000")).err,
              AllOf(HasSubstr("Ask for at most "), HasSubstr("prepare --train_tokenizer="),
                    Not(HasSubstr("min_frequency"))));
}

TEST_F(PrepareProgram, OptionsThatWouldDoNothingAreRefused) {
  WriteFileAtomically(root_.Path("b.txt"), "a text\n\nand another");
  const std::string text = "--data.path=" + root_.Path("b.txt");
  const auto refused = [&](const std::vector<std::string>& more) {
    const Result result = RunProgram(Command("new", more));
    EXPECT_EQ(result.exit_code, 2) << result;
    EXPECT_FALSE(PathExists(root_.Path("new")));
    return result.err;
  };
  EXPECT_THAT(
      refused({"--format=nanogpt", "--name=web"}),
      AllOf(HasSubstr("name = \"web\" (command line) does nothing"), HasSubstr("--format=llmc")));
  EXPECT_THAT(refused({"--val_shard", "--val_fraction=0.1"}),
              AllOf(HasSubstr("val_fraction = 0.1"), HasSubstr("leave one of the two out")));
  for (const std::vector<std::string>& rows :
       std::vector<std::vector<std::string>>{{}, {"--data.type=jsonl"}}) {
    std::vector<std::string> more = rows;
    more.push_back("--data.document=line");
    EXPECT_THAT(refused(more), HasSubstr("--data.type=text"));
  }
  const auto prepare = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = {"tools/prepare", "--data.tokenizer=byte",
                                    "--out_dir=" + root_.Path("new")};
    all.insert(all.end(), more.begin(), more.end());
    const Result result = RunProgram(all);
    RemoveTree(root_.Path("new"));
    return result;
  };
  EXPECT_THAT(prepare({text, "--data.field=body"}).err, HasSubstr("--data.type=jsonl"));
  WriteFileAtomically(root_.Path("d.csv"), "body\nrows\n");
  const std::string table = "--data.path=" + root_.Path("d.csv");
  EXPECT_THAT(prepare({table, "--data.field=body"}).err,
              AllOf(HasSubstr("mlr -S"), HasSubstr("--data.type=text")));
  EXPECT_EQ(prepare({table, "--data.type=text"}).exit_code, 0);
  // With both kinds of files each has its effect, and what says the default is no mistake.
  WriteFileAtomically(root_.Path("c.jsonl"), "{\"body\": \"rows\"}\n");
  const std::string rows = "--data.path=" + root_.Path("c.jsonl");
  EXPECT_THAT(prepare({text, rows, "--data.field=body", "--data.document=paragraph"}).out,
              HasSubstr("from 3 documents"));
  EXPECT_EQ(prepare({text, "--data.field=text", "--format=nanogpt", "--name=tokens"}).exit_code, 0);
}

TEST_F(PrepareProgram, AnInterruptionSaysHowToGoOn) {
  ASSERT_EQ(RunProgram(Command("whole")).exit_code, 0);
  // Its files take long from then on.
  Subprocess program(Command("interrupted"), {{"LOCKSTEP_FAULT", "slow@10+"}});
  const std::string first = root_.Path("interrupted/tokens_train_000000.bin");
  for (int i = 0; i < 6000 && !PathExists(first); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  program.Signal(SIGINT);
  const Result result = program.Wait();
  EXPECT_EQ(result.signal, SIGINT) << result;
  EXPECT_THAT(result.err, HasSubstr("prepare: interrupted; the same command continues"));
  ASSERT_EQ(RunProgram(Command("interrupted")).exit_code, 0);
  EXPECT_EQ(Contents("interrupted"), Contents("whole"));
}

TEST_F(PrepareProgram, ATrainedTokenizerHasTheTokensOfChats) {
  const std::vector<std::string> chats = {"--special_tokens=<|im_start|>,<|im_end|>",
                                          "--split_pattern=llama-3"};
  const Result run = RunProgram(Command("chats", chats, "--train_tokenizer=400"));
  ASSERT_EQ(run.exit_code, 0) << run;
  const std::string json = ReadFile(root_.Path("chats/tokenizer.json"));
  EXPECT_THAT(json, AllOf(HasSubstr("\"content\": \"<|im_end|>\""), HasSubstr("{1,3}")));
  EXPECT_THAT(ReadFile(root_.Path("chats/manifest.json")), HasSubstr("special_token=<|im_end|>"));
  const Result other = RunProgram(Command("chats", {}, "--train_tokenizer=400"));
  EXPECT_THAT(other.err, HasSubstr("tokenizer: bpe"));
  for (const std::string& option : chats) {
    EXPECT_THAT(RunProgram(Command("new", {option})).err, HasSubstr("--train_tokenizer=32000"));
  }
}

TEST_F(PrepareProgram, ATrainedTokenizerSurvivesACrash) {
  const std::string trained = "--train_tokenizer=400";
  ASSERT_EQ(RunProgram(Command("whole", {}, trained)).exit_code, 0);
  Subprocess(Command("killed", {}, trained), {{"LOCKSTEP_FAULT", "kill@30"}}).Wait();
  ASSERT_TRUE(PathExists(root_.Path("killed/manifest.json")));
  const Result rest = RunProgram(Command("killed", {}, trained));
  ASSERT_EQ(rest.exit_code, 0) << rest;
  EXPECT_THAT(rest.err, Not(HasSubstr("Training a tokenizer")));
  EXPECT_EQ(Contents("killed"), Contents("whole"));
}

TEST_F(PrepareProgram, ItsFolderIsTrainedOn) {
  ASSERT_EQ(RunProgram(Command("out", {}, "--train_tokenizer=400")).exit_code, 0);
  const Result run = RunProgram(
      {"models/train_gpt", "--data.path=" + root_.Path("out"), "--out_dir=" + root_.Path("run"),
       "--model.n_layer=1", "--model.n_head=2", "--model.n_embd=16", "--model.block_size=16",
       "--train.batch_size=4", "--train.steps=2", "--train.eval_batches=1", "--threads=1"});
  ASSERT_EQ(run.exit_code, 0) << run;
  EXPECT_TRUE(PathExists(root_.Path("run/latest/tokenizer.json")));
}

}  // namespace
}  // namespace lockstep
