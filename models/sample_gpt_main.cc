// bazel run -c opt //models:sample_gpt -- --checkpoint=out/latest --prompt="..." --tokens=200
#include <cstdio>
#include <thread>

#include "core/file.h"
#include "core/thread_pool.h"
#include "models/checkpoint.h"
#include "models/generate.h"
#include "models/hf_format.h"
#include "models/options.h"
#include "models/run_setup.h"

namespace lockstep::models {
namespace {

struct SampleConfig {
  std::string checkpoint = "out/latest";
  std::string tokenizer;
  std::string prompt = "\n";
  std::string device = "auto";
  int64_t tokens = 200;
  int64_t top_k = 0;
  int64_t seed = 1337;
  int64_t threads = 0;
  double temperature = 0.8;
};

void AddSampleOptions(Options& options, SampleConfig& c) {
  options.Add("checkpoint", &c.checkpoint,
              {.doc = "a checkpoint, a run folder, or a Hugging Face folder"});
  options.Add("tokenizer", &c.tokenizer,
              {.doc = "char, byte, gpt2 or a tokenizer file; empty: the checkpoint's own"});
  options.Add("prompt", &c.prompt, {.doc = "text to go on from"});
  options.Add("tokens", &c.tokens, {.min = 1, .max = 1e9, .doc = "tokens to generate"});
  options.Add("temperature", &c.temperature,
              {.min = 0, .max = 100, .doc = "0: always the likeliest; 1: as the model has it"});
  options.Add("top_k", &c.top_k, {.min = 0, .doc = "draw among the k likeliest only; 0: all"});
  options.Add("seed", &c.seed, {.min = 0, .doc = "of the draws"});
  options.Add("threads", &c.threads, {.min = 0, .max = 4096, .doc = "CPU threads; 0: all"});
  options.Add("device", &c.device, {.doc = "where to compute: auto, cpu"});
}

std::unique_ptr<data::Tokenizer> FindTokenizer(const SampleConfig& c, const std::string& folder) {
  if (c.tokenizer.empty()) return ReadTokenizer(folder);
  if (c.tokenizer == "char") {
    throw InputError(
        "tokenizer=char needs the text it was made of: give the checkpoint's own "
        "tokenizer.json");
  }
  return data::MakeTokenizer(c.tokenizer, "");
}

int Sample(const SampleConfig& c) {
  SetNumThreads(c.threads > 0
                    ? static_cast<int>(c.threads)
                    : static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  const std::string latest = JoinPath(c.checkpoint, "latest");
  const std::string folder = PathExists(latest) ? latest : c.checkpoint;
  const auto tokenizer = FindTokenizer(c, folder);
  Gpt model(ReadHfConfig(folder));
  model.Materialize(ResolveDevice(c.device), 0);
  LoadHfWeights(model, folder);
  const std::vector<int32_t> prompt = tokenizer->Encode(c.prompt);
  if (prompt.empty()) throw InputError("--prompt is empty; give at least one character");
  for (int32_t id : prompt) {
    if (id >= model.config().vocab_size) {
      throw InputError(StrCat("token ", id, " of the prompt is not in the model's vocabulary of ",
                              model.config().vocab_size,
                              ": the tokenizer belongs to another model"));
    }
  }
  std::fputs(c.prompt.c_str(), stdout);
  Generate(model, prompt, std::min(tokenizer->vocab_size(), model.config().vocab_size),
           {.tokens = c.tokens,
            .temperature = c.temperature,
            .top_k = c.top_k,
            .seed = static_cast<uint64_t>(c.seed)},
           [&](int32_t id) {
             const std::string piece = tokenizer->Decode(std::span(&id, 1));
             std::fwrite(piece.data(), 1, piece.size(), stdout);
             std::fflush(stdout);
             return true;
           });
  std::fputs("\n", stdout);
  return 0;
}

}  // namespace
}  // namespace lockstep::models

int main(int argc, char** argv) {
  using namespace lockstep;
  try {
    models::EnterInvocationFolder();
    models::SampleConfig config;
    models::Options options({.name = "sample_gpt",
                             .summary = "Prints text that a trained GPT goes on with.",
                             .example = "sample_gpt --checkpoint=out/latest --prompt=\"Once\"",
                             .takes_file = false});
    models::AddSampleOptions(options, config);
    if (const auto exit_code = options.Start(argc, argv)) return *exit_code;
    return models::Sample(config);
  } catch (const std::exception& e) {
    std::fflush(stdout);
    std::fprintf(stderr, "sample_gpt: %s\n", e.what());
    return 1;
  }
}
