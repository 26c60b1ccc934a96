// train_gpt --lora.rank: adapters of a model that is trained already, as users train them.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/io/file.h"
#include "core/io/safetensors.h"
#include "tests/rank_runs.h"
#include "tests/sanitized.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class Lora : public RankRuns {
 protected:
  // The model that is tuned, and the text to tune it on, of which it knows only the letters.
  void SetUp() override {
    Run(1, "base", {"--model.n_layer=2", "--train.steps=20", "--train.batch_size=8"});
    std::string text;
    for (int i = 0; i < 300; ++i) text += "the sea is deep\nand the sky is wide\n";
    WriteFileAtomically(Path("tune.txt"), text);
  }

  Arguments Tune(const Arguments& more) const {
    Arguments all = {"--init_from=" + Path("base/latest"),
                     "--data.path=" + Path("tune.txt"),
                     "--model.n_layer=2",
                     "--lora.rank=4",
                     "--optim.lr=0.02",
                     "--train.steps=20"};
    for (const std::string& argument : more) {
      const std::string key = argument.substr(0, argument.find('=')) + "=";
      std::erase_if(all, [&](const std::string& a) { return a.starts_with(key); });
      all.push_back(argument);
    }
    return all;
  }
  Result TuneFails(const Arguments& more) {
    const Result run = Wait(Start(1, Train("fails", Tune(more))))[0];
    EXPECT_GT(run.exit_code, 0) << run;
    return run;
  }
  // All that the next step depends on.
  std::string State(const std::string& out, int step) const {
    const std::string folder = Checkpoint(out, step);
    return ReadFile(folder + "/adapter_model.safetensors") +
           ReadFile(folder + "/optimizer.safetensors");
  }
};

TEST_F(Lora, LearnsANewTextAndKeepsOnlyAdapters) {
  const Result run = Run(1, "tuned", Tune({"--train.steps=100"}))[0];
  EXPECT_THAT(run.out, HasSubstr("of which adapters of rank 4 (all) are trained: "));
  const auto metrics = Metrics("tuned");
  EXPECT_LT(double{metrics.back()["val_loss"]}, 0.7 * double{metrics.front()["val_loss"]});
  const std::string folder = Checkpoint("tuned", 100);
  EXPECT_TRUE(PathExists(folder + "/adapter_config.json"));
  EXPECT_FALSE(PathExists(folder + "/model.safetensors"));
  EXPECT_LT(ReadFile(folder + "/optimizer.safetensors").size(),
            ReadFile(Checkpoint("base", 20) + "/optimizer.safetensors").size() / 2);

  const auto sample = [&](const std::string& checkpoint) {
    return RunProgram({"models/sample_gpt", "--checkpoint=" + checkpoint, "--prompt=the sea",
                       "--tokens=9", "--temperature=0"});
  };
  const Result tuned = sample(folder), base = sample(Path("base/latest"));
  EXPECT_EQ(tuned.exit_code, 0) << tuned;
  EXPECT_NE(tuned.out, base.out);
}

// Head and embedding are in the adapter's folder, as PEFT has them; whoever reads it has them.
TEST_F(Lora, SavesWholeModules) {
  const Arguments untied = {"--model.n_layer=2", "--model.tie_embeddings=false", "--train.steps=20",
                            "--train.batch_size=8"};
  Run(1, "untied", untied);
  Arguments options = Tune({"--init_from=" + Path("untied/latest")});
  options.push_back("--model.tie_embeddings=false");
  options.push_back("--lora.modules_to_save=lm_head,wte");
  Run(1, "whole", options);
  const std::string folder = Checkpoint("whole", 20);
  const SafetensorsFile adapter = SafetensorsFile::Open(folder + "/adapter_model.safetensors"),
                        base = SafetensorsFile::Open(Path("untied/latest/model.safetensors"));
  const auto values = [](const SafetensorsFile& file, const std::string& name) {
    return file.Get(name).ToTensor().ToVector<float>();
  };
  EXPECT_NE(values(adapter, "base_model.model.lm_head.weight"), values(base, "lm_head.weight"));
  EXPECT_NE(values(adapter, "base_model.model.transformer.wte.weight"), values(base, "wte.weight"));
  EXPECT_THAT(ReadFile(folder + "/adapter_config.json"),
              AllOf(HasSubstr("\"lm_head\""), HasSubstr("\"transformer.wte\"")));

  Arguments rest = options;
  rest.push_back("--checkpoint.resume=" + Checkpoint("whole", 10));
  Run(1, "rest", rest);
  EXPECT_EQ(State("rest", 20), State("whole", 20));

  Arguments without = Tune({"--init_from=" + folder});
  without.push_back("--model.tie_embeddings=false");
  EXPECT_THAT(TuneFails(without).err, HasSubstr("use lora.modules_to_save = "));
  without.push_back("--lora.modules_to_save=lm");
  EXPECT_THAT(TuneFails(without).err, HasSubstr("'lm' names no module of this model"));
  EXPECT_THAT(TuneFails({"--lora.modules_to_save=wte"}).err, HasSubstr("head is tied"));
}

// Before the first step adapters add nothing: the validation loss is that of the base.
TEST_F(Lora, BeginsWithTheBase) {
  const Arguments all = {"--lora.rank=0", "--optim.lr=1e-9"};
  Run(1, "whole", Tune(all));
  Run(1, "tuned", Tune({}));
  EXPECT_EQ(Metrics("tuned").front()["val_loss"], Metrics("whole").front()["val_loss"]);
}

TEST_F(Lora, ResumesWithTheSameBits) {
  const Arguments options = Tune({"--lora.dropout=0.1", "--train.precision=bf16"});
  Run(1, "whole", options);
  Arguments rest = options;
  rest.push_back("--checkpoint.resume=" + Checkpoint("whole", 10));
  Run(1, "rest", rest);
  EXPECT_EQ(State("rest", 20), State("whole", 20));
  EXPECT_NE(State("whole", 10), State("whole", 20));
}

// As PEFT does, and so that adapters are exported without a rounding.
TEST_F(Lora, SavesTheOriginalsOfAdaptersIn16Bits) {
  const auto options = [&](const std::string& parallel) {
    return Tune({"--train.precision=bf16", "--dist.reduction=ordered",
                 "--train.global_batch_size=8", "--train.steps=10", "--parallel." + parallel});
  };
  Run(1, "alone", options("shard=none"));
  for (const std::string parallel : {"shard=optimizer", "shard=full", "pp=2"}) {
    Run(2, parallel, options(parallel));
    EXPECT_EQ(State(parallel, 10), State("alone", 10)) << parallel;
  }
  const std::string folder = Checkpoint("alone", 10);
  const SafetensorsFile adapter = SafetensorsFile::Open(folder + "/adapter_model.safetensors"),
                        state = SafetensorsFile::Open(folder + "/optimizer.safetensors");
  for (const std::string matrix : {"lora_A", "lora_B"}) {
    const std::string module = "h.1.attn.c_proj." + matrix;
    const Tensor saved =
        adapter.Get("base_model.model.transformer." + module + ".weight").ToTensor();
    ASSERT_EQ(saved.dtype(), DType::kF32);
    const std::vector<float> values = saved.ToVector<float>();
    EXPECT_EQ(values, state.Get(module + ".weight.master").ToTensor().ToVector<float>());
    EXPECT_NE(values, saved.To(DType::kBF16).To(DType::kF32).ToVector<float>());
  }
}

// The base is frozen, and so are the biases of its routers, which the adapters' files do not have.
TEST_F(Lora, OfAMixtureResumesWithTheSameBits) {
  const Arguments mixture = {"--model.n_layer=2", "--model.n_expert=4", "--model.router=sigmoid",
                             "--model.bias_rate=0.05", "--train.steps=20"};
  Run(1, "mixture", mixture);
  Arguments options = Tune({"--init_from=" + Path("mixture/latest")});
  options.insert(options.end(), mixture.begin(), mixture.end());
  Run(1, "whole", options);
  Arguments rest = options;
  rest.push_back("--checkpoint.resume=" + Checkpoint("whole", 10));
  Run(1, "rest", rest);
  EXPECT_EQ(State("rest", 20), State("whole", 20));
  const auto biases = [&](const std::string& folder) {
    const SafetensorsFile file = SafetensorsFile::Open(folder + "/buffers.safetensors");
    return file.Get("h.1.mlp.router.bias").ToTensor().ToVector<float>();
  };
  EXPECT_EQ(biases(Path("whole/latest")), biases(Path("mixture/latest")));
  EXPECT_THAT(biases(Path("whole/latest")), testing::Contains(testing::Ne(0)));
}

TEST_F(Lora, HasTheSameBitsAtAnyNumberOfRanks) {
  const auto options = [&](const std::string& shard) {
    return Tune({"--dist.reduction=ordered", "--train.global_batch_size=8", "--lora.dropout=0.1",
                 "--parallel.shard=" + shard});
  };
  Run(1, "alone", options("none"));
  for (const std::string shard : {"none", "optimizer", "gradients", "full"}) {
    for (const int ranks : {2, 4}) {
      if (ranks == 4 && (shard == "optimizer" || shard == "gradients")) continue;
      if (ranks == 4 && test::kSanitized) continue;
      const std::string out = shard + std::to_string(ranks);
      Run(ranks, out, options(shard));
      EXPECT_EQ(State(out, 20), State("alone", 20)) << out;
      EXPECT_EQ(Numbers(out), Numbers("alone")) << out;
    }
  }
}

// QLoRA: the base is quantised from its folder again, to the same bits.
TEST_F(Lora, ABaseOfFourBitsResumesAndHasTheSameBitsAtAnyNumberOfRanks) {
  const Arguments options =
      Tune({"--lora.base=nf4", "--dist.reduction=ordered", "--train.global_batch_size=8",
            "--lora.dropout=0.1", "--train.steps=40"});
  const Result run = Run(1, "whole", options)[0];
  EXPECT_THAT(run.out, HasSubstr("4 bits"));
  const auto metrics = Metrics("whole");
  EXPECT_LT(double{metrics.back()["val_loss"]}, 0.9 * double{metrics.front()["val_loss"]});
  Arguments rest = options;
  rest.push_back("--checkpoint.resume=" + Checkpoint("whole", 20));
  Run(1, "rest", rest);
  EXPECT_EQ(State("rest", 40), State("whole", 40));
  for (const std::string shard : {"none", "full"}) {
    Arguments ranks = options;
    ranks.push_back("--parallel.shard=" + shard);
    Run(2, shard, ranks);
    EXPECT_EQ(State(shard, 40), State("whole", 40)) << shard;
  }
  // Nor does another run continue with other weights.
  EXPECT_THAT(TuneFails({"--init_from=" + Checkpoint("whole", 40)}).err,
              AllOf(HasSubstr("lora.base = \"model\" (default), but the adapters of "),
                    HasSubstr("use lora.base = \"nf4\"")));
  EXPECT_THAT(TuneFails({"--lora.base=nf4", "--lora.rank=0"}).err, HasSubstr("lora.rank"));
  EXPECT_THAT(TuneFails({"--lora.base=int4"}).err, HasSubstr("nf4"));
}

// A base whose files are the parts that ranks had of it is quantised to the bits of a whole one.
TEST_F(Lora, ABaseOfFourBitsIsReadFromParts) {
  const Arguments base = {"--model.n_layer=2", "--train.steps=5", "--parallel.shard=full"};
  Arguments whole = base;
  whole.push_back("--checkpoint.sharded=false");
  Run(2, "parts", base);
  Run(2, "whole", whole);
  ASSERT_TRUE(PathExists(Checkpoint("parts", 5) + "/parts.json"));
  ASSERT_FALSE(PathExists(Checkpoint("whole", 5) + "/parts.json"));
  for (const std::string from : {"parts", "whole"}) {
    Run(1, "of_" + from,
        Tune({"--init_from=" + Checkpoint(from, 5), "--lora.base=nf4", "--train.steps=5"}));
  }
  EXPECT_EQ(Numbers("of_parts"), Numbers("of_whole"));
}

TEST_F(Lora, EachOptionActs) {
  Run(1, "usual", Tune({}));
  int i = 0;
  for (const char* option :
       {"--lora.rank=3", "--lora.alpha=4", "--lora.dropout=0.5", "--lora.targets=attn.c_proj",
        "--lora.rank_stabilized=true", "--lora.base=nf4", "--lora.base=nf4_single"}) {
    const std::string out = "other" + std::to_string(i++);
    Run(1, out, Tune({option}));
    EXPECT_NE(Numbers(out), Numbers("usual")) << option;
  }
}

// Each rank reads its machine's copy, whose path is its own business, but not its content.
TEST_F(Lora, RanksMayFindTheSameAdaptersAtPathsOfTheirOwn) {
  Run(1, "tuned", Tune({"--train.steps=1"}));
  Run(1, "more", Tune({"--train.steps=2"}));
  std::filesystem::copy(Checkpoint("tuned", 1), Path("copy"));
  const auto from = [&](const std::string& folder) {
    return Train("out", Tune({"--lora.rank=0", "--lora.init_from=" + folder, "--train.steps=1"}));
  };
  const Arguments first = from(Checkpoint("tuned", 1));
  for (const Result& r : Wait(Start({first, from(Checkpoint("more", 2))}))) {
    EXPECT_THAT(r.err, HasSubstr("the hash of the checkpoint or folder to start from"));
  }
  for (const Result& r : Wait(Start({first, from(Path("copy"))}))) EXPECT_EQ(r.exit_code, 0) << r;
}

TEST_F(Lora, RefusesWhatCannotBe) {
  EXPECT_THAT(TuneFails({"--init_from="}).err,
              AllOf(HasSubstr("lora.rank = 4"), HasSubstr("name it with --init_from")));
  EXPECT_THAT(
      TuneFails({"--lora.targets=q_proj,c_attn"}).err,
      AllOf(HasSubstr("'q_proj' names no matrix of this model"),
            HasSubstr("all, c_attn, c_proj, c_fc"), HasSubstr("transformer.h.0.attn.c_attn")));
  EXPECT_THAT(TuneFails({"--lora.rank=17"}).err,
              AllOf(HasSubstr("rank 17"), HasSubstr("[48, 16]"), HasSubstr("at most 16")));
  EXPECT_THAT(TuneFails({"--lora.rank=0", "--lora.alpha=4"}).err,
              HasSubstr("lora.alpha = 4.0 (command line) does nothing without lora.rank"));
  Run(1, "tuned", Tune({}));
  const std::string tuned = "--init_from=" + Path("tuned/latest");
  EXPECT_THAT(TuneFails({tuned, "--lora.rank=0"}).err, HasSubstr("or merge them first"));
  EXPECT_THAT(TuneFails({tuned, "--lora.rank=0", "--dry_run"}).err, HasSubstr("lora.rank = 4"));
  EXPECT_THAT(TuneFails({tuned, "--lora.rank=3"}).err, HasSubstr("have rank 4: use lora.rank = 4"));
  EXPECT_THAT(TuneFails({tuned, "--lora.alpha=8"}).err,
              AllOf(HasSubstr("is multiplied by 4 "), HasSubstr("multiplies it by 2:"),
                    HasSubstr("--lora.alpha=16 --lora.rank_stabilized=false")));
  // The base is another one by now.
  Run(1, "other", {"--model.n_layer=2", "--train.steps=10"});
  RemoveTree(Checkpoint("base", 20));
  std::filesystem::copy(Checkpoint("other", 10), Checkpoint("base", 20));
  EXPECT_THAT(TuneFails({tuned}).err, HasSubstr("has adapters of other weights"));
  RemoveTree(Path("base"));
  EXPECT_THAT(TuneFails({tuned}).err, HasSubstr("there is no such folder"));
}

}  // namespace
}  // namespace lockstep
