// Values of options that are out of range, unknown words, and the names of other programs.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/io/file.h"
#include "models/options/option_text.h"
#include "tests/models/parsed_run.h"

namespace lockstep::models {
namespace {

using testing::HasSubstr;

TEST(RunConfig, ValuesOutOfRange) {
  for (const std::string argument : {"--threads=-1",
                                     "--seed=-1",
                                     "--model.vocab_size=-1",
                                     "--model.vocab_size=2147483648",
                                     "--model.block_size=0",
                                     "--model.n_layer=0",
                                     "--model.n_head=0",
                                     "--model.n_embd=0",
                                     "--model.dropout=1",
                                     "--model.dropout=-0.1",
                                     "--model.n_kv_head=-1",
                                     "--model.head_dim=-1",
                                     "--model.n_inner=-1",
                                     "--model.norm_eps=0",
                                     "--model.init_std=-0.1",
                                     "--model.norm_eps=2",
                                     "--model.rope_theta=0",
                                     "--model.rope_factor=0",
                                     "--model.rope_low=0",
                                     "--model.rope_high=-1",
                                     "--model.rope_original_length=0",
                                     "--data.val_fraction=1",
                                     "--data.val_fraction=-0.1",
                                     "--train.steps=-1",
                                     "--train.epochs=-1",
                                     "--train.tokens_per_parameter=-1",
                                     "--depth=-1",
                                     "--depth=41",
                                     "--train.batch_size=0",
                                     "--train.grad_accum=-1",
                                     "--train.global_batch_size=-1",
                                     "--train.loss_chunk=-2",
                                     "--train.log_every=0",
                                     "--train.eval_every=-1",
                                     "--train.eval_batches=-1",
                                     "--train.sample_every=-1",
                                     "--train.sample_tokens=-1",
                                     "--optim.lr=0",
                                     "--optim.lr=-1",
                                     "--optim.min_lr=-1",
                                     "--optim.warmup=-2",
                                     "--optim.decay_steps=-1",
                                     "--optim.decay_fraction=0",
                                     "--optim.decay_fraction=1.1",
                                     "--optim.beta1=1",
                                     "--optim.beta2=1",
                                     "--optim.beta1=-0.1",
                                     "--optim.eps=0",
                                     "--optim.momentum=1",
                                     "--optim.weight_decay=-1",
                                     "--optim.clip=-1",
                                     "--checkpoint.every=-1",
                                     "--checkpoint.keep=-1"})
    EXPECT_THAT(ErrorOf({argument}), HasSubstr(argument + " is out of range: it must be "));
  for (const std::string key :
       {"model.dropout", "data.val_fraction", "train.epochs", "optim.lr", "optim.min_lr",
        "optim.decay_fraction", "optim.beta1", "optim.beta2", "optim.eps", "optim.momentum",
        "optim.weight_decay", "optim.clip"})
    for (const std::string value : {"nan", "inf", "-inf"})
      EXPECT_EQ(ErrorOf({"--" + key + "=" + value}),
                "command line: --" + key + "=" + value + ": must be a finite number");
}

TEST(RunConfig, Times) {
  EXPECT_EQ(ParseDuration("90s"), 90);
  EXPECT_EQ(ParseDuration("1.5h"), 5400);
  EXPECT_EQ(ParseDuration("1d2h3m4s"), 93784);
  EXPECT_EQ(ParseDuration(""), 0);
  EXPECT_EQ(ErrorOf({"--train.time_budget=600"}),
            "command line: --train.time_budget=600: needs a unit: write 600s, 600m or 600h");
  for (const std::string time :
       {"m", "10 m", "10min", "-5m", "1h30", "ten", "1e3s", "nans", "infs"}) {
    EXPECT_THAT(ErrorOf({"--train.time_budget=" + time}),
                testing::AnyOf(HasSubstr("such as 90s"), HasSubstr("needs a unit")))
        << time;
  }
  EXPECT_THAT(ErrorOf({"--train.time_budget=0s"}), HasSubstr("must be longer than 0s"));
}

TEST(RunConfig, UnknownWords) {
  EXPECT_EQ(ErrorOf({"--device=gpu"}),
            "command line: --device=gpu: must be auto, cpu, cuda, cuda:0, sim or sim:0");
  for (const std::string device : {"cuda:", "cuda:x", "sim:-1", "cuda:1000"})
    EXPECT_THAT(ErrorOf({"--device=" + device}),
                HasSubstr("the index of the device must be a number, as in "));
  for (const std::string device : {"auto", "cpu", "cuda", "sim", "cuda:0", "sim:12"})
    EXPECT_EQ(ErrorOf({"--device=" + device}), "no error");
  for (const std::string words :
       {"none", "auto", "block", "block:3", "attention", "mlp", "gelu, layer_norm"})
    EXPECT_EQ(ErrorOf({"--train.recompute=" + words}), "no error");
  for (const auto& [words, fault] :
       {std::pair("", ""),
        {"gelu,", ""},
        {"linear", ""},
        {"blok", "did you mean block? It "},
        {"gelu,layernorm", "layernorm: did you mean layer_norm? It "},
        {"gelu,linear", "linear: "},
        {"gelu,gelu", "gelu is named twice: the value "},
        {"block,gelu", "block cannot be combined with others: the value "},
        {"gelu,attention", "attention cannot be combined with others: the value "}}) {
    const std::string argument = StrCat("--train.recompute=", words);
    EXPECT_EQ(
        ErrorOf({argument}),
        StrCat("command line: ", argument, ": ", fault,
               "must be none, auto, block, attention, mlp, block:N (of the first N layers), "
               "or operations of gelu, relu2, silu, swiglu, geglu_tanh, layer_norm, rms_norm, "
               "each once, as in gelu,layer_norm"));
  }
  for (const std::string words : {"block:", "block:0", "block:-1", "block:3x", "block:3,gelu"}) {
    EXPECT_THAT(ErrorOf({"--train.recompute=" + words}), HasSubstr("as in block:3")) << words;
  }
  EXPECT_THAT(ErrorOf({"--train.recompute=block:5", "--model.n_layer=4"}),
              HasSubstr("train.recompute = \"block\""));
  EXPECT_EQ(ErrorOf({"--train.recompute=block:4", "--model.n_layer=4"}), "no error");
  EXPECT_EQ(
      ErrorOf({"--train.precision=fp23"}),
      "command line: --train.precision=fp23: did you mean fp32? It must be one of fp32, tf32, "
      "bf16, fp16");
  for (const std::string precision : {"fp32", "tf32", "bf16", "fp16"}) {
    EXPECT_EQ(ErrorOf({"--train.precision=" + precision, "--device=cpu"}), "no error");
  }
  EXPECT_EQ(ErrorOf({"--optim.schedule=cosin"}),
            "command line: --optim.schedule=cosin: did you mean cosine? It must be one of cosine, "
            "linear, constant, wsd");
  EXPECT_EQ(ErrorOf({"--data.order=shufled"}),
            "command line: --data.order=shufled: did you mean shuffled? It must be one of "
            "shuffled, random, sequential");
  EXPECT_EQ(ErrorOf({"--data.tokenizer=gtp2"}),
            "command line: --data.tokenizer=gtp2: must be auto, char, byte, gpt2, or the path of a "
            "tokenizer file or folder, and there is no \"gtp2\" in this folder");
  EXPECT_EQ(ErrorOf({"--data.tokenizer=./gtp2"}), "no error");
  const std::filesystem::path was = std::filesystem::current_path();
  std::filesystem::current_path(testing::TempDir());
  MakeDirectories("tokenizer_130");
  EXPECT_EQ(ErrorOf({"--data.tokenizer=tokenizer_130"}), "no error");
  std::filesystem::current_path(was);
  for (const std::string key : {"out_dir", "train.sample_prompt", "checkpoint.resume"})
    EXPECT_EQ(ErrorOf({"--" + key + "="}), "command line: --" + key + "=: must not be empty");
  EXPECT_THAT(ErrorOf({"--model.preset=gpt3"}),
              HasSubstr("--model.preset=gpt3: did you mean gpt2? It must be one of "));
}

TEST(RunConfig, NamesOfOtherProgramsGetSuggestions) {
  const std::vector<std::pair<std::string, std::string>> pairs = {
      {"learning_rate", "optim.lr"},
      {"max_iters", "train.steps"},
      {"grad_clip", "optim.clip"},
      {"warmup_iters", "optim.warmup"},
      {"gradient_accumulation_steps", "train.grad_accum"},
      {"eval_interval", "train.eval_every"},
      {"lr_decay_iters", "optim.decay_steps"},
      {"batch_size", "train.batch_size"},
      {"model.n_embed", "model.n_embd"},
      {"model.n_layers", "model.n_layer"},
      {"train.seq_len", "model.block_size"},
      {"train.lr", "optim.lr"},
      {"checkpont.every", "checkpoint.every"},
      {"resume", "checkpoint.resume"},
      {"num_key_value_heads", "model.n_kv_head"},
      {"intermediate_size", "model.n_inner"},
      {"rms_norm_eps", "model.norm_eps"},
      {"initializer_range", "model.init_std"},
      {"hidden_act", "model.activation"},
      {"rope_base", "model.rope_theta"},
      {"dtype", "train.precision"}};
  for (const auto& [typed, meant] : pairs)
    EXPECT_EQ(ErrorOf({"--" + typed + "=1"}),
              "command line: unknown option --" + typed + ": did you mean --" + meant + "?");
}

TEST(RunConfig, KindsOfModelsAreWords) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> words = {
      {"norm", {"layer_norm", "rms_norm"}},
      {"activation", {"gelu", "gelu_exact", "relu", "relu2", "silu", "swiglu"}},
      {"position", {"learned", "rope"}}};
  for (const auto& [key, choices] : words) {
    for (const std::string& word : choices)
      EXPECT_EQ(ErrorOf({"--model." + key + "=" + word}), "no error");
  }
  EXPECT_EQ(ErrorOf({"--model.norm=rmsnorm"}),
            "command line: --model.norm=rmsnorm: did you mean rms_norm? It must be one of "
            "layer_norm, rms_norm");
  EXPECT_THAT(ErrorOf({"--model.activation=swish"}),
              HasSubstr("must be one of gelu, gelu_exact, relu, relu2, silu, swiglu"));
  EXPECT_THAT(ErrorOf({"--model.position=rotary"}), HasSubstr("learned, rope"));
}

}  // namespace
}  // namespace lockstep::models
