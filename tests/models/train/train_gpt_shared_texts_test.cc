// train_gpt on several ranks of a machine: one of them encodes the data of all.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <filesystem>
#include <regex>
#include <set>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "data/tokenizer/bpe_json.h"
#include "data/tokenizer/byte_alphabet.h"
#include "tests/rank_runs.h"

namespace lockstep {
namespace {
using testing::HasSubstr;

// Counts how often any of some files is opened.
class Openings {
 public:
  explicit Openings(const std::vector<std::string>& paths) : fd_(inotify_init1(IN_NONBLOCK)) {
    for (const std::string& path : paths) inotify_add_watch(fd_, path.c_str(), IN_OPEN | IN_CLOSE);
  }
  ~Openings() { close(fd_); }
  Openings(const Openings&) = delete;
  Openings& operator=(const Openings&) = delete;

  int Count() const {
    int count = 0;
    std::vector<char> events(1 << 16);
    for (ssize_t size; (size = read(fd_, events.data(), events.size())) > 0;) {
      for (ssize_t at = 0; at < size;) {
        const auto* event = reinterpret_cast<const inotify_event*>(events.data() + at);
        if ((event->mask & IN_OPEN) != 0) ++count;
        at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
      }
    }
    return count;
  }

 private:
  const int fd_;
};

class SharedTexts : public RankRuns {
 protected:
  void SetUp() override {
    Json vocab = Json::object(), added = Json::array();
    for (int byte = 0; byte < 256; ++byte) {
      vocab[data::BytesToPrintable(std::string(1, static_cast<char>(byte)))] = byte;
    }
    added.push_back(data::SpecialTokenJson<Json>(256, "<|im_start|>"));
    added.push_back(data::SpecialTokenJson<Json>(257, "<|im_end|>"));
    WriteFileAtomically(Path("tokenizer.json"),
                        (data::ByteLevelBpeJson<Json>(vocab, Json::array(), added, nullptr,
                                                      data::ByteLevelJson<Json>(false),
                                                      data::ByteLevelJson<Json>(false)))
                            .dump());
    WriteFileAtomically(Path("template.jinja"),
                        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
                        "<|im_end|>\n{% endfor %}"
                        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
    std::string text, rows, chat, pairs;
    for (int i = 0; i < 100; ++i) {
      const std::string number = std::to_string(i);
      text += "Line " + number + " of a text.\n";
      rows += Json{{"text", "Document " + number}}.dump() + "\n";
      chat += Json{{"prompt", number + "?"}, {"completion", number + "!"}}.dump() + "\n";
      pairs += Json{{"prompt", number}, {"chosen", "yes"}, {"rejected", "NO"}}.dump() + "\n";
    }
    WriteFileAtomically(Path("text.txt"), text);
    WriteFileAtomically(Path("rows.jsonl"), rows);
    WriteFileAtomically(Path("chat.jsonl"), chat);
    WriteFileAtomically(Path("pairs.jsonl"), pairs);
  }

  std::vector<std::string> Files() const {
    return {Path("text.txt"), Path("rows.jsonl"), Path("chat.jsonl"), Path("pairs.jsonl")};
  }
  Arguments Options(const Arguments& more) const {
    Arguments all = {"--train.steps=3",          "--train.batch_size=1",
                     "--train.sample_tokens=3",  "--train.global_batch_size=4",
                     "--dist.reduction=ordered", "--model.block_size=64",
                     "--model.dropout=0"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  // What the first rank prints of the data, notes and warnings.
  static std::string Told(const std::vector<Result>& results) {
    std::string told;
    const std::regex line("[^\n]*(conversations in|pairs of answers|  data |: weight)[^\n]*");
    const std::string& out = results[0].out;
    for (std::sregex_iterator it(out.begin(), out.end(), line), end; it != end; ++it) {
      told += it->str() + "\n";
    }
    for (size_t r = 1; r < results.size(); ++r) EXPECT_EQ(results[r].out + results[r].err, "") << r;
    return told;
  }
};

TEST_F(SharedTexts, AreEncodedByOneRankOfAMachineWithTheSameBits) {
  const std::string tokenizer = "--data.tokenizer=" + Path("tokenizer.json");
  const std::string chat_template = "--data.chat_template=" + Path("template.jinja");
  const std::string chat = Path("chat.jsonl");
  Run(1, "base", Options({"--data.path=" + Path("text.txt"), tokenizer}));
  const std::vector<std::pair<std::string, Arguments>> kinds = {
      {"text", {"--data.path=" + Path("text.txt")}},
      {"rows", {"--data.path=" + Path("rows.jsonl"), "--data.format=text"}},
      {"chat", {"--data.path=" + chat, "--data.format=chat", tokenizer, chat_template}},
      {"mixture",
       {"--data.mix=" + chat + ":2," + Path("text.txt") + ":1", "--data.format=chat", tokenizer,
        chat_template}},
      {"pairs",
       {"--data.path=" + Path("pairs.jsonl"), "--train.objective=dpo", chat_template,
        "--init_from=" + Path("base/latest"), "--lora.rank=4"}}};
  const auto weights = [&](const std::string& out, const std::string& kind) {
    return ReadFile(Checkpoint(out, 3) +
                    (kind == "pairs" ? "/adapter_model.safetensors" : "/model.safetensors"));
  };
  for (const auto& [kind, options] : kinds) {
    const Openings openings(Files());
    const std::string alone = kind + "1";
    const std::string told = Told(Run(1, alone, Options(options)));
    const int once = openings.Count();
    EXPECT_GT(once, 0) << kind;
    EXPECT_NE(told, "") << kind;
    for (const int ranks : {2, 4}) {
      const std::string out = StrCat(kind, ranks);
      EXPECT_EQ(Told(Run(ranks, out, Options(options))), told) << out;
      EXPECT_EQ(openings.Count(), once) << out;
      EXPECT_TRUE(weights(out, kind) == weights(alone, kind)) << out;
      EXPECT_EQ(Numbers(out), Numbers(alone)) << out;
    }
  }
}

// One copy in memory for all, which is nowhere in the file system, and an evaluation, too.
TEST_F(SharedTexts, AreInMemoryOnce) {
  Run(1, "base", Options({"--data.path=" + Path("text.txt")}));
  auto processes =
      Start(3, Train("out", {"--data.path=" + Path("text.txt"), "--train.steps=1000000"}));
  processes[0]->WaitForOutput(" 5/1000000");
  std::set<std::string> inodes;
  for (const auto& process : processes) {
    const std::string maps = ReadFile(StrCat("/proc/", process->pid(), "/maps"));
    std::smatch found;
    const std::regex line(" ([0-9]+) +/memfd:lockstep-[^\n]*");
    ASSERT_TRUE(std::regex_search(maps, found, line)) << maps;
    inodes.insert(found[1]);
  }
  EXPECT_EQ(inodes.size(), 1u);
  const Openings openings(Files());
  const auto results = Wait(
      Start(3, Train("none", {"--data.path=" + Path("text.txt"), "--eval_only",
                              "--init_from=" + Path("base/latest"), "--model.block_size=64"})));
  EXPECT_EQ(results[0].exit_code, 0) << results[0];
  EXPECT_EQ(openings.Count(), 1);
}

TEST_F(SharedTexts, AnErrorOfTheFirstRankIsThatOfAll) {
  WriteFileAtomically(Path("bad.jsonl"), "{\"prompt\": \"a\"}\n");
  const auto results =
      Wait(Start(3, Train("out", {"--data.path=" + Path("bad.jsonl"), "--data.format=chat",
                                  "--data.tokenizer=" + Path("tokenizer.json"),
                                  "--data.chat_template=" + Path("template.jinja")})));
  for (size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_EQ(results[rank].exit_code, 2) << results[rank];
    EXPECT_THAT(results[rank].err, HasSubstr("bad.jsonl:1: "));
    EXPECT_EQ(results[rank].err.find("rank 0: ") != std::string::npos, rank > 0) << rank;
  }
}

}  // namespace
}  // namespace lockstep
