#include "models/sample/sample_gpt.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>

#include "core/io/file.h"
#include "core/thread_pool.h"
#include "data/tokenizer/id_tokenizer.h"
#include "dist/launch/rank_device.h"
#include "dist/world.h"
#include "models/gpt/generate.h"
#include "models/gpt/peft/adapter_set.h"
#include "models/sample/chat.h"
#include "models/sample/encode_prompt.h"
#include "models/sample/sampled_model.h"
#include "models/sample/text_stream.h"
#include "models/train/run_ranks.h"
#include "models/train/run_setup.h"

namespace lockstep::models {
namespace {

// A text to continue, and where the user gave it, for messages.
struct Prompt {
  std::string text, origin;
};

constexpr std::string_view kDefaultPrompt = "the default of --prompt";

std::vector<Prompt> ReadPrompts(const SampleConfig& c) {
  std::vector<Prompt> prompts;
  for (const std::string& text : c.prompts) prompts.push_back({text, "--prompt"});
  if (!c.prompt_file.empty()) {
    const std::string text = ReadFile(c.prompt_file);
    int64_t line = 0;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      std::string prompt = text.substr(begin, end - begin);
      if (prompt.ends_with('\r')) prompt.pop_back();
      prompts.push_back({std::move(prompt), StrCat(c.prompt_file, ":", ++line)});
      begin = end + 1;
    }
    if (line == 0) throw InputError(StrCat(c.prompt_file, ": is empty; write one prompt per line"));
  }
  if (prompts.empty()) prompts.push_back({"\n", std::string(kDefaultPrompt)});
  return prompts;
}

// Falls back to token ids as text, if the model was trained on tokens without their tokenizer.
std::unique_ptr<data::Tokenizer> FindTokenizer(const SampleConfig& c, const OpenedModel& opened,
                                               bool prints) {
  if (auto tokenizer = TokenizerOf(c, opened.folder())) return tokenizer;
  if (prints) {
    std::fprintf(stderr,
                 "sample_gpt: %s has no tokenizer, so prompts and samples are token ids; for text, "
                 "give --tokenizer=gpt2, or the tokenizer's file or folder\n",
                 opened.folder().c_str());
  }
  return std::make_unique<data::IdTokenizer>(opened.shape.vocab_size);
}

std::vector<int32_t> Encode(const Prompt& prompt, const data::Tokenizer& tokenizer,
                            bool special_tokens, int64_t vocab_size) {
  // Where prompts are token ids, the default, a newline, is empty.
  if (tokenizer.name() == "ids" && prompt.origin == kDefaultPrompt) {
    return {tokenizer.end_of_text().value_or(0)};  // where documents begin
  }
  try {
    return EncodePrompt(prompt.text, tokenizer, special_tokens, vocab_size);
  } catch (const InputError& e) {
    throw InputError(StrCat(prompt.origin, ": ", e.what()));
  }
}

// Prints texts that grow at the same time one after the other: each while it grows, once those
// before it are complete.
class OrderedOutput {
 public:
  // `headers`: a line above each text. `to`: null for a rank that prints nothing.
  OrderedOutput(std::vector<std::string> headers, bool stream, std::FILE* to)
      : headers_(std::move(headers)), stream_(stream), to_(to), texts_(headers_.size()) {
    closed_.assign(headers_.size(), false);
    if (stream_) Show();
  }

  void Write(int64_t text, const std::string& more) {
    texts_[static_cast<size_t>(text)] += more;
    if (stream_ && static_cast<size_t>(text) == current_ && !more.empty()) Show();
  }

  void Close(int64_t text) {
    closed_[static_cast<size_t>(text)] = true;
    texts_[static_cast<size_t>(text)] += "\n";
    Show();
  }

 private:
  void Show() {
    if (to_ == nullptr) return;
    while (current_ < texts_.size() && (stream_ || closed_[current_])) {
      if (!header_shown_) std::fputs(headers_[current_].c_str(), to_);
      header_shown_ = true;
      std::string& text = texts_[current_];
      std::fwrite(text.data(), 1, text.size(), to_);
      text.clear();
      if (!closed_[current_]) break;
      ++current_;
      header_shown_ = false;
    }
    std::fflush(to_);
  }

  std::vector<std::string> headers_;
  bool stream_;
  std::FILE* to_;
  std::vector<std::string> texts_;  // not shown yet
  std::vector<bool> closed_;
  size_t current_ = 0;
  bool header_shown_ = false;
};

GenerateOptions ToGenerateOptions(const SampleConfig& c) {
  return {.tokens = c.tokens,
          .temperature = c.temperature,
          .top_k = c.top_k,
          .top_p = c.top_p,
          .repetition_penalty = c.repetition_penalty,
          .seed = static_cast<uint64_t>(c.seed),
          .kv_cache = c.kv_cache,
          .slide = c.slide,
          .batch_size = c.batch_size};
}

void PrintSpeed(const GenerateStats& stats) {
  const auto rate = [](int64_t tokens, double seconds) {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  };
  std::string line =
      fmt::format("prompt: {} tokens in {:.3f}s, {:.0f} tokens/s", stats.prompt_tokens,
                  stats.prompt_seconds, rate(stats.prompt_tokens, stats.prompt_seconds));
  if (stats.tokens > 0) {
    line += fmt::format("; then {} tokens in {:.3f}s, {:.0f} tokens/s", stats.tokens, stats.seconds,
                        rate(stats.tokens, stats.seconds));
  }
  std::fprintf(stderr, "%s\n", line.c_str());
}

// Generates and prints all texts: each prompt num_samples times. `by` is part of the texts'
// headers, where there are several.
void GenerateTexts(const SampleConfig& c, Gpt& model, const data::Tokenizer& tokenizer, bool prints,
                   const std::string& by = "") {
  std::vector<GenerateSequence> sequences;
  std::vector<std::string> headers, starts;
  const std::vector<Prompt> prompts = ReadPrompts(c);
  const bool several = prompts.size() > 1 || c.num_samples > 1 || !by.empty();
  for (size_t p = 0; p < prompts.size(); ++p) {
    const std::vector<int32_t> ids =
        Encode(prompts[p], tokenizer, c.special_tokens, model.config().vocab_size);
    for (int64_t s = 0; s < c.num_samples; ++s) {
      sequences.push_back({.prompt = ids, .sample = s});
      starts.push_back(tokenizer.name() == "ids" ? tokenizer.Decode(ids) : prompts[p].text);
      const std::string sample = c.num_samples > 1 ? StrCat(", sample ", s + 1) : "";
      headers.push_back(several ? StrCat("---- prompt ", p + 1, sample, by, " ----\n") : "");
    }
  }
  std::vector<TextStream> streams(sequences.size(), TextStream(c.stop));
  std::vector<int64_t> left(sequences.size(), c.tokens);
  OrderedOutput output(std::move(headers), c.stream, prints ? stdout : nullptr);
  for (size_t i = 0; i < starts.size(); ++i) output.Write(static_cast<int64_t>(i), starts[i]);
  const std::optional<int32_t> eos = tokenizer.special_ids().eos;
  GenerateStats stats;
  GenerateBatch(
      model, sequences, std::min(tokenizer.vocab_size(), model.config().vocab_size),
      ToGenerateOptions(c),
      [&](int64_t sequence, int32_t id) {
        TextStream& stream = streams[static_cast<size_t>(sequence)];
        const bool end = c.stop_at_end && (tokenizer.end_of_text() == id || eos == id);
        if (!end) output.Write(sequence, stream.Push(tokenizer.TokenText(id)));
        const bool go_on = !end && !stream.stopped();
        if (--left[static_cast<size_t>(sequence)] == 0 || !go_on) {
          output.Write(sequence, stream.Finish());
          output.Close(sequence);
        }
        return go_on;
      },
      &stats);
  if (prints) PrintSpeed(stats);
}

// The messages of --prompt and --prompt_file, or the lines of standard input.
std::function<std::optional<std::string>()> MessagesOf(const SampleConfig& c) {
  if (!c.prompts.empty() || !c.prompt_file.empty()) {
    return [prompts = ReadPrompts(c), next = size_t{0}]() mutable -> std::optional<std::string> {
      if (next == prompts.size()) return {};
      return prompts[next++].text;
    };
  }
  return [terminal = isatty(STDIN_FILENO) != 0]() -> std::optional<std::string> {
    if (terminal) std::fputs("> ", stdout);
    std::fflush(stdout);
    std::string line;
    if (!std::getline(std::cin, line)) return {};
    return line;
  };
}

void GenerateChat(const SampleConfig& c, Gpt& model,
                  std::shared_ptr<const data::Tokenizer> tokenizer, const std::string& folder,
                  const dist::Rendezvous& rendezvous) {
  if (rendezvous.world_size > 1 && c.prompts.empty() && c.prompt_file.empty()) {
    throw InputError(
        "--chat in several processes takes its messages from --prompt or "
        "--prompt_file, because only one of them could read standard input");
  }
  const bool prints = rendezvous.rank == 0;
  const GenerateStats stats = Chat(model, std::move(tokenizer),
                                   {.chat_template = c.chat_template,
                                    .folder = folder,
                                    .system = c.system,
                                    .stop = c.stop,
                                    .generate = ToGenerateOptions(c),
                                    .next_message = MessagesOf(c),
                                    .to = prints ? stdout : nullptr});
  if (prints) PrintSpeed(stats);
}

// The ranks that generate together; a process on its own has no group.
struct SampleRanks {
  explicit SampleRanks(const dist::Rendezvous& rendezvous, Device device) {
    if (rendezvous.world_size == 1) return;
    world = std::make_unique<dist::World>(rendezvous);
    group = world->Group({.name = "tp", .device = device});
  }
  std::unique_ptr<dist::World> world;
  std::shared_ptr<dist::ProcessGroup> group;
};

}  // namespace

void AddSampleOptions(Options& options, SampleConfig& c) {
  AddSourceOptions(options, c);
  options.Add("prompt", &c.prompts,
              {.aliases = {"start", "text"}, .doc = "text to continue; by default a newline"});
  options.Add("prompt_file", &c.prompt_file,
              {.doc = "a file with one prompt per line; they follow those of --prompt"});
  options.Add("chat", &c.chat,
              {.doc = "have a conversation by the model's chat template: the user says the "
                      "prompts, or else the lines of standard input, and the model answers each"});
  options.Add("system", &c.system,
              {.aliases = {"system_prompt"}, .doc = "--chat: the system message"});
  options.Add("chat_template", &c.chat_template,
              {.doc = "--chat: a chat_template.jinja, or a folder with one; empty: the "
                      "checkpoint's"});
  options.Add(
      "special_tokens", &c.special_tokens,
      {.aliases = {"add_special_tokens", "parse_special"},
       .doc = "special tokens that a prompt spells, such as <|im_start|>, become their ids, "
              "and the tokenizer's bos comes first; false: prompts are plain text"});
  options.Add("num_samples", &c.num_samples,
              {.min = 1, .max = 1e6, .aliases = {"n", "samples"}, .doc = "texts for each prompt"});
  options.Add("tokens", &c.tokens,
              {.min = 1,
               .max = 1e9,
               .aliases = {"max_new_tokens", "max_tokens", "length"},
               .doc = "tokens to generate, at most"});
  options.Add("stop", &c.stop,
              {.check = [](const std::string& text) -> std::string {
                 return text.empty() ? "is empty; give at least one character" : "";
               },
               .doc = "text that ends a sample, and is not shown"});
  options.Add("stop_at_end", &c.stop_at_end,
              {.aliases = {"ignore_eos"},
               .doc = "end at the tokenizer's end-of-text token, if it has one"});
  options.Add("temperature", &c.temperature,
              {.min = 0, .max = 100, .doc = "divides the logits; 0: always the likeliest token"});
  options.Add("top_k", &c.top_k,
              {.min = 0, .doc = "draw only among the k likeliest tokens; 0: all"});
  options.Add("top_p", &c.top_p,
              {.above = 0,
               .max = 1,
               .doc = "draw only among the likeliest tokens that together have this probability; "
                      "1: all"});
  options.Add("repetition_penalty", &c.repetition_penalty,
              {.above = 0,
               .max = 100,
               .doc = "above 1: makes tokens that the text already has less likely; 1: off"});
  options.Add("seed", &c.seed, {.min = 0, .doc = "seed of the random numbers"});
  options.Add("kv_cache", &c.kv_cache,
              {.aliases = {"use_cache"},
               .doc = "keep keys and values of earlier tokens; false: recompute the whole context "
                      "for each token: the same text, but slowly"});
  options.Add("slide", &c.slide,
              {.min = 0,
               .doc = "tokens by which a full context moves on; 0: half of it; 1: each token sees "
                      "as many as possible, but slowly"});
  options.Add("batch_size", &c.batch_size,
              {.min = 1, .max = 65536, .doc = "texts generated at once; more need more memory"});
  options.Add("stream", &c.stream,
              {.doc = "show text while it is generated; false: once it is complete"});
}

namespace {

int Sample(const SampleConfig& c) {
  const dist::Rendezvous rendezvous = dist::ReadRendezvous();
  const bool is_main = rendezvous.rank == 0;
  SetNumThreads(ThreadsOf({.threads = c.threads}, rendezvous));
  const OpenedModel opened = OpenModel(c, "sample_gpt", is_main);
  const std::string& folder = opened.folder();
  const std::string& base = opened.base;
  const GptConfig& shape = opened.shape;
  const std::vector<PeftAdapter>& adapters = opened.adapters;
  if (c.slide > shape.block_size) {
    throw InputError(StrCat("--slide=", c.slide, ": the model's context has ", shape.block_size,
                            " tokens; give at most that, or 0 for half of them"));
  }
  CheckDivides(shape, rendezvous.world_size);
  if (adapters.size() > 1 && rendezvous.world_size > 1) {
    throw InputError(StrCat("several adapters take turns in one process, and this is one of ",
                            rendezvous.world_size, ": give one --adapter"));
  }
  std::shared_ptr<const data::Tokenizer> tokenizer = FindTokenizer(c, opened, is_main);
  const Device device = dist::DeviceOfRank(c.device, rendezvous);
  const SampleRanks ranks(rendezvous, device);
  if (c.chat && adapters.size() > 1) {
    throw InputError("--chat has a conversation with one adapter: give --adapter once");
  }
  const auto parts = std::make_shared<dist::TensorRanks>(ranks.group.get(), rendezvous.world_size);
  const auto load = [&](const PeftAdapter* adapter) {
    return LoadSampledModel(folder, base, adapter, parts, device, c.averages());
  };
  if (is_main && c.temperature == 0 && c.num_samples > 1) {
    std::fputs("sample_gpt: warning: --temperature=0 makes all samples of a prompt equal\n",
               stderr);
  }
  if (adapters.size() < 2) {
    const auto model = load(adapters.empty() ? nullptr : &adapters[0]);
    if (c.chat) {
      GenerateChat(c, *model, std::move(tokenizer), folder, rendezvous);
    } else {
      GenerateTexts(c, *model, *tokenizer, is_main);
    }
    if (is_main) {
      std::fprintf(stderr, "to serve it:\n  %s\n", CommandFor("//tools:serve", c).c_str());
    }
    return 0;
  }
  if (base != "model") {  // adapters come before their base is quantised
    for (size_t i = 0; i < adapters.size(); ++i) {
      GenerateTexts(c, *load(&adapters[i]), *tokenizer, is_main, ", " + c.adapters[i]);
    }
    return 0;
  }
  const auto model = load(nullptr);
  AdapterSet set(*model);
  for (const PeftAdapter& adapter : adapters) set.Add(adapter.folder(), adapter);
  for (size_t i = 0; i < adapters.size(); ++i) {
    set.Use(adapters[i].folder());
    GenerateTexts(c, *model, *tokenizer, is_main, ", " + c.adapters[i]);
  }
  return 0;
}

}  // namespace

int SampleGpt(const SampleConfig& c) {
  const int processes = dist::ReadRendezvous().world_size;
  const bool can_divide = c.adapters.size() < 2;  // several take one rank
  return AdviseOnMemory(c, c.batch_size > 1 ? "--batch_size=1" : "",
                        can_divide ? StrCat("--nproc=", 2 * processes) : "",
                        [&] { return Sample(c); });
}

}  // namespace lockstep::models
