#include "models/options/presets.h"

#include <cmath>
#include <functional>
#include <map>
#include <optional>

#include "core/error.h"
#include "models/options/depth_laws.h"
#include "models/options/options.h"

namespace lockstep::models {
namespace {

// What the recipes have in common.
struct Recipe {
  const char* data;                                            // lines of [data]
  int64_t steps, batch_size, global_batch_size, eval_batches;  // 0: the rank's; 0: all
  const char *lr, *min_lr;
  int64_t warmup, decay_steps;
  const char* beta2;
};

std::string TextOf(const Recipe& r) {
  return StrCat(
      "[data]\n", r.data, "[train]\nsteps = ", r.steps, "\nbatch_size = ", r.batch_size,
      r.global_batch_size > 0 ? StrCat("\nglobal_batch_size = ", r.global_batch_size) : "",
      "\neval_every = 250\neval_batches = ", r.eval_batches,
      "\n[optim]\nschedule = \"cosine\"\nlr = ", r.lr, "\nmin_lr = ", r.min_lr,
      "\nwarmup = ", r.warmup, "\ndecay_steps = ", r.decay_steps,
      "\nbeta1 = 0.9\nbeta2 = ", r.beta2, "\neps = 1e-8\nweight_decay = 0.1\nclip = 1.0\n");
}

// nanoGPT's for characters. Losses are exact, where it takes some random batches: its 200 are 30
// times the validation data.
std::string OfCharacters(int64_t steps, int64_t batch_size, const char* lr, const char* min_lr) {
  return TextOf({"tokenizer = \"char\"\nval_fraction = 0.1\norder = \"random\"\n", steps,
                 batch_size, 0, 0, lr, min_lr, 100, steps, "0.99"});
}

// For shards of tokens.
std::string OfShards(const char* data, int64_t steps, int64_t batch_size, int64_t global_batch_size,
                     const char* lr, const char* min_lr, int64_t warmup) {
  return TextOf({data, steps, batch_size, global_batch_size, 20, lr, min_lr, warmup, 0, "0.95"}) +
         "[checkpoint]\nevery = 1000\n";
}

// nanoGPT's config/train_shakespeare_char.py: best validation loss 1.4697 by its README.
std::string ShakespeareChar() {
  return R"([model]
vocab_size = 0
block_size = 256
n_layer = 6
n_head = 6
n_embd = 384
dropout = 0.2
bias = false
tie_embeddings = true
)" + OfCharacters(5000, 64, "1e-3", "1e-4");
}

// The command line in nanoGPT's README for "only a macbook": validation loss 1.88, with
// init_std = 0.02. At this width that is small: ours starts from 1 / sqrt(n_embd) = 0.088.
std::string ShakespeareCharCpu() {
  return R"([model]
vocab_size = 0
block_size = 64
n_layer = 4
n_head = 4
n_embd = 128
dropout = 0.0
bias = false
tie_embeddings = true
)" + OfCharacters(2000, 12, "1e-3", "1e-4");
}

// The four sizes of GPT-2 (Radford et al. 2019). OpenAI published no training recipe: lengths,
// rates and batches are those of llm.c's scripts/run_gpt2_*.sh on FineWeb, with beta2 = 0.95 and
// clipping at 1 from GPT-3 (Brown et al. 2020, appendix B). The vocabulary of 50257 is padded to a
// multiple of 128 for faster GEMMs.
struct Gpt2Size {
  int64_t n_layer, n_head, n_embd;
  int64_t steps, batch_size, global_batch_size;
  const char *lr, *min_lr;
};

std::string Gpt2(const Gpt2Size& size) {
  return StrCat("[model]\nvocab_size = 50304\nblock_size = 1024\nn_layer = ", size.n_layer,
                "\nn_head = ", size.n_head, "\nn_embd = ", size.n_embd,
                "\ndropout = 0.0\nbias = true\ntie_embeddings = true\ninit_std = 0.02\n",
                OfShards("tokenizer = \"gpt2\"\norder = \"shuffled\"\n", size.steps,
                         size.batch_size, size.global_batch_size, size.lr, size.min_lr, 700));
}

// A Llama to try and to test: every part of the family, in the time of shakespeare-char-cpu.
// `mlp`: lines of [model].
std::string LlamaTiny(const char* mlp) {
  return StrCat(R"([model]
vocab_size = 0
block_size = 64
n_layer = 4
n_head = 4
n_kv_head = 2
n_embd = 128
dropout = 0.0
bias = false
tie_embeddings = true
norm = "rms_norm"
norm_eps = 1e-5
activation = "swiglu"
position = "rope"
rope_theta = 10000.0
)",
                mlp, OfCharacters(2000, 12, "2e-3", "2e-4"));
}
constexpr char kTinyMlp[] = "n_inner = 352\n";
// Experts half as wide, two to a token: as many active parameters, except for the router.
constexpr char kTinyMixture[] = R"(n_inner = 176
n_expert = 8
n_expert_used = 2
router = "softmax"
)";

// Shapes of published models, with the recipe of TinyLlama's training: AdamW with betas 0.9 and
// 0.95, weight decay 0.1, clipping at 1, 2000 steps of warm-up, cosine to a tenth (Zhang et al.,
// "TinyLlama" 2024, section 2.3). Meta published none for its small models; large ones need lower
// rates. Llama 3.1 and 3.2 read 131072 tokens, but were first trained on windows of 8192, and so
// are these. Mistral 7B is that of version 0.3, which attends to all tokens. Those of
// Qwen, Gemma 3 and SmolLM read more tokens than here, after a first training on windows as these.
struct LlamaSize {
  int64_t vocab_size, block_size, n_layer, n_head, n_kv_head, n_embd, n_inner;
  bool tie_embeddings;
  const char* rope;  // lines of [model]
  int64_t batch_size, global_batch_size;
  std::string more = "";  // lines of [model]
  const char* norm_eps = "1e-5";
  const char* activation = "swiglu";
};

constexpr char kLlama2Rope[] = "rope_theta = 10000.0\n";
constexpr char kLlama3Rope[] = "rope_theta = 500000.0\n";
constexpr char kLlama31Rope[] = R"(rope_theta = 500000.0
rope_scaling = "llama3"
rope_factor = 8.0
rope_low = 1.0
rope_high = 4.0
rope_original_length = 8192
)";
constexpr char kMistralRope[] = "rope_theta = 1000000.0\n";
constexpr char kMixtralExperts[] = R"(n_expert = 8
n_expert_used = 2
router = "softmax"
balance_loss = 0.001
)";
constexpr char kQwen3Heads[] = "head_dim = 128\nqk_norm = \"head\"\n";
constexpr char kQwen3Moe[] = R"(head_dim = 128
qk_norm = "head"
n_expert = 128
n_expert_used = 8
n_expert_inner = 768
router = "softmax"
balance_loss = 0.001
)";
constexpr char kQwen2Bias[] = "qkv_bias = true\n";
constexpr char kMistralWindow[] = "window = 4096\n";
constexpr char kSmolLm2Rope[] = "rope_theta = 100000.0\n";
constexpr char kSmolLm3Rope[] = "rope_theta = 5000000.0\nrope_skip = 4\n";
constexpr char kOlmo2Norms[] = "qk_norm = \"full\"\nnorm_place = \"post\"\n";
constexpr char kGemma2[] = R"(head_dim = 256
attn_softcap = 50.0
logit_softcap = 30.0
window = 4096
window_pattern = 2
)";
constexpr char kGemma3[] = R"(head_dim = 256
qk_norm = "head"
window = 512
window_pattern = 6
rope_local_theta = 10000.0
)";
constexpr char kLlama32Rope[] = R"(rope_theta = 500000.0
rope_scaling = "llama3"
rope_factor = 32.0
rope_low = 1.0
rope_high = 4.0
rope_original_length = 8192
)";

std::string Llama(const LlamaSize& size) {
  return StrCat("[model]\nvocab_size = ", size.vocab_size, "\nblock_size = ", size.block_size,
                "\nn_layer = ", size.n_layer, "\nn_head = ", size.n_head,
                "\nn_kv_head = ", size.n_kv_head, "\nn_embd = ", size.n_embd,
                "\nn_inner = ", size.n_inner,
                "\ntie_embeddings = ", size.tie_embeddings ? "true" : "false", R"(
init_std = 0.02
dropout = 0.0
bias = false
norm = "rms_norm"
position = "rope"
)",
                "activation = \"", size.activation, "\"\nnorm_eps = ", size.norm_eps, "\n",
                size.rope, size.more,
                OfShards("tokenizer = \"auto\"\norder = \"shuffled\"\n", 1430512, size.batch_size,
                         size.global_batch_size, "4e-4", "4e-5", 2000));
}

// What Gemma 2 and 3 have in common; `more` is what only one of them has.
std::string Gemma(LlamaSize size) {
  size.more += StrCat("norm_offset = 1\nnorm_place = \"sandwich\"\nembed_scale = ",
                      ToToml(OptionValue(std::sqrt(static_cast<double>(size.n_embd)))), "\n");
  size.norm_eps = "1e-6";
  size.activation = "geglu_tanh";
  return Llama(size);
}

// What modded-nanogpt's record of 2024-11-06 took 3,200 steps of 512 x 1024 tokens for, a loss
// of 3.28 on FineWeb, with the recipe that is nearest to depth 12 of the dial.
std::string FineWeb() {
  const std::map<std::string, OptionValue, std::less<>> given = {
      {"model.vocab_size", int64_t{50304}},
      {"model.block_size", int64_t{1024}},
      {"data.tokenizer", "gpt2"},
      {"train.steps", int64_t{3200}},
      {"train.global_batch_size", int64_t{512}},
      {"train.batch_size", int64_t{64}},
      {"train.precision", "bf16"},
      {"train.eval_batches", int64_t{20}},
      {"checkpoint.every", int64_t{1000}}};
  std::map<std::string, std::string> sections;
  const auto add = [&](std::string_view key, const OptionValue& value) {
    const size_t dot = key.find('.');
    sections[std::string(key.substr(0, dot))] +=
        StrCat(key.substr(dot + 1), " = ", ToToml(value), "\n");
  };
  for (const auto& [key, value] : given) add(key, value);
  const auto follow = FollowDepth(12, [&](std::string_view key) -> std::optional<OptionValue> {
    const auto it = given.find(key);
    return it == given.end() ? std::nullopt : std::optional(it->second);
  });
  for (const Following& f : follow) add(f.key, f.value);
  std::string text;
  for (const auto& [name, lines] : sections) text += StrCat("[", name, "]\n", lines);
  return text;
}

}  // namespace

const std::vector<Preset>& Presets() {
  static const std::vector<Preset> presets = {
      {"shakespeare-char-cpu", "nanoGPT's character-level Shakespeare for a CPU: 0.8M parameters",
       ShakespeareCharCpu()},
      {"shakespeare-char", "nanoGPT's character-level Shakespeare for a GPU: 10.7M parameters",
       ShakespeareChar()},
      {"gpt2", "124M parameters, 10B tokens", Gpt2({12, 12, 768, 18865, 16, 512, "6e-4", "0.0"})},
      {"gpt2-medium", "354M parameters, 31B tokens",
       Gpt2({24, 16, 1024, 60000, 16, 512, "3e-4", "0.0"})},
      {"gpt2-large", "774M parameters, 150B tokens",
       Gpt2({36, 20, 1280, 286102, 8, 512, "2.5e-4", "0.0"})},
      {"gpt2-xl", "1558M parameters, 34B tokens",
       Gpt2({48, 25, 1600, 32000, 4, 1024, "6e-4", "6e-5"})},
      {"fineweb-124m",
       "depth 12 of the dial for eight GPUs: 1.7B tokens of FineWeb; never run so far", FineWeb()},
      {"llama-tiny", "a character-level Llama for a CPU: 0.7M parameters", LlamaTiny(kTinyMlp)},
      {"tinyllama-1.1b", "TinyLlama's shape and recipe: 1100M parameters, 3T tokens",
       Llama({32000, 2048, 22, 32, 4, 2048, 5632, false, kLlama2Rope, 4, 1024})},
      {"llama-3.2-1b", "Llama 3.2's shape: 1236M parameters, TinyLlama's recipe",
       Llama({128256, 8192, 16, 32, 8, 2048, 8192, true, kLlama32Rope, 1, 256})},
      {"llama-3.2-3b", "Llama 3.2's shape: 3213M parameters, TinyLlama's recipe",
       Llama({128256, 8192, 28, 24, 8, 3072, 8192, true, kLlama32Rope, 1, 256})},
      {"llama-2-7b", "Llama 2's shape: 6738M parameters, TinyLlama's recipe",
       Llama({32000, 4096, 32, 32, 32, 4096, 11008, false, kLlama2Rope, 1, 1024})},
      {"llama-2-13b", "Llama 2's shape: 13.0B parameters, TinyLlama's recipe",
       Llama({32000, 4096, 40, 40, 40, 5120, 13824, false, kLlama2Rope, 1, 1024})},
      {"llama-2-70b", "Llama 2's shape: 69.0B parameters, TinyLlama's recipe",
       Llama({32000, 4096, 80, 64, 8, 8192, 28672, false, kLlama2Rope, 1, 1024})},
      {"llama-3-8b", "Llama 3's shape: 8030M parameters, TinyLlama's recipe",
       Llama({128256, 8192, 32, 32, 8, 4096, 14336, false, kLlama3Rope, 1, 512})},
      {"llama-3-70b", "Llama 3's shape: 70.6B parameters, TinyLlama's recipe",
       Llama({128256, 8192, 80, 64, 8, 8192, 28672, false, kLlama3Rope, 1, 512})},
      {"llama-3.1-405b", "Llama 3.1's shape: 406B parameters, TinyLlama's recipe",
       Llama({128256, 8192, 126, 128, 8, 16384, 53248, false, kLlama31Rope, 1, 512})},
      {"mistral-7b", "Mistral's shape: 7248M parameters, TinyLlama's recipe",
       Llama({32768, 8192, 32, 32, 8, 4096, 14336, false, kMistralRope, 1, 512})},
      {"mixtral-8x7b", "Mixtral's shape: 46.7B parameters, 12.9B active; TinyLlama's recipe",
       Llama({32000, 8192, 32, 32, 8, 4096, 14336, false, kMistralRope, 1, 512, kMixtralExperts})},
      {"qwen3-0.6b", "Qwen3's shape: 596M parameters, TinyLlama's recipe",
       Llama(
           {151936, 4096, 28, 16, 8, 1024, 3072, true, kMistralRope, 2, 512, kQwen3Heads, "1e-6"})},
      {"qwen3-30b-a3b", "Qwen3-MoE's shape: 30.5B parameters, 3.4B active; TinyLlama's recipe",
       Llama(
           {151936, 4096, 48, 32, 4, 2048, 6144, false, kMistralRope, 1, 512, kQwen3Moe, "1e-6"})},
      {"mistral-7b-v0.1",
       "Mistral's first shape, with a window: 7242M parameters, TinyLlama's recipe",
       Llama({32000, 8192, 32, 32, 8, 4096, 14336, false, kLlama2Rope, 1, 512, kMistralWindow})},
      {"qwen2.5-0.5b", "Qwen2.5's shape: 494M parameters, TinyLlama's recipe",
       Llama({151936, 4096, 24, 14, 2, 896, 4864, true, kMistralRope, 2, 512, kQwen2Bias, "1e-6"})},
      {"qwen2.5-1.5b", "Qwen2.5's shape: 1544M parameters, TinyLlama's recipe",
       Llama(
           {151936, 4096, 28, 12, 2, 1536, 8960, true, kMistralRope, 1, 512, kQwen2Bias, "1e-6"})},
      {"qwen2.5-7b", "Qwen2.5's shape: 7616M parameters, TinyLlama's recipe",
       Llama({152064, 4096, 28, 28, 4, 3584, 18944, false, kMistralRope, 1, 512, kQwen2Bias,
              "1e-6"})},
      {"gemma-2-2b", "Gemma 2's shape: 2614M parameters, TinyLlama's recipe",
       Gemma({256000, 8192, 26, 8, 4, 2304, 9216, true, kLlama2Rope, 1, 256, kGemma2})},
      {"gemma-2-9b", "Gemma 2's shape: 9242M parameters, TinyLlama's recipe",
       Gemma({256000, 8192, 42, 16, 8, 3584, 14336, true, kLlama2Rope, 1, 512, kGemma2})},
      {"gemma-3-270m", "Gemma 3's shape: 268M parameters, TinyLlama's recipe",
       Gemma({262144, 8192, 18, 4, 1, 640, 2048, true, kMistralRope, 1, 256, kGemma3})},
      {"gemma-3-1b", "Gemma 3's shape: 1000M parameters, TinyLlama's recipe",
       Gemma({262144, 8192, 26, 4, 1, 1152, 6912, true, kMistralRope, 1, 256, kGemma3})},
      {"olmo-2-1b", "OLMo 2's shape: 1485M parameters, TinyLlama's recipe",
       Llama({100352, 4096, 16, 16, 16, 2048, 8192, false, kLlama3Rope, 1, 512, kOlmo2Norms,
              "1e-6"})},
      {"olmo-2-7b", "OLMo 2's shape: 7299M parameters, TinyLlama's recipe",
       Llama({100352, 4096, 32, 32, 32, 4096, 11008, false, kLlama3Rope, 1, 1024, kOlmo2Norms,
              "1e-6"})},
      {"smollm2-135m", "SmolLM2's shape, a Llama: 135M parameters, TinyLlama's recipe",
       Llama({49152, 2048, 30, 9, 3, 576, 1536, true, kSmolLm2Rope, 4, 512})},
      {"smollm2-360m", "SmolLM2's shape, a Llama: 362M parameters, TinyLlama's recipe",
       Llama({49152, 2048, 32, 15, 5, 960, 2560, true, kSmolLm2Rope, 4, 512})},
      {"smollm2-1.7b", "SmolLM2's shape, a Llama: 1711M parameters, TinyLlama's recipe",
       Llama({49152, 2048, 24, 32, 32, 2048, 8192, true, "rope_theta = 130000.0\n", 2, 1024})},
      {"smollm3-3b", "SmolLM3's shape: 3075M parameters, TinyLlama's recipe",
       Llama({128256, 4096, 36, 16, 4, 2048, 11008, true, kSmolLm3Rope, 1, 512, "", "1e-6"})},
      {"mixtral-tiny", "a character-level mixture for a CPU: 2.4M parameters, 0.75M active",
       LlamaTiny(kTinyMixture)},
  };
  return presets;
}

}  // namespace lockstep::models
