// bazel run -c opt //tools:prepare -- --data.path='corpus/*.jsonl.zst' --data.tokenizer=gpt2 ...
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/error.h"
#include "core/io/file.h"
#include "core/system/shell_word.h"
#include "core/thread_pool.h"
#include "data/prepare/manifest.h"
#include "data/prepare/prepare.h"
#include "data/prepare/train_tokenizer.h"
#include "data/text/require_text.h"
#include "data/text/text_files.h"
#include "dist/launch/launch.h"
#include "models/options/invocation.h"
#include "models/options/options.h"

namespace lockstep {
namespace {

struct Config {
  models::TextList path;
  std::string type = "auto", document = "file", field = "text";
  int64_t max_document_bytes = data::TextOptions().max_document_bytes;
  std::string tokenizer = "gpt2";
  int64_t train_tokenizer = 0;
  models::TextList special_tokens;
  std::string split_pattern = "gpt2";
  std::string out_dir = "tokens", format = "llmc", name = "tokens";
  int64_t shard_tokens = 100'000'000;
  double val_fraction = 0.01;
  bool val_shard = false;
  int64_t threads = 0;
};

void AddOptions(models::Options& options, Config& c) {
  options.Add("data.path", &c.path,
              {.aliases = {"input", "data", "files"},
               .doc = "text and JSONL files, also .gz or .zst: a file, a pattern such as "
                      "'c/*.jsonl.zst', a folder, or - for standard input"});
  options.Add("data.type", &c.type,
              {.choices = {"auto", "text", "jsonl"},
               .doc = "what the files hold; auto: .jsonl, .ndjson and .json are JSONL, all else "
                      "is text, unless it begins as JSONL does or is a table (.csv, .tsv, "
                      ".parquet, .arrow), which is an error"});
  options.Add("data.document", &c.document,
              {.choices = {"file", "paragraph", "line"},
               .doc = "what one document of text is; a file may have any size"});
  options.Add("data.field", &c.field, {.doc = "JSONL: the field with the text"});
  options.Add("data.max_document_bytes", &c.max_document_bytes,
              {.min = 1,
               .max = 1e10,
               .operational = true,
               .doc = "a line, paragraph or JSONL document of more bytes is an error, and so is "
                      "that many bytes of a text file without a space; memory grows with it"});
  options.Add("data.tokenizer", &c.tokenizer, {.doc = "byte, gpt2, or a tokenizer file or folder"});
  options.Add("train_tokenizer", &c.train_tokenizer,
              {.min = 0,
               .max = 1 << 24,
               .doc = "instead of data.tokenizer: train a tokenizer with this many tokens on the "
                      "text; 0: none"});
  options.Add("special_tokens", &c.special_tokens,
              {.doc = "train_tokenizer: special tokens in addition to <|endoftext|>, such as "
                      "'<|im_start|>,<|im_end|>' for chats; no ordinary text becomes one"});
  options.Add("split_pattern", &c.split_pattern,
              {.choices = {"gpt2", "llama-3", "qwen2", "gpt-4o", "tekken"},
               .doc = "train_tokenizer: the model whose pattern cuts text into words; no token "
                      "crosses their bounds"});
  options.Add("out_dir", &c.out_dir,
              {.aliases = {"output_dir", "output"},
               .operational = true,
               .doc = "the folder for token files, indexes, tokenizer.json and manifest.json"});
  options.Add("format", &c.format,
              {.choices = {"llmc", "nanogpt"},
               .doc = "llmc: a header, 16 or 32 bits per token; nanogpt: 16 bits only"});
  options.Add("name", &c.name, {.doc = "llmc: how the names of the token files begin"});
  options.Add("shard_tokens", &c.shard_tokens,
              {.min = 0,
               .max = 2147483647,
               .doc = "tokens per file; 0, with nanogpt: all in train.bin and val.bin"});
  options.Add(
      "val_fraction", &c.val_fraction,
      {.min = 0, .below = 1, .doc = "fraction of the documents for validation, evenly spread"});
  options.Add("val_shard", &c.val_shard,
              {.doc = "instead of val_fraction: the first file is for validation, as in llm.c"});
  options.Add("threads", &c.threads,
              {.min = 0, .max = 4096, .operational = true, .doc = "CPU threads; 0: all"});
  options.OnResolve([&c](models::Options& o) {
    // A file from --print_config has all options, with their defaults.
    for (const auto& [key, asked] :
         {std::pair("special_tokens", !c.special_tokens.empty()),
          std::pair("split_pattern", c.split_pattern != Config().split_pattern)}) {
      if (c.train_tokenizer > 0 || !asked) continue;
      o.Fail({key}, StrCat(key,
                           " is for a tokenizer that prepare trains; add "
                           "--train_tokenizer=32000, or leave it out"));
    }
    if (c.train_tokenizer == 0 || c.tokenizer == Config().tokenizer) return;
    o.Fail({"train_tokenizer", "data.tokenizer"},
           "train_tokenizer takes the place of data.tokenizer; leave one of the two out");
  });
}

// Each value may be several, with commas between them.
std::vector<std::string> SpecialTokens(const Config& c) {
  std::vector<std::string> tokens;
  for (const std::string& value : c.special_tokens) {
    std::istringstream list(value);
    for (std::string token; std::getline(list, token, ',');) tokens.push_back(token);
  }
  return tokens;
}

// What this program's tokenizer is called in the manifest.
std::string TokenizerOrigin(const Config& c) {
  if (c.train_tokenizer == 0) return c.tokenizer;
  std::string origin = StrCat("train_tokenizer=", c.train_tokenizer);
  // As earlier versions wrote it where these are not given.
  if (c.split_pattern != "gpt2") origin += StrCat(" split_pattern=", c.split_pattern);
  for (const std::string& token : SpecialTokens(c)) origin += StrCat(" special_token=", token);
  return origin;
}

std::unique_ptr<data::Tokenizer> GetTokenizer(const Config& c, const data::TextOptions& text) {
  if (c.train_tokenizer == 0) {
    if (c.tokenizer == "char") {
      throw InputError(
          "data.tokenizer=char is made from a whole text, which train_gpt reads "
          "itself; use byte, gpt2, a tokenizer file, or --train_tokenizer=4096");
    }
    return data::MakeTokenizer(c.tokenizer, "");
  }
  const auto manifest = data::ReadManifest(c.out_dir);
  // Trained before a crash, from the text that the shards were made from.
  if (manifest && !manifest->shards.empty() && manifest->origin == TokenizerOrigin(c)) {
    return data::LoadTokenizer(JoinPath(c.out_dir, "tokenizer.json"));
  }
  const std::vector<std::string> files = data::ListTextFiles(c.path);
  if (files.front() == "-") {
    throw InputError(
        "train_tokenizer reads the text twice, and standard input can be read once; "
        "give a file");
  }
  std::fprintf(stderr, "Training a tokenizer of %lld tokens ...\n",
               static_cast<long long>(c.train_tokenizer));
  return data::TrainTokenizer(files, text,
                              {.vocab_size = c.train_tokenizer,
                               .special_tokens = SpecialTokens(c),
                               .split_pattern = c.split_pattern});
}

// One line on stderr, renewed each second, or a new line every ten where it is no terminal.
class ProgressLine {
 public:
  void Show(const data::PrepareProgress& p, bool last = false) {
    const auto now = std::chrono::steady_clock::now();
    if (!last && now < next_) return;
    next_ = now + std::chrono::seconds(terminal_ ? 1 : 10);
    const double seconds = std::chrono::duration<double>(now - begin_).count();
    std::string share;
    if (p.all_source_bytes > 0) {
      share = StrCat(100 * p.source_bytes / p.all_source_bytes, "% | ");
    }
    std::fprintf(
        stderr, "%s%s%lld documents | %.1f MB | %lld tokens | %lld bad UTF-8 | %.2fM tokens/s%s",
        terminal_ ? "\r" : "", share.c_str(), static_cast<long long>(p.counts.documents),
        static_cast<double>(p.counts.bytes) / 1e6, static_cast<long long>(p.tokens),
        static_cast<long long>(p.counts.bad_utf8),
        static_cast<double>(p.new_tokens) / seconds / 1e6, terminal_ && !last ? "  " : "\n");
    std::fflush(stderr);
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point next_ = begin_ + std::chrono::seconds(1);
};

// `prepare a.txt` and `prepare --data.path a.txt b.txt`, as a shell expands *.txt. A file of
// options is one that is called so.
void RequireOptions(std::span<const char* const> arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i], before = i == 0 ? "" : arguments[i - 1];
    const bool is_value = before.starts_with("--") && before.find('=') == std::string_view::npos;
    if (is_value || (argument.starts_with('-') && argument != "-")) continue;
    if (argument.ends_with(".toml")) continue;
    throw InputError(StrCat("unexpected argument '", argument, "': what to prepare is named as ",
                            "--data.path='", argument, "', several files by a pattern in quotes, ",
                            "--data.path='folder/*.txt', or each by a --data.path of its own"));
  }
}

// Nothing that was finished is lost, so there is nothing to do but to say so.
void SayHowToGoOn(int signal) {
  constexpr std::string_view kText =
      "\nprepare: interrupted; the same command continues after the last finished token file, if "
      "there is one\n";
  if (write(STDERR_FILENO, kText.data(), kText.size()) < 0) _exit(2);
  raise(signal);  // ends the program as usual, on return: the handler is for one signal
}

void HandleInterruptions() {
  struct sigaction action = {}, before = {};
  action.sa_handler = SayHowToGoOn;
  action.sa_flags = SA_RESETHAND;
  for (const int signal : {SIGINT, SIGTERM}) {
    sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
  }
}

void RequireNotPrepared(const std::string& path) {
  if (!IsDirectory(path) || !data::HasManifest(path)) return;
  throw InputError(
      data::ReadManifest(path)->complete()
          ? StrCat(path, ": this is prepared already: train on it, train_gpt --data.path=",
                   ShellWord(path), ", or name the texts it was made from")
          : StrCat(path, ": prepare has not finished this folder: repeat the command that began ",
                   "it, or name the texts it is made from"));
}

// Throws for options that would do nothing.
void CheckEffects(const models::Options& options, const Config& c) {
  if (data::HasManifest(c.out_dir)) return;  // what an earlier version began goes on
  const Config by_default;
  const auto refuse = [&](const char* key, bool given, const std::string& why) {
    if (!given || !options.IsWritten(key)) return;
    options.Fail({key}, StrCat(options.Describe(key), " does nothing", why));
  };
  refuse("name", c.name != by_default.name && c.format == "nanogpt",
         " with nanogpt's format, whose files are called train and val: leave it out, or use "
         "--format=llmc");
  refuse("val_fraction", c.val_fraction != by_default.val_fraction && c.val_shard,
         " beside val_shard, which takes the first file for validation: leave one of the two out");
  const std::vector<std::string> files = data::ListTextFiles(c.path);
  if (c.type == "auto") {
    for (const std::string& file : files) data::RequireNoTable(file);
  }
  const auto has_rows = [&](const std::string& file) {
    return c.type == "auto" ? data::IsJsonLinesName(file) : c.type == "jsonl";
  };
  refuse("data.document", c.document != by_default.document && std::ranges::all_of(files, has_rows),
         ", because each row of JSONL is a document: leave it out, or add --data.type=text to take "
         "the files as they are");
  refuse("data.field", c.field != by_default.field && std::ranges::none_of(files, has_rows),
         ", because none of the files is JSONL: leave it out, or add --data.type=jsonl");
}

void Run(const models::Options& options, const Config& c) {
  if (c.path.empty()) throw InputError("nothing to prepare: give --data.path=FILE");
  for (const std::string& path : c.path) {
    std::error_code unequal;  // of texts that lie in out_dir
    if (!std::filesystem::equivalent(path, c.out_dir, unequal)) RequireNotPrepared(path);
  }
  CheckEffects(options, c);
  if (c.threads > 0) SetNumThreads(static_cast<int>(c.threads));
  data::TextOptions text{.type = c.type,
                         .unit = data::ParseDocumentUnit(c.document),
                         .field = c.field,
                         .max_document_bytes = c.max_document_bytes,
                         .warn = [](const std::string& message) {
                           std::fprintf(stderr, "prepare: %s\n", message.c_str());
                         }};
  std::shared_ptr<const data::Tokenizer> tokenizer = GetTokenizer(c, text);
  if (c.path.front() != "-") HandleInterruptions();  // standard input can't be read again
  ProgressLine line;
  data::PrepareProgress last;
  const data::PrepareResult result =
      data::Prepare({.paths = c.path,
                     .text = text,
                     .tokenizer = tokenizer,
                     .tokenizer_origin = TokenizerOrigin(c),
                     .out_dir = c.out_dir,
                     .nanogpt = c.format == "nanogpt",
                     .name = c.name,
                     .shard_tokens = c.shard_tokens,
                     .val_fraction = c.val_fraction,
                     .val_shard = c.val_shard,
                     .threads = static_cast<int>(c.threads),
                     .progress = [&](const data::PrepareProgress& p) { line.Show(last = p); }});
  if (!result.was_complete) line.Show(last, true);
  const data::DocumentCounts counts = result.manifest.counts();
  std::printf(
      "%s %s: %lld tokens in %zu files, from %lld documents (%lld more were empty), "
      "%lld bytes of text, %lld bad UTF-8\n",
      c.out_dir.c_str(),
      result.was_complete ? "was complete already, and its files have the hashes of the manifest"
                          : "is complete",
      static_cast<long long>(result.manifest.tokens()), result.manifest.shards.size(),
      static_cast<long long>(counts.documents), static_cast<long long>(counts.empty),
      static_cast<long long>(counts.bytes), static_cast<long long>(counts.bad_utf8));
  if (!result.manifest.end_of_text && !result.manifest.options.contains("begin_of_text")) {
    std::printf(
        "The %s tokenizer has no end-of-text token, so documents follow each other "
        "without one; the .idx files tell where they begin.\n",
        result.manifest.tokenizer.c_str());
  }
  if (std::ranges::find(result.manifest.shards, data::Split::kVal, &data::ShardInfo::split) ==
      result.manifest.shards.end()) {
    std::printf(
        "No document is held out for validation (val_fraction), so train_gpt holds out the last "
        "tokens (data.val_fraction).\n");
  }
  std::printf("Train on it:\n  %s --data.path=%s\n",
              models::CommandOf("//models:train_gpt").c_str(), ShellWord(c.out_dir).c_str());
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  using namespace lockstep;
  try {
    models::EnterInvocationFolder();
    models::Options options(
        {.name = "prepare",
         .summary = "Turns text into token files for train_gpt, nanoGPT or llm.c. An interrupted "
                    "call, when it is repeated, continues where it stopped.",
         .example = "prepare --data.path='corpus/*.jsonl.zst' --data.tokenizer=gpt2 "
                    "--out_dir=tokens"});
    Config config;
    AddOptions(options, config);
    RequireOptions({argv + std::min(argc, 1), argv + argc});
    if (const auto exit_code = options.Start(argc, argv)) return *exit_code;
    Run(options, config);
    return 0;
  } catch (const std::exception& e) {
    return dist::EndWith("prepare", e);
  }
}
