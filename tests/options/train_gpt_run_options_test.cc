// Options of train_gpt that do not change the numbers of a run: where it runs, what it reads,
// prints and saves, and the memory that it takes.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <regex>

#include "core/cuda/device.h"
#include "core/io/file.h"
#include "core/system/instruction_set.h"
#include "data/prepare/prepare.h"
#include "data/tokenizer/byte_tokenizer.h"
#include "tests/gpu_test.h"
#include "tests/options/option_runs.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::Not;

class TrainGptRunOptions : public OptionRuns {};

TEST_F(TrainGptRunOptions, DeviceChoosesWhereItComputes) {
  EXPECT_THAT(Train({"--device=cpu"}).result.out, HasSubstr("computes   on cpu,"));
  if (cuda::Simulated() && test::WhyProgramsHaveNoGpus(1).empty()) {
    EXPECT_THAT(Train({"--device=sim"}).result.out, HasSubstr("computes   on sim:0,"));
  }
  const Result run = RunProgram({"models/train_gpt", "--device=cuda:999", "--dry_run"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("cuda"));
}

// A limit of the instruction set is told where it limits something.
TEST_F(TrainGptRunOptions, ALimitOfTheInstructionSetIsTold) {
  const auto header = [&](const char* limit) {
    const Result run = RunProgram({"models/train_gpt", "--dry_run", "--out_dir=" + Path("limited")},
                                  {{"LOCKSTEP_MAX_CPU_ISA", limit}});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return run.out;
  };
  EXPECT_THAT(header("amx"), Not(HasSubstr("LOCKSTEP_MAX_CPU_ISA")));
  const std::string best = ToString(CpuInstructionSet());
  if (best != "avx2") {
    EXPECT_THAT(header("avx2"), HasSubstr(", with avx2 (the CPU has " + best));
  }
  const Result refused =
      RunProgram({"models/train_gpt", "--dry_run"}, {{"LOCKSTEP_MAX_CPU_ISA", "sse4"}});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, HasSubstr("LOCKSTEP_MAX_CPU_ISA=sse4: write avx2,"));
}

TEST_F(TrainGptRunOptions, Threads) {
  EXPECT_THAT(Train({"--threads=3"}).result.out, HasSubstr(", 3 threads,"));
  EXPECT_EQ(Train({"--threads=3"}).Numbers(), Train({}).Numbers());
}

TEST_F(TrainGptRunOptions, OutDirHoldsTheRun) {
  const std::string folder = Path("elsewhere");
  Train({"--out_dir=" + folder});
  EXPECT_TRUE(PathExists(folder + "/metrics.jsonl"));
  EXPECT_TRUE(PathExists(folder + "/latest/model.safetensors"));
}

TEST_F(TrainGptRunOptions, InitFromStartsWithTheseWeights) {
  const TrainingRun& first = Train({});
  const TrainingRun& second = Train({"--init_from=" + first.folder + "/latest"});
  EXPECT_EQ(second.Lines("metrics.jsonl").front()["val_loss"],
            first.Lines("metrics.jsonl").back()["val_loss"]);
}

// As other programs take it: its best checkpoint, else the latest. The run can be continued.
TEST_F(TrainGptRunOptions, InitFromTakesAFolderOfARun) {
  const TrainingRun& first = Train({});
  ASSERT_TRUE(PathExists(first.folder + "/best"));
  const TrainingRun& from_best = Train({"--init_from=" + first.folder + "/best"});
  const TrainingRun& from_run = Train({"--init_from=" + first.folder});
  EXPECT_EQ(from_run.Numbers(), from_best.Numbers());
  EXPECT_THAT(from_run.result.out,
              HasSubstr("  weights    " + first.folder + "/checkpoints/step-00000006\n"));
  const TrainingRun& none_best = Train({"--checkpoint.keep_best=false"});
  ASSERT_FALSE(PathExists(none_best.folder + "/best"));
  EXPECT_EQ(Train({"--init_from=" + none_best.folder}).Numbers(),
            Train({"--init_from=" + first.folder + "/latest"}).Numbers());
  const TrainingRun& longer =
      Train({"--init_from=" + first.folder, "--train.steps=8",
             "--checkpoint.resume=" + from_run.folder + "/checkpoints/step-00000004"});
  EXPECT_THAT(longer.result.out, Not(HasSubstr("init_from:")));
}

TEST_F(TrainGptRunOptions, DataPathIsWhatItTrainsOn) {
  EXPECT_THAT(Train({"--data.path=" + Path("other.txt")}).result.out, HasSubstr("other.txt: 360"));
}

// A mixture of one source is that source; of two, it tells their epochs, and resumes exactly.
TEST_F(TrainGptRunOptions, DataMixIsWhatItTrainsOn) {
  const std::string other = Path("other.txt"), third = Path("third.txt");
  WriteFileAtomically(third, std::string(300, 'z') + std::string(300, 'a'));
  const auto run = [&](const std::string& argument, const Arguments& more = {}) {
    Arguments all = {argument, "--data.tokenizer=byte"};
    all.insert(all.end(), more.begin(), more.end());
    return Train(all);
  };
  EXPECT_EQ(run("--data.mix=" + other + ":3").Numbers(), run("--data.path=" + other).Numbers());
  const std::string mix = "--data.mix=" + other + ":0.7," + third + ":0.3";
  const TrainingRun whole = run(mix);
  // 24 samples: 17 of 22 windows, 7 of 33.
  EXPECT_THAT(whole.result.out, AllOf(HasSubstr("other.txt: weight 7, 360 tokens, 0.773 epochs"),
                                      HasSubstr("third.txt: weight 3, 540 tokens, 0.212 epochs")));
  const TrainingRun resumed =
      run(mix, {"--checkpoint.resume=" + whole.folder + "/checkpoints/step-00000004"});
  EXPECT_EQ(resumed.Lines("metrics.jsonl").back()["loss"],
            whole.Lines("metrics.jsonl").back()["loss"]);
}

// Presets name a tokenizer for text, which gives way to that of prepared data. The run's folder
// records what was used, so that its config.toml alone continues it.
TEST_F(TrainGptRunOptions, PresetsRecordTheTokenizerOfPreparedData) {
  const std::string tokens = Path("prepared");
  data::Prepare({.paths = {Path("other.txt")},
                 .text = {},
                 .tokenizer = std::make_shared<data::ByteTokenizer>(),
                 .out_dir = tokens,
                 .val_fraction = 0,
                 .threads = 1});
  for (const std::string& data : {"--data.path=" + tokens, "--data.mix=" + tokens + ":1"}) {
    const TrainingRun first = Train({"--model.preset=llama-tiny", data});
    const std::string again = first.folder + "-again";
    const Result resumed =
        RunProgram({"models/train_gpt", first.folder + "/config.toml", "--out_dir=" + again,
                    "--checkpoint.resume=" + first.folder + "/checkpoints/step-00000004"});
    ASSERT_EQ(resumed.exit_code, 0) << resumed;
    EXPECT_THAT(resumed.out, Not(HasSubstr("with a different configuration")));
    EXPECT_EQ((TrainingRun{resumed, again}.Lines("metrics.jsonl").back()["loss"]),
              first.Lines("metrics.jsonl").back()["loss"]);
    const Result sample = RunProgram({"models/sample_gpt", "--checkpoint=" + again, "--prompt=abc",
                                      "--tokens=5", "--threads=1"});
    EXPECT_EQ(sample.exit_code, 0) << sample;
  }
}

TEST_F(TrainGptRunOptions, DataFieldIsTheText) {
  std::string lines;
  for (int i = 0; i < 30; ++i) lines += "{\"id\": 1, \"body\": \"abc def ghi jkl\"}\n";
  WriteFileAtomically(Path("body.jsonl"), lines);
  EXPECT_THAT(Train({"--data.path=" + Path("body.jsonl"), "--data.field=body"}).result.out,
              HasSubstr("body.jsonl: 405"));
}

TEST_F(TrainGptRunOptions, StepsAndEpochsAreTheLength) {
  EXPECT_EQ(Train({"--train.steps=3"}).Lines("metrics.jsonl").back()["step"], 3);
  // 360 tokens are 22 windows of 16 with a target each: 2 epochs of 4 at a time are 11 steps.
  const TrainingRun& run =
      Train({"--data.path=" + Path("other.txt"), "--train.epochs=2", "--train.steps=0"});
  EXPECT_EQ(run.Lines("metrics.jsonl").back()["step"], 11);
  // The block has 3072 + 32 parameters, the last norm 16 and the head, of 8 characters, 128: 0.2
  // tokens for each are 40.6 windows. The table of positions does not count.
  const TrainingRun& by_size = Train(
      {"--data.path=" + Path("other.txt"), "--train.tokens_per_parameter=0.2", "--train.steps=0"});
  EXPECT_EQ(by_size.Lines("metrics.jsonl").back()["step"], 10);
}

// The numbers do not differ; the report says that graphs were submitted.
TEST_F(TrainGptRunOptions, CudaGraphsAreSubmittedOnAGpu) {
  const std::string gpu = cuda::Simulated() ? "--device=sim" : "--device=cuda";
  SKIP_UNLESS_PROGRAMS_HAVE_GPUS(1);
  const TrainingRun& graphs = Train({gpu});
  const TrainingRun& eager = Train({gpu, "--train.cuda_graphs=false"});
  EXPECT_THAT(graphs.result.out, HasSubstr(", CUDA graphs,"));
  EXPECT_THAT(eager.result.out, Not(HasSubstr("CUDA graphs")));
  EXPECT_EQ(graphs.Numbers(), eager.Numbers());
}

TEST_F(TrainGptRunOptions, LossScale) {
  const TrainingRun& run =
      Train({"--train.precision=fp16", "--train.loss_scale=1024", "--train.loss_scale_every=2"});
  std::vector<double> scales;
  for (const Json& line : run.Lines("metrics.jsonl")) {
    if (line["step"] > 0) scales.push_back(line["loss_scale"]);
  }
  EXPECT_EQ(scales, (std::vector<double>{1024, 2048, 2048, 4096, 4096, 8192}));
}

// The logits of only this many tokens are in memory at once; the loss is the same up to rounding.
TEST_F(TrainGptRunOptions, LossChunkBoundsMemory) {
  const std::string batch = "--train.batch_size=32";  // 512 tokens
  const TrainingRun& whole = Train({batch, "--train.loss_chunk=0"});
  const TrainingRun& chunks = Train({batch, "--train.loss_chunk=64"});
  const auto last = [](const TrainingRun& run, const char* field) {
    return run.Lines("metrics.jsonl").back()[field].get<double>();
  };
  const double logits = 512 * 90 * 4;  // of a vocabulary of some 90 characters
  EXPECT_LT(last(chunks, "memory_bytes"), last(whole, "memory_bytes") - 0.5 * logits);
  EXPECT_NEAR(last(chunks, "val_loss"), last(whole, "val_loss"), 1e-4);
}

// The same numbers for less memory.
TEST_F(TrainGptRunOptions, RecomputeLowersMemory) {
  const Arguments model = {"--train.batch_size=32", "--model.dropout=0.2", "--model.n_layer=3"};
  const auto with = [&](const std::string& what) -> const TrainingRun& {
    Arguments all = model;
    all.push_back("--train.recompute=" + what);
    return Train(all);
  };
  const auto memory = [](const TrainingRun& run) {
    return run.Lines("metrics.jsonl").back()["memory_bytes"].get<double>();
  };
  const TrainingRun& plain = Train(model);
  double last = memory(plain);
  for (const char* what : {"gelu,layer_norm", "mlp", "block"}) {
    EXPECT_EQ(with(what).Numbers(), plain.Numbers()) << what;
    EXPECT_LT(memory(with(what)), last) << what;
    last = memory(with(what));
  }
  EXPECT_EQ(with("attention").Numbers(), plain.Numbers());
  // Where the product that GELU is part of has virtual parts, too.
  const auto in_parts = [&](const std::string& what) -> const TrainingRun& {
    Arguments all = model;
    for (const std::string more : {"--dist.reduction=ordered", "--virtual.tp=2"}) {
      all.push_back(more);
    }
    all.push_back("--train.recompute=" + what);
    return Train(all);
  };
  EXPECT_EQ(in_parts("gelu").Numbers(), in_parts("none").Numbers());
  EXPECT_LT(memory(in_parts("gelu")), memory(in_parts("none")));
  EXPECT_THAT(with("block").result.out, HasSubstr("recomputes all blocks"));
  EXPECT_THAT(with("auto").result.out, HasSubstr("recomputes nothing, chosen by the memory plan"));
  const auto error = [](const Arguments& arguments) {
    Arguments all = {"models/train_gpt", "--dry_run"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return RunProgram(all).err;
  };
  EXPECT_THAT(error({"--train.offload=activations", "--device=cpu"}),
              HasSubstr("this run is on the CPU: leave it out"));
  EXPECT_THAT(error({"--train.recompute=swiglu"}), HasSubstr("has no swiglu: leave it out"));
  EXPECT_THAT(error({"--train.recompute=gelu", "--train.precision=bf16", "--device=cpu"}),
              HasSubstr("gelu is part of a matrix product"));
}

// It trains where it would not otherwise.
TEST_F(TrainGptRunOptions, RecomputeFitsAModelIntoAGpusMemory) {
  if (!cuda::Simulated()) GTEST_SKIP() << "a simulated GPU's memory";
  SKIP_UNLESS_PROGRAMS_HAVE_GPUS(1);
  const auto run = [](const std::string& recompute, const Arguments& more = {}) {
    Arguments all = {"models/train_gpt",         "--device=sim",         "--model.n_layer=6",
                     "--model.n_head=2",         "--model.n_embd=64",    "--model.block_size=32",
                     "--train.batch_size=16",    "--train.steps=2",      "--optim.warmup=1",
                     "--train.eval_batches=1",   "--train.eval_every=0", "--train.sample_tokens=0",
                     "--train.cuda_graphs=false"};
    all.push_back("--train.recompute=" + recompute);
    all.push_back("--out_dir=" + Path("fits_" + recompute));
    all.insert(all.end(), more.begin(), more.end());
    return RunProgram(all, {{"CUDASIM_MEMORY", "12M"}});
  };
  const Result none = run("none"), automatic = run("auto");
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err,
              testing::AllOf(HasSubstr("sim:0 has 12.0 MiB. What would fit: --train.batch_size=8 "
                                       "--train.grad_accum=2 ("),
                             HasSubstr("; --train.recompute="),
                             HasSubstr("; --train.offload=activations (")));
  EXPECT_EQ(automatic.exit_code, 0) << automatic.err;
  EXPECT_THAT(automatic.out, HasSubstr("recomputes the blocks of the first 3 of 6 layers, chosen "
                                       "by the memory plan"));
  // An evaluation takes less than a step, even without recomputation.
  const Result evaluation = run("none", {"--eval_only", "--init_from=" + Path("fits_auto/latest")});
  EXPECT_EQ(evaluation.exit_code, 0) << evaluation.err;
  EXPECT_THAT(evaluation.out, HasSubstr("validation loss"));
  EXPECT_THAT(evaluation.out,
              testing::ContainsRegex("at the peak of an evaluation: parameters [0-9.]+ MiB, "
                                     "workspace [0-9.]+ MiB\n"));
}

TEST_F(TrainGptRunOptions, WeightsOfFourBitsAreNotOffloaded) {
  SKIP_UNLESS_PROGRAMS_HAVE_GPUS(1);
  const Result run =
      RunProgram({"models/train_gpt", cuda::Simulated() ? "--device=sim" : "--device=cuda",
                  "--init_from=" + Train({}).folder + "/latest", "--lora.rank=2", "--lora.base=nf4",
                  "--train.offload=weights", "--out_dir=" + Path("four_bits")});
  EXPECT_EQ(run.exit_code, 2) << run;
  EXPECT_THAT(run.err, testing::AllOf(HasSubstr("train.offload = \"weights\""),
                                      HasSubstr("lora.base = \"nf4\""), HasSubstr("use one")));
}

TEST_F(TrainGptRunOptions, OffloadLowersAGpusMemory) {
  SKIP_UNLESS_PROGRAMS_HAVE_GPUS(1);
  // Without graphs, whose memory is counted in pieces larger than this model.
  const Arguments model = {cuda::Simulated() ? "--device=sim" : "--device=cuda",
                           "--train.cuda_graphs=false", "--model.n_layer=6",
                           "--train.batch_size=16", "--train.steps=3"};
  Arguments offload = model;
  offload.push_back("--train.offload=activations");
  const auto memory = [](const TrainingRun& run) {
    return run.Lines("metrics.jsonl").back()["memory_bytes"].get<double>();
  };
  EXPECT_EQ(Train(offload).Numbers(), Train(model).Numbers());
  EXPECT_LT(memory(Train(offload)), 0.6 * memory(Train(model)));
  EXPECT_THAT(Train(offload).result.out, HasSubstr("offloads   activations"));
  for (const char* what : {"optimizer", "weights", "activations,optimizer,weights"}) {
    offload.back() = std::string("--train.offload=") + what;
    EXPECT_EQ(Train(offload).Numbers(), Train(model).Numbers()) << what;
    EXPECT_LT(memory(Train(offload)), memory(Train(model))) << what;
  }
  EXPECT_LT(memory(Train(offload)), 0.4 * memory(Train(model)));
  EXPECT_THAT(Train(offload).result.out,
              HasSubstr("offloads   activations, optimizer state, weights of blocks to the host"));
}

TEST_F(TrainGptRunOptions, LogEverySetsTheLinesOnTheTerminal) {
  const auto lines = [](const TrainingRun& run) {
    const std::regex line(R"(\nstep +\d+/6 \| loss)");
    const std::string& out = run.result.out;
    return std::distance(std::sregex_iterator(out.begin(), out.end(), line), {});
  };
  EXPECT_EQ(lines(Train({"--train.log_every=1"})), 6);
  EXPECT_EQ(lines(Train({"--train.log_every=3"})), 3);  // the first too
}

TEST_F(TrainGptRunOptions, EvalEverySetsTheStepsBetweenValidations) {
  EXPECT_EQ(Train({"--train.eval_every=3"}).Validations(), 3u);  // before the first, 3, 6
  EXPECT_EQ(Train({"--train.eval_every=1"}).Validations(), 7u);
}

// Before the first of them, so that a long one does not look hung.
TEST_F(TrainGptRunOptions, TheHeaderTellsHowMuchIsEvaluated) {
  const auto header = [](Arguments more) {
    more.insert(more.begin(), {"models/train_gpt", "--dry_run", "--data.path=" + Path("other.txt"),
                               "--train.batch_size=1", "--model.block_size=2"});
    return RunProgram(more).out;
  };
  EXPECT_THAT(header({}), HasSubstr("evaluates  all 40 validation tokens, every 250 steps\n"));
  const std::string many = "--data.val_fraction=0.6";
  EXPECT_THAT(
      header({many}),
      HasSubstr("evaluates  all 240 validation tokens, as many as 120 steps train on, every "
                "250 steps; --train.eval_batches=N takes N batches of 2 tokens\n"));
  EXPECT_THAT(header({many, "--train.eval_batches=5", "--train.eval_every=0"}),
              HasSubstr("evaluates  5 batches of 2 tokens, of the 240 validation tokens, after the "
                        "last step\n"));
  EXPECT_THAT(header({"--data.val_fraction=0"}), Not(HasSubstr("evaluates")));
}

TEST_F(TrainGptRunOptions, EvalOnlySaysNothingOfTraining) {
  const TrainingRun& first = Train({});
  const Result run = RunProgram({"models/train_gpt", "--eval_only", "--init_from=" + first.folder,
                                 "--data.path=" + Path("other.txt"), "--train.steps=10",
                                 "--optim.warmup=9", "--threads=1"});
  ASSERT_EQ(run.exit_code, 0) << run;
  EXPECT_EQ(run.err, "");
  EXPECT_THAT(run.out, AllOf(HasSubstr("  data       " + Path("other.txt") + "\n"),
                             HasSubstr("  evaluates  all 40 validation tokens\n"),
                             HasSubstr("step 0 | validation loss ")));
  for (const char* of_training :
       {"batch ", "length", "optimizer", "learning rate", "epochs", "writes", "training tokens"}) {
    EXPECT_THAT(run.out, Not(HasSubstr(of_training)));
  }
}

// Its loss on other data would be mistaken for that of the run.
TEST_F(TrainGptRunOptions, EvalOnlyNeedsTheDataOfARun) {
  const TrainingRun& run = Train({"--data.path=" + Path("other.txt")});
  const std::string more = Path("more.txt");
  WriteFileAtomically(more, std::string(400, 'a'));
  const auto evaluate = [](const Arguments& more) {
    Arguments all = {"models/train_gpt", "--eval_only", "--threads=1"};
    all.insert(all.end(), more.begin(), more.end());
    return RunProgram(all);
  };
  for (const std::string weights : {"", "/latest", "/checkpoints/step-00000006"}) {
    const std::string from = "--init_from=" + run.folder + weights;
    const Result refused = evaluate({from});
    EXPECT_EQ(refused.exit_code, 2) << refused;
    const std::string config = run.folder + "/config.toml";
    EXPECT_THAT(refused.err,
                AllOf(HasSubstr("trained on data.path=" + Path("other.txt") + ", and "),
                      HasSubstr("the embedded corpus"),
                      HasSubstr("train_gpt " + config + " --eval_only " + from)));
    // What the error says.
    EXPECT_THAT(evaluate({config, from}).out, HasSubstr("  data       " + Path("other.txt")));
    EXPECT_THAT(evaluate({from, "--data.path=" + more}).out, HasSubstr("  data       " + more));
  }
  EXPECT_THAT(evaluate({"--init_from=" + Train({}).folder}).out,
              HasSubstr("  data       the embedded corpus\n"));
}

TEST_F(TrainGptRunOptions, ADryRunOfAnEvaluationPlansThat) {
  const Result run =
      RunProgram({"models/train_gpt", "--eval_only", "--dry_run", "--threads=1",
                  "--init_from=" + Train({}).folder, "--train.steps=10", "--optim.warmup=9"});
  ASSERT_EQ(run.exit_code, 0) << run;
  EXPECT_EQ(run.err, "");
  EXPECT_THAT(run.out, AllOf(HasSubstr("at the peak of an evaluation: parameters "),
                             HasSubstr("  evaluates  "), HasSubstr("dry run: nothing was written"),
                             Not(HasSubstr("validation loss"))));
  for (const char* of_training : {"batch ", "length", "optimizer", "gradients", "epochs", "writes",
                                  "training tokens", "trained"}) {
    EXPECT_THAT(run.out, Not(HasSubstr(of_training)));
  }
}

TEST_F(TrainGptRunOptions, Samples) {
  EXPECT_EQ(Train({"--train.sample_every=2"}).Lines("samples.jsonl").size(), 3u);
  EXPECT_EQ(Train({"--train.sample_every=0"}).Lines("samples.jsonl").size(), 1u);
  EXPECT_EQ(Train({"--train.sample_tokens=0"}).Lines("samples.jsonl").size(), 0u);
  const auto text = [](const TrainingRun& run) {
    return run.Lines("samples.jsonl").back()["text"].get<std::string>();
  };
  EXPECT_EQ(text(Train({"--train.sample_tokens=30"})).size() -
                text(Train({"--train.sample_tokens=10"})).size(),
            20u);
  const TrainingRun& prompted = Train({"--train.sample_prompt=The "});
  EXPECT_NE(text(prompted), text(Train({})));
  EXPECT_THAT(prompted.result.out, HasSubstr("---- sample ----\nThe " + text(prompted)));
}

TEST_F(TrainGptRunOptions, Checkpoints) {
  using testing::ElementsAre;
  EXPECT_THAT(Train({"--checkpoint.keep=0"}).Checkpoints(), ElementsAre(2, 4, 6));
  EXPECT_THAT(Train({"--checkpoint.keep=2"}).Checkpoints(), ElementsAre(4, 6));
  EXPECT_THAT(Train({"--checkpoint.every=3", "--checkpoint.keep=0"}).Checkpoints(),
              ElementsAre(3, 6));
  EXPECT_THAT(Train({"--checkpoint.save_initial=true", "--checkpoint.keep=0"}).Checkpoints(),
              ElementsAre(0, 2, 4, 6));
}

// At this learning rate the loss rises from the first evaluation on.
TEST_F(TrainGptRunOptions, TheBestCheckpointIsKept) {
  using testing::ElementsAre;
  const Arguments rising = {"--optim.lr=1",         "--optim.schedule=constant",
                            "--optim.warmup=0",     "--train.eval_every=1",
                            "--checkpoint.every=1", "--checkpoint.keep=1"};
  Arguments newest_only = rising;
  newest_only.push_back("--checkpoint.keep_best=false");
  std::map<double, int64_t> losses;
  for (const auto& line : Train(rising).Lines("metrics.jsonl")) {
    if (line.contains("val_loss") && line["step"] > 0) losses[line["val_loss"]] = line["step"];
  }
  const int64_t best = losses.begin()->second;
  ASSERT_LT(best, 6);
  EXPECT_THAT(Train(rising).Checkpoints(), ElementsAre(best, 6));
  EXPECT_EQ(ReadFile(Train(rising).folder + "/best/DONE"),
            ReadFile(Train(rising).folder + "/checkpoints/step-0000000" + std::to_string(best) +
                     "/DONE"));
  EXPECT_THAT(Train(rising).result.out,
              HasSubstr("the best checkpoint is that of step " + std::to_string(best) + ": "));
  // A checkpoint that is not kept as the best is not reported as the best.
  EXPECT_THAT(Train(newest_only).Checkpoints(), ElementsAre(6));
  Arguments all = rising;
  all.back() = "--checkpoint.keep=0";
  all.push_back("--checkpoint.keep_best=false");
  EXPECT_THAT(Train(all).result.out, Not(HasSubstr("the best checkpoint")));
}

TEST_F(TrainGptRunOptions, ResumeContinuesFromThere) {
  const TrainingRun& whole = Train({"--checkpoint.keep=0"});
  const TrainingRun& rest = Train({"--checkpoint.keep=0", "--checkpoint.resume=" + whole.folder +
                                                              "/checkpoints/step-00000004"});
  EXPECT_EQ(rest.Lines("metrics.jsonl").front()["step"], 5);
  EXPECT_EQ(rest.Lines("metrics.jsonl").back()["val_loss"],
            whole.Lines("metrics.jsonl").back()["val_loss"]);
}

TEST_F(TrainGptRunOptions, TraceIsOfTheseSteps) {
  EXPECT_TRUE(PathExists(Train({"--log.trace=2:3"}).folder + "/trace-2-3.json"));
}

}  // namespace
}  // namespace lockstep
