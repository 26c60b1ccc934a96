// sample_gpt as users run it: each option, its output on stdout and stderr, and its errors.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <regex>
#include <set>

#include "core/io/file.h"
#include "core/io/safetensors_writer.h"
#include "data/tokenizer/byte_tokenizer.h"
#include "data/tokenizer/char_tokenizer.h"
#include "data/tokenizer/tokenizer.h"
#include "data/utf8.h"
#include "models/gpt/gpt.h"
#include "models/gpt/hf/hf_format.h"
#include "tests/subprocess.h"

namespace lockstep {
namespace {

using models::Gpt;
using models::GptConfig;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr const char* kCharacters = "\n abcdefghijklmnopqrstuvwxyz.";

// A vocabulary in GPT-2's format: the 256 bytes, a merge, and the end-of-text token.
std::string ByteLevelTokenizer() {
  std::string tokens, separator;
  for (int byte = 0; byte < 256; ++byte) {
    // GPT-2's printable stand-ins: the byte itself if printable, else 256 + its rank.
    const auto prints = [](int b) {
      return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
    };
    int code = byte;
    if (!prints(byte)) {
      code = 256;
      for (int b = 0; b < byte; ++b) code += !prints(b);
    }
    std::string character;
    data::AppendUtf8(static_cast<uint32_t>(code), &character);
    if (character == "\"" || character == "\\") character = "\\" + character;
    tokens += separator + "\"" + character + "\"";
    separator = ",";
  }
  return R"({"format": "lockstep-tokenizer", "version": 1, "type": "gpt2", "tokens": [)" + tokens +
         R"(, "th", "<|endoftext|>"], "merges": ["t h"]})";
}

class SampleGpt : public testing::Test {
 protected:
  SampleGpt() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = JoinPath(testing::TempDir(), StrCat("sample_", info->name()));
    RemoveTree(folder_);
    MakeDirectories(folder_);
    chars_ =
        Save("chars", {.vocab_size = 29, .block_size = 24, .n_layer = 2, .n_head = 2, .n_embd = 16},
             data::CharTokenizer(kCharacters).ToJson());
  }

  std::string Path(const std::string& name) const { return JoinPath(folder_, name); }
  std::string Text(const std::string& name, const std::string& contents) const {
    WriteFileAtomically(Path(name), contents);
    return Path(name);
  }

  // A folder with a model of random weights that clearly prefer some tokens. `favourite`: an id
  // that is far likelier than all others.
  std::string Save(const std::string& name, const GptConfig& config, const std::string& tokenizer,
                   int64_t favourite = -1) const {
    Gpt model(config);
    model.Materialize(kCpu, 1);
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (const auto& [path, p] : model.NamedParameters()) {
      const Tensor value = p->value().Detach();
      const bool matrix = value.ndim() >= 2;  // experts have several
      const float std =
          matrix ? 1.2f / std::sqrt(static_cast<float>(value.dim(value.ndim() - 1))) : 0.3f;
      for (int64_t i = 0; i < value.numel(); ++i) {
        value.data<float>()[i] = (matrix ? 0 : 1) + std * normal(random);
      }
      // ln_f's output gets a large constant element, and one token's row points along it.
      if (favourite >= 0 && path == "ln_f.bias") value.data<float>()[0] = 40;
      if (favourite >= 0 && path == "wte.weight") {
        for (int64_t id = 0; id < config.vocab_size; ++id) {
          value.data<float>()[id * config.n_embd] = id == favourite ? 1.0f : 0.0f;
        }
      }
    }
    MakeDirectories(Path(name));
    WriteFileAtomically(Path(name + "/config.json"), models::ToHfConfig(config));
    if (!tokenizer.empty()) WriteFileAtomically(Path(name + "/tokenizer.json"), tokenizer);
    FileWriter out(Path(name + "/model.safetensors"));
    WriteSafetensors(out, models::ToHfTensors(model));
    out.Close();
    return Path(name);
  }

  Result Run(const std::vector<std::string>& arguments, const std::string& checkpoint = "") const {
    std::vector<std::string> all = {"models/sample_gpt",
                                    "--checkpoint=" + (checkpoint.empty() ? chars_ : checkpoint),
                                    "--threads=1", "--tokens=40"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return RunProgram(all);
  }

  // The stdout of a run, which must succeed.
  std::string Out(const std::vector<std::string>& arguments,
                  const std::string& checkpoint = "") const {
    const Result run = Run(arguments, checkpoint);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return run.out;
  }

  std::string Error(const std::vector<std::string>& arguments,
                    const std::string& checkpoint = "") const {
    const Result run = Run(arguments, checkpoint);
    EXPECT_TRUE(run.exit_code == 1 || run.exit_code == 2) << run.exit_code;
    EXPECT_THAT(run.err, StartsWith("sample_gpt: "));
    return run.err;
  }

  std::string folder_, chars_;
};

// ---- Each option ----

// Every option that --help lists has a test below with its name; those of conversations have one in
// tests/models/train_gpt_chat_test, and adapters in tests/models/peft/adapter_programs_test.
TEST_F(SampleGpt, HelpListsTheOptionsThatAreTestedHere) {
  const Result help = RunProgram({"models/sample_gpt", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  std::set<std::string> listed;
  const std::regex option(R"(\n  --([a-z_]+))");
  for (std::sregex_iterator it(help.out.begin(), help.out.end(), option), end; it != end; ++it) {
    listed.insert((*it)[1]);
  }
  const std::set<std::string> tested = {"help",      "version", "print_config",       "checkpoint",
                                        "tokenizer", "prompt",  "prompt_file",        "num_samples",
                                        "tokens",    "stop",    "stop_at_end",        "temperature",
                                        "top_k",     "top_p",   "repetition_penalty", "seed",
                                        "kv_cache",  "slide",   "batch_size",         "stream",
                                        "threads",   "device",  "special_tokens"};
  std::set<std::string> elsewhere = {"adapter",       "base",   "chat",
                                     "chat_template", "system", "weights"};
  elsewhere.merge(std::set(tested));
  EXPECT_EQ(listed, elsewhere);
}

TEST_F(SampleGpt, PrintsPromptAndTextAndTheSpeedOnStderr) {
  const Result run = Run({"--prompt=the ", "--temperature=1"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, StartsWith("the "));
  EXPECT_EQ(data::CountUtf8(run.out), 4 + 40 + 1);
  EXPECT_THAT(run.err, testing::ContainsRegex("prompt: 4 tokens in [0-9.]+s, [0-9]+ tokens/s; then "
                                              "39 tokens in [0-9.]+s, [0-9]+ tokens/s\n"));
  EXPECT_THAT(run.err, HasSubstr("tools/serve --checkpoint="));
  EXPECT_THAT(RunProgram({"models/sample_gpt", "--version"}).out, HasSubstr("sample_gpt of"));
  EXPECT_THAT(Out({"--print_config", "--stop=a", "--stop=b\n", "--top_k=3"}),
              AllOf(HasSubstr("stop = [\"a\", \"b\\n\"]"), HasSubstr("top_k = 3")));
}

// The text of one process, streamed by one of them; a vocabulary that they divide, or not, as here.
TEST_F(SampleGpt, NprocSharesOutTheModel) {
  const GptConfig even{.vocab_size = 256,
                       .block_size = 16,
                       .n_layer = 2,
                       .n_head = 4,
                       .n_embd = 16,
                       .bias = false,
                       .n_kv_head = 2,
                       .norm = NormKind::kRmsNorm,
                       .activation = nn::MlpActivation::kSwiGlu,
                       .position = models::Position::kRope};
  GptConfig mixture = even;
  mixture.mixture = {.n_expert = 4, .n_expert_used = 2, .n_inner = 24};
  const std::string of_experts = Save("mixture", mixture, "");
  for (const auto& [checkpoint, prompts, nproc] :
       {std::tuple(chars_, std::vector<std::string>{"--prompt=the cat", "--prompt=b"}, "2"),
        {Save("llama", even, ""), {"--prompt=1", "--prompt=7 9"}, "4"},
        {of_experts, {"--prompt=1", "--prompt=7 9"}, "4"}}) {
    for (const std::vector<std::string>& options : std::vector<std::vector<std::string>>{
             {"--temperature=1", "--num_samples=2"},
             {"--temperature=0", "--kv_cache=false", "--stream=false"}}) {
      std::vector<std::string> all = prompts;
      all.insert(all.end(), options.begin(), options.end());
      const std::string alone = Out(all, checkpoint);
      all.push_back(StrCat("--nproc=", nproc));
      const Result ranks = Run(all, checkpoint);
      EXPECT_EQ(ranks.exit_code, 0) << ranks;
      EXPECT_EQ(ranks.out, alone);
      EXPECT_THAT(ranks.err, HasSubstr("[0] prompt: "));
      EXPECT_THAT(ranks.err, Not(HasSubstr("[1] "))) << "only one rank talks";
    }
  }
  EXPECT_THAT(Run({"--nproc=3"}).err,
              HasSubstr("2 heads, of 2 keys and values, cannot be split across 3 processes"));
  EXPECT_THAT(Run({"--nproc=3"}, of_experts).err,
              HasSubstr("4 experts cannot be split across 3 processes"));
}

TEST_F(SampleGpt, CheckpointIsAFolderOfWeightsOrOfARun) {
  const std::string text = Out({"--prompt=a"});
  MakeDirectories(Path("run"));
  ASSERT_EQ(rename(chars_.c_str(), Path("run/latest").c_str()), 0);
  EXPECT_EQ(Out({"--prompt=a"}, Path("run")), text);
  EXPECT_EQ(Out({"--prompt=a"}, Path("run/latest")), text);
  EXPECT_THAT(Error({}, Path("nowhere")), HasSubstr("nowhere"));
}

TEST_F(SampleGpt, TokenizerReplacesTheCheckpoints) {
  const std::string bytes = Save(
      "bytes", {.vocab_size = 256, .block_size = 16, .n_layer = 1, .n_head = 1, .n_embd = 8}, "");
  // Without one, input and output are token ids.
  EXPECT_THAT(Out({"--prompt=7 9", "--tokens=3"}, bytes),
              testing::MatchesRegex("7 9 [0-9]+ [0-9]+ [0-9]+ \n"));
  EXPECT_THAT(
      Error({"--prompt=é"}, bytes),
      AllOf(HasSubstr("--prompt: 'é' is not a token id below 256"), HasSubstr("--tokenizer=")));
  const std::string out = Out({"--tokenizer=byte", "--prompt=é", "--tokens=60"}, bytes);
  EXPECT_THAT(out, StartsWith("é"));
  EXPECT_EQ(data::ValidUtf8Prefix(out), out.size());  // whatever bytes the model drew
  EXPECT_THAT(Error({"--tokenizer=char"}), HasSubstr("tokenizer=char needs the text"));
  EXPECT_THAT(Error({"--tokenizer=/nowhere"}), HasSubstr("/nowhere"));
  EXPECT_THAT(Error({"--tokenizer=byte", "--prompt=~"}),
              HasSubstr("token 126 of the prompt is not in the model's vocabulary of 29"));
}

TEST_F(SampleGpt, PromptsGiveTheSameTextsAsEachAlone) {
  std::string want;
  for (const std::string prompt : {"a", "the cat", "a"}) {
    want += StrCat("---- prompt ",
                   want.empty()    ? 1
                   : prompt == "a" ? 3
                                   : 2,
                   " ----\n", Out({"--prompt=" + prompt}));
  }
  EXPECT_EQ(Out({"--prompt=a", "--prompt=the cat", "--prompt=a"}), want);
  EXPECT_THAT(Out({}), StartsWith("\n"));  // without a prompt: a newline
  EXPECT_THAT(Error({"--prompt="}), HasSubstr("the prompt is empty"));
  EXPECT_THAT(Error({"--prompt=ok", "--prompt=B"}), HasSubstr("--prompt: character 'B'"));
}

TEST_F(SampleGpt, PromptFileHasOnePromptPerLine) {
  const std::string file = Text("prompts.txt", "the cat\r\na\n");
  EXPECT_EQ(Out({"--prompt_file=" + file}), Out({"--prompt=the cat", "--prompt=a"}));
  EXPECT_EQ(Out({"--prompt_file=" + file, "--prompt=b"}),
            Out({"--prompt=b", "--prompt=the cat", "--prompt=a"}));
  EXPECT_EQ(Out({"--prompt_file=" + Text("one.txt", "the cat")}), Out({"--prompt=the cat"}));
  EXPECT_THAT(Error({"--prompt_file=" + Text("gap.txt", "a\n\nb\n")}),
              HasSubstr("gap.txt:2: the prompt is empty"));
  EXPECT_THAT(Error({"--prompt_file=" + Text("empty.txt", "")}), HasSubstr("empty.txt: is empty"));
  EXPECT_THAT(Error({"--prompt_file=" + Text("bad.txt", "a\nb#\n")}),
              HasSubstr("bad.txt:2: character '#'"));
  EXPECT_THAT(Error({"--prompt_file=" + Path("none.txt")}), HasSubstr("none.txt"));
}

TEST_F(SampleGpt, NumSamplesGivesDifferentTexts) {
  const std::string out = Out({"--prompt=a", "--num_samples=3", "--temperature=1"});
  std::set<std::string> texts;
  for (int s = 1; s <= 3; ++s) {
    const std::string header = StrCat("---- prompt 1, sample ", s, " ----\n");
    const size_t at = out.find(header);
    ASSERT_NE(at, std::string::npos) << out;
    texts.insert(out.substr(at + header.size(), 40));
  }
  EXPECT_EQ(texts.size(), 3u);
  // The first is the text without the option.
  EXPECT_THAT(
      out, StartsWith("---- prompt 1, sample 1 ----\n" + Out({"--prompt=a", "--temperature=1"})));
  EXPECT_THAT(Run({"--num_samples=2", "--temperature=0"}).err,
              HasSubstr("makes all samples of a prompt equal"));
}

TEST_F(SampleGpt, TokensIsTheLength) {
  EXPECT_EQ(Out({"--prompt=a", "--tokens=1"}).size(), 3u);
  const std::string longer = Out({"--prompt=a", "--tokens=90"});  // beyond the context of 24
  EXPECT_EQ(longer.size(), 92u);
  const std::string shorter = Out({"--prompt=a", "--tokens=30"});
  EXPECT_EQ(longer.substr(0, 31), shorter.substr(0, 31));
}

TEST_F(SampleGpt, StopEndsBeforeTheText) {
  const std::string whole = Out({"--prompt=a", "--tokens=80"});
  const std::string generated = whole.substr(1, 80);
  const std::string stop = generated.substr(30, 3);  // straddles three tokens
  const std::string want = "a" + generated.substr(0, generated.find(stop)) + "\n";
  EXPECT_EQ(Out({"--prompt=a", "--tokens=80", "--stop=" + stop}), want);
  EXPECT_EQ(Out({"--prompt=a", "--tokens=80", "--stop=nowhere", "--stop=" + stop}), want);
  EXPECT_EQ(Out({"--prompt=a", "--tokens=80", "--stop=" + stop, "--stream=false"}), want);
  EXPECT_EQ(Out({"--prompt=a", "--tokens=80", "--stop=no such text"}), whole);
  EXPECT_THAT(Error({"--stop="}), HasSubstr("--stop=: is empty"));
  // Each text of a batch stops separately.
  const std::string both = Out({"--prompt=a", "--prompt=b", "--tokens=80", "--stop=" + stop});
  EXPECT_THAT(both, HasSubstr(want));
  EXPECT_THAT(both, HasSubstr(Out({"--prompt=b", "--tokens=80", "--stop=" + stop})));
}

TEST_F(SampleGpt, StopAtEndHeedsTheEndOfTextToken) {
  const GptConfig config{
      .vocab_size = 258, .block_size = 16, .n_layer = 1, .n_head = 1, .n_embd = 8};
  const std::string ends = Save("ends", config, ByteLevelTokenizer(), /*favourite=*/257);
  EXPECT_EQ(Out({"--prompt=hi"}, ends), "hi\n");
  EXPECT_THAT(Out({"--prompt=hi", "--stop_at_end=false"}, ends),
              StartsWith("hi<|endoftext|><|endoftext|>"));
  // The token also begins a document.
  EXPECT_EQ(Out({"--prompt="}, ends), "\n");
  const std::string words = Save("words", config, ByteLevelTokenizer(), /*favourite=*/256);
  EXPECT_THAT(Out({"--prompt=", "--tokens=3"}, words), testing::Eq("ththth\n"));
}

// A tokenizer after Llama 2's: text begins with bos and a space that is not shown, and what lies
// beside the tokenizer names eos.
TEST_F(SampleGpt, HuggingFaceTokenizersBeginAndEndText) {
  const std::string tokenizer = R"({"version": "1.0", "added_tokens": [
      {"id": 0, "content": "<unk>", "special": true}, {"id": 1, "content": "<s>", "special": true},
      {"id": 2, "content": "</turn>", "special": true}],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
    "pre_tokenizer": null,
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
    "decoder": {"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "Fuse"},
      {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true,
      "vocab": {"<unk>": 0, "<s>": 1, "</turn>": 2, "▁": 3, "a": 4, "b": 5, "▁a": 6},
      "merges": ["▁ a"]}})";
  const GptConfig config{.vocab_size = 7, .block_size = 16, .n_layer = 1, .n_head = 1, .n_embd = 8};
  const std::string words = Save("words", config, tokenizer, /*favourite=*/6);
  EXPECT_EQ(Out({"--prompt=b", "--tokens=3"}, words), "b a a a\n");
  const std::string ends = Save("ends", config, tokenizer, /*favourite=*/2);
  EXPECT_THAT(Out({"--prompt=b", "--tokens=2"}, ends), testing::Eq("b</turn></turn>\n"));
  WriteFileAtomically(ends + "/tokenizer_config.json", R"({"eos_token": {"content": "</turn>"}})");
  EXPECT_EQ(Out({"--prompt=b", "--tokens=2"}, ends), "b\n");
  // bos, once; and as many tokens as ids, whose number is on stderr.
  const auto prompt_tokens = [&](const std::string& prompt, const std::string& option) {
    const std::string err = Run({"--prompt=" + prompt, "--tokens=2", option}, words).err;
    return err.substr(0, err.find(" in"));
  };
  EXPECT_EQ(prompt_tokens("a", "--special_tokens=true"), "prompt: 2 tokens");
  EXPECT_EQ(prompt_tokens("<s>a", "--special_tokens=true"), "prompt: 2 tokens");
  EXPECT_EQ(prompt_tokens("a", "--special_tokens=false"), "prompt: 1 tokens");
}

TEST_F(SampleGpt, TemperatureZeroIsGreedyAndHighIsWild) {
  const auto distinct = [&](const std::string& temperature) {
    std::set<std::string> texts;
    for (const char* seed : {"1", "2", "3"}) {
      texts.insert(Out({"--prompt=a", "--temperature=" + temperature, StrCat("--seed=", seed)}));
    }
    return texts.size();
  };
  EXPECT_EQ(distinct("0"), 1u);
  EXPECT_EQ(distinct("1"), 3u);
  EXPECT_NE(Out({"--prompt=a", "--temperature=0.3"}), Out({"--prompt=a", "--temperature=3"}));
  EXPECT_THAT(Error({"--temperature=-1"}), HasSubstr("--temperature=-1 is out of range"));
}

TEST_F(SampleGpt, TopKAndTopPNarrowTheChoice) {
  const std::string greedy = Out({"--prompt=a", "--temperature=0"});
  const std::vector<std::string> wild = {"--prompt=a", "--temperature=5"};
  const auto with = [&](const std::string& option) {
    std::vector<std::string> arguments = wild;
    arguments.push_back(option);
    return Out(arguments);
  };
  EXPECT_NE(Out(wild), greedy);
  EXPECT_EQ(with("--top_k=1"), greedy);
  EXPECT_EQ(with("--top_p=1e-9"), greedy);
  EXPECT_NE(with("--top_k=3"), greedy);
  EXPECT_NE(with("--top_k=3"), Out(wild));
  EXPECT_NE(with("--top_p=0.3"), Out(wild));
  EXPECT_EQ(with("--top_k=0"), Out(wild));
  EXPECT_EQ(with("--top_p=1"), Out(wild));
  EXPECT_THAT(Error({"--top_k=-1"}), HasSubstr("--top_k=-1 is out of range"));
  for (const char* bad : {"0", "1.5", "-1", "nan"}) {
    EXPECT_THAT(Error({StrCat("--top_p=", bad)}), HasSubstr(StrCat("--top_p=", bad)));
  }
}

TEST_F(SampleGpt, RepetitionPenaltyMakesTextsVaried) {
  const auto characters = [&](const std::string& penalty) {
    const std::string out =
        Out({"--prompt=a", "--temperature=0", "--tokens=25", "--repetition_penalty=" + penalty});
    return std::set<char>(out.begin(), out.end()).size();
  };
  EXPECT_GT(characters("100"), characters("1") + 3);
  EXPECT_THAT(Error({"--repetition_penalty=0"}), HasSubstr("must be above 0"));
}

TEST_F(SampleGpt, SeedChoosesTheText) {
  EXPECT_EQ(Out({"--prompt=a", "--seed=3"}), Out({"--prompt=a", "--seed=3"}));
  EXPECT_NE(Out({"--prompt=a", "--seed=3"}), Out({"--prompt=a", "--seed=4"}));
  EXPECT_THAT(Error({"--seed=-1"}), HasSubstr("--seed=-1 is out of range"));
}

TEST_F(SampleGpt, KvCacheChangesOnlyTheSpeed) {
  const std::vector<std::string> wide = {"--prompt=a", "--tokens=100", "--num_samples=2"};
  std::vector<std::string> without = wide;
  without.push_back("--kv_cache=false");
  EXPECT_EQ(Out(wide), Out(without));
}

TEST_F(SampleGpt, SlideMovesTheContext) {
  const std::string half = Out({"--prompt=a", "--tokens=100"});
  EXPECT_EQ(Out({"--prompt=a", "--tokens=100", "--slide=12"}), half);  // the default: 24 / 2
  const std::string one = Out({"--prompt=a", "--tokens=100", "--slide=1"});
  EXPECT_NE(one, half);
  EXPECT_EQ(one.substr(0, 25), half.substr(0, 25));  // the context is not full yet
  EXPECT_EQ(Out({"--prompt=a", "--tokens=100", "--slide=1", "--kv_cache=false"}), one);
  EXPECT_THAT(Error({"--slide=25"}), HasSubstr("the model's context has 24 tokens"));
  EXPECT_THAT(Error({"--slide=-1"}), HasSubstr("--slide=-1 is out of range"));
}

TEST_F(SampleGpt, BatchSizeBoundsHowManyTextsGrowAtOnce) {
  std::vector<std::string> arguments = {"--num_samples=5", "--prompt=a", "--prompt=the cat"};
  const std::string want = Out(arguments);
  for (const char* size : {"1", "3", "100"}) {
    std::vector<std::string> sized = arguments;
    sized.push_back(StrCat("--batch_size=", size));
    EXPECT_EQ(Out(sized), want) << size;
  }
  EXPECT_THAT(Error({"--batch_size=0"}), HasSubstr("--batch_size=0 is out of range"));
}

// Text is shown as it grows: a run that would take hours shows its beginning. Without streaming,
// nothing is shown before the end.
TEST_F(SampleGpt, StreamShowsTextAsItGrows) {
  Subprocess streaming({"models/sample_gpt", "--checkpoint=" + chars_, "--prompt=the cat",
                        "--tokens=1000000000", "--threads=1"});
  streaming.WaitForOutput("the cat");
  const std::string whole = Out({"--prompt=the cat"});
  streaming.WaitForOutput(whole.substr(0, whole.size() - 1));
  const std::string out = Out({"--prompt=a", "--num_samples=2", "--stream=false"});
  EXPECT_EQ(out, Out({"--prompt=a", "--num_samples=2"}));
}

TEST_F(SampleGpt, ThreadsChangeNoBit) {
  const std::vector<std::string> arguments = {"--prompt=a", "--num_samples=3"};
  std::vector<std::string> more = arguments;
  more.push_back("--threads=3");
  EXPECT_EQ(Out(more), Out(arguments));
  EXPECT_THAT(Error({"--threads=-1"}), HasSubstr("--threads=-1 is out of range"));
}

TEST_F(SampleGpt, DeviceIsChecked) {
  EXPECT_EQ(Out({"--prompt=a", "--device=cpu"}), Out({"--prompt=a"}));
  EXPECT_THAT(Error({"--device=tpu"}), HasSubstr("device=tpu"));
}

TEST_F(SampleGpt, ExplainsBadOptions) {
  EXPECT_THAT(Error({"--tokens=0"}), HasSubstr("--tokens=0 is out of range"));
  EXPECT_THAT(Error({"--num_samples=0"}), HasSubstr("--num_samples=0 is out of range"));
  EXPECT_THAT(Error({"--max_new_tokens=3"}), HasSubstr("did you mean --tokens?"));
  EXPECT_THAT(Error({"--top_q=3"}), HasSubstr("did you mean --top_"));
  EXPECT_THAT(Error({"--prompt"}), HasSubstr("--prompt needs a value: write --prompt=TEXT"));
  EXPECT_THAT(Error({"file.toml"}), HasSubstr("unexpected argument 'file.toml'"));
  WriteFileAtomically(JoinPath(chars_, "model.safetensors"), "garbage");
  EXPECT_THAT(Error({}), HasSubstr("model.safetensors"));
}

}  // namespace
}  // namespace lockstep
