// Adapters through the programs: train_gpt continues one that PEFT made, sample_gpt uses it, and
// both know when its base is not the one it belongs to.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <sstream>

#include "core/io/file.h"
#include "core/io/json.h"
#include "core/io/safetensors.h"
#include "core/io/safetensors_writer.h"
#include "models/gpt/hf/hf_format.h"
#include "models/gpt/peft/adapter.h"
#include "nn/lora/quantized_linear.h"
#include "tests/subprocess.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::string kBase = "tests/testdata/llama_parity", kAdapter = "tests/testdata/llama_peft";

std::string Folder(const std::string& name) {
  const std::string folder = JoinPath(testing::TempDir(), name);
  RemoveTree(folder);
  MakeDirectories(folder);
  return folder;
}

std::string CopyOf(const std::string& source, const std::string& name) {
  const std::string folder = Folder(name);
  for (const std::string& file : ListDirectory(source)) {
    WriteFileAtomically(JoinPath(folder, file), ReadFile(JoinPath(source, file)));
  }
  return folder;
}

// The settings of tests/peers/make_family_parity.py.
std::vector<std::string> Tune(const std::string& base, const std::string& out,
                              const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = {"models/train_gpt",
                                        "--init_from=" + base,
                                        "--lora.init_from=" + kAdapter,
                                        "--data.path=" + kBase + "/tokens.bin",
                                        "--data.order=sequential",
                                        "--data.val_fraction=0",
                                        "--model.block_size=16",
                                        "--train.steps=10",
                                        "--train.batch_size=3",
                                        "--train.grad_accum=2",
                                        "--optim.lr=1e-2",
                                        "--optim.min_lr=1e-3",
                                        "--optim.warmup=3",
                                        "--optim.decay_steps=10",
                                        "--optim.beta1=0.9",
                                        "--optim.beta2=0.95",
                                        "--optim.weight_decay=0.1",
                                        "--optim.clip=0.8",
                                        "--checkpoint.every=5",
                                        "--checkpoint.keep=0",
                                        "--out_dir=" + out};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

std::vector<std::string> Sample(const std::string& checkpoint,
                                const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = {"models/sample_gpt", "--checkpoint=" + checkpoint,
                                        "--prompt=3 1 4", "--tokens=12", "--temperature=0"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

std::string Text(const std::vector<std::string>& command) {
  const Result run = RunProgram(command);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  return run.out;
}

// The losses of a run's steps are those of a golden.
void ExpectLosses(const std::string& out, const std::string& steps) {
  const auto golden = Json::parse(ReadFile(steps)).at("steps");
  std::istringstream lines(ReadFile(out + "/metrics.jsonl"));
  size_t step = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto metrics = Json::parse(line);
    if (!metrics.contains("loss")) continue;  // of no step
    ASSERT_LT(step, golden.size());
    const double expected = golden[step].at("loss");
    EXPECT_NEAR(metrics["loss"].get<double>(), expected, 2e-5) << "step " << step;
    ++step;
  }
  EXPECT_EQ(step, golden.size());
}

// A folder with the base's weights as they are after nf4, in f32.
std::string Dequantised(const std::string& base) {
  models::GptConfig config = models::ReadHfConfig(base);
  models::Gpt plain(config);
  config.lora = {.rank = 1, .base = "nf4"};
  models::Gpt quantized(config);
  for (models::Gpt* model : {&plain, &quantized}) {
    model->Materialize(kCpu, 0);
    LoadHfWeights(*model, base);
  }
  std::map<std::string, Tensor> weights;
  for (const auto& [name, p] : plain.NamedParameters()) weights[name] = p->value().Detach();
  for (const auto& [path, layer] : nn::QuantizedLayers(quantized)) {
    int64_t begin = 0;
    for (const Nf4Matrix& m : layer->matrices()) {
      const Tensor rows = weights.at(path + ".weight").Slice(0, begin, begin + m.rows());
      rows.CopyFrom(ops::Nf4Dequantize(m, DType::kF32));
      begin += m.rows();
    }
  }
  const std::string folder = Folder("dequantised");
  models::WriteHfFolder(folder, ToHfConfig(plain.config()), ToHfTensors(plain), int64_t{1} << 40);
  return folder;
}

// The adapter as PEFT would have saved it: it does not say to which weights it belongs.
std::string Unsigned(const std::string& adapter) {
  const std::string folder = Folder("unsigned");
  WriteFileAtomically(folder + "/adapter_config.json", ReadFile(adapter + "/adapter_config.json"));
  const SafetensorsFile file = SafetensorsFile::Open(adapter + "/adapter_model.safetensors");
  std::vector<SafetensorsItem> items;
  for (const SafetensorsEntry& e : file.entries()) {
    items.push_back(SafetensorsItem::Of(e.name, e.ToTensor()));
  }
  FileWriter writer(folder + "/adapter_model.safetensors");
  WriteSafetensors(writer, items);
  writer.Close();
  return folder;
}

TEST(AdapterPrograms, TrainAndSampleBesideWeightsOfFourBits) {
  const std::string out = Folder("qlora");
  const Result run = RunProgram(Tune(kBase, out, {"--lora.base=nf4"}));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  ExpectLosses(out, "tests/testdata/qlora/llama_nf4_steps.json");
  const models::PeftAdapter adapter = models::PeftAdapter::Open(out + "/latest");
  EXPECT_EQ(adapter.base_kind(), "nf4");
  EXPECT_EQ(models::PeftAdapter::Open(kAdapter).base_kind(), "");

  const std::string longer = "--tokens=25";
  const std::string tuned = Text(Sample(out, {longer}));
  const std::string peer = "--adapter=" + Unsigned(out + "/latest"), own = "--adapter=" + out;
  EXPECT_EQ(tuned, Text(Sample(Dequantised(kBase), {longer, peer})));
  EXPECT_EQ(tuned, Text(Sample(kBase, {longer, own})));
  EXPECT_EQ(tuned, Text(Sample(kBase, {longer, peer, "--base=nf4"})));
  const std::string unquantised = Text(Sample(out, {longer, "--base=model"}));
  EXPECT_NE(unquantised, tuned);
  EXPECT_EQ(unquantised, Text(Sample(kBase, {longer, peer})));

  const std::string other = "--adapter=" + kAdapter;
  EXPECT_EQ(Text(Sample(kBase, {longer, other, own, "--base=nf4"})),
            StrCat("---- prompt 1, ", kAdapter, " ----\n",
                   Text(Sample(kBase, {longer, other, "--base=nf4"})), "---- prompt 1, ", out,
                   " ----\n", tuned));
  const Result mixed = RunProgram(Sample(kBase, {other, own}));
  EXPECT_EQ(mixed.exit_code, 2);
  EXPECT_THAT(mixed.err, AllOf(HasSubstr("llama_peft was trained on weights of the kind model"),
                               HasSubstr("on nf4: choose"), HasSubstr("--base")));
  const Result shared = RunProgram(Sample(out, {"--nproc=2"}));
  EXPECT_EQ(shared.exit_code, 2);
  EXPECT_THAT(shared.err, AllOf(HasSubstr("cannot be cut by its columns into 2 parts"),
                                HasSubstr("use fewer tensor-parallel ranks")));
}

TEST(AdapterPrograms, TrainAndSampleWithAnAdapterOfPeft) {
  const std::string out = Folder("tuned");
  const Result run = RunProgram(Tune(kBase, out));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  ExpectLosses(out, kAdapter + "/steps.json");

  // The checkpoint has the adapter and not the base, to which it points.
  const std::string latest = out + "/latest";
  EXPECT_FALSE(PathExists(latest + "/model.safetensors"));
  const models::PeftAdapter adapter = models::PeftAdapter::Open(latest);
  EXPECT_EQ(adapter.config().base.front(), '/');
  EXPECT_EQ(adapter.base_hash().size(), 16u);
  EXPECT_EQ(adapter.config().rank_pattern.size(), 2u);
  EXPECT_EQ(adapter.config().modules_to_save, std::vector<std::string>{"lm_head"});
  const auto names = [](const std::string& folder) {
    const SafetensorsFile file = SafetensorsFile::Open(folder + "/adapter_model.safetensors");
    std::vector<std::string> all;
    for (const SafetensorsEntry& entry : file.entries()) all.push_back(entry.name);
    return all;
  };
  EXPECT_EQ(names(latest), names(kAdapter));

  // Going on from the middle gives the same bits.
  const std::string again = Folder("tuned_again");
  const Result resumed =
      RunProgram(Tune(kBase, again, {"--checkpoint.resume=" + out + "/checkpoints/step-00000005"}));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  for (const char* file : {"adapter_model.safetensors", "optimizer.safetensors"}) {
    EXPECT_EQ(ReadFile(JoinPath(again + "/latest", file)), ReadFile(JoinPath(latest, file)));
  }

  const std::string tuned = Text(Sample(out)), plain = Text(Sample(kBase));
  EXPECT_NE(tuned, plain);
  EXPECT_EQ(Text(Sample(kBase, {"--adapter=" + out})), tuned);
  const std::string first = Text(Sample(kBase, {"--adapter=" + kAdapter}));
  EXPECT_NE(first, tuned);
  EXPECT_EQ(Text(Sample(kBase, {"--adapter=" + kAdapter, "--adapter=" + out})),
            StrCat("---- prompt 1, ", kAdapter, " ----\n", first, "---- prompt 1, ", out, " ----\n",
                   tuned));
  const Result both = RunProgram(Sample(out, {"--adapter=" + kAdapter}));
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_THAT(both.err, AllOf(HasSubstr("has adapters itself"), HasSubstr("llama_parity")));
}

TEST(AdapterPrograms, TrainAdaptersOfExperts) {
  models::GptConfig config = models::ReadHfConfig(kBase);
  config.mixture = {.n_expert = 4, .n_expert_used = 2, .n_inner = config.n_inner};
  models::Gpt model(config);
  model.Materialize(kCpu, 5);
  const std::string base = Folder("mixture"), out = Folder("of_experts");
  models::WriteHfFolder(base, ToHfConfig(config), ToHfTensors(model), int64_t{1} << 40);
  const auto tune = [&](const std::string& folder, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = Tune(base, folder, more);
    std::erase(arguments, "--lora.init_from=" + kAdapter);
    arguments.insert(arguments.end(), {"--lora.rank=2", "--lora.targets=q_proj,w1,w2,w3"});
    return RunProgram(arguments);
  };
  const Result run = tune(out);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const models::PeftAdapter adapter = models::PeftAdapter::Open(out + "/latest");
  const auto [a, b] = adapter.Matrices("model.layers.0.block_sparse_moe.experts.3.w2");
  ASSERT_TRUE(a.defined());
  EXPECT_EQ(a.shape(), Shape({2, config.n_inner}));
  EXPECT_EQ(b.shape(), Shape({config.n_embd, 2}));

  const std::string again = Folder("of_experts_again");
  const Result resumed = tune(again, {"--checkpoint.resume=" + out + "/checkpoints/step-00000005"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  for (const char* file : {"adapter_model.safetensors", "optimizer.safetensors"}) {
    EXPECT_EQ(ReadFile(JoinPath(again + "/latest", file)),
              ReadFile(JoinPath(out + "/latest", file)));
  }
  EXPECT_EQ(Text(Sample(base, {"--adapter=" + out})), Text(Sample(out)));

  const Result dropped =
      tune(Folder("dropped"), {"--lora.dropout=0.1", "--virtual.cp=2", "--dist.reduction=ordered"});
  EXPECT_EQ(dropped.exit_code, 2);
  EXPECT_THAT(dropped.err, HasSubstr("leave out lora.dropout"));
}

TEST(AdapterPrograms, KnowTheBaseOfAnAdapter) {
  const std::string base = CopyOf(kBase, "base/llama_parity"), out = Folder("of_a_base");
  const Result run = RunProgram(Tune(base, out, {"--train.steps=5"}));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const std::vector<std::string> resume =
      Tune(base, Folder("of_another"), {"--checkpoint.resume=" + out});

  // Elsewhere, with the same content.
  const std::string moved = JoinPath(testing::TempDir(), "moved");
  RemoveTree(moved);
  RenameDurably(base, moved);
  EXPECT_EQ(Text(Sample(moved, {"--adapter=" + out})).empty(), false);
  for (const auto& command : {Sample(out), resume}) {
    const Result gone = RunProgram(command);
    EXPECT_EQ(gone.exit_code, 2);
    EXPECT_THAT(gone.err, AllOf(HasSubstr(base), HasSubstr("there is no such folder")));
  }

  // In its place, with other weights. What lies beside them may change.
  CopyOf(kBase, "base/llama_parity");
  std::string config = ReadFile(base + "/config.json");
  config.insert(config.rfind('}'), " ");
  WriteFileAtomically(base + "/config.json", config);
  WriteFileAtomically(base + "/special_tokens_map.json", "{}");
  EXPECT_EQ(Text(Sample(out)), Text(Sample(moved, {"--adapter=" + out})));
  std::string weights = ReadFile(base + "/model-00003-of-00003.safetensors");
  weights.back() ^= 1;
  WriteFileAtomically(base + "/model-00003-of-00003.safetensors", weights);
  for (const auto& command : {Sample(out), Sample(base, {"--adapter=" + out}), resume}) {
    const Result changed = RunProgram(command);
    EXPECT_EQ(changed.exit_code, 2);
    EXPECT_THAT(changed.err, HasSubstr("has adapters of other weights than those that are now "));
  }
}

TEST(AdapterPrograms, RefuseWhatDoesNotGoTogether) {
  const std::string out = Folder("refused");
  const auto error = [&](const std::vector<std::string>& command) {
    const Result run = RunProgram(command);
    EXPECT_EQ(run.exit_code, 2);
    return run.err;
  };
  EXPECT_THAT(error(Tune(kBase, out, {"--lora.rank=4"})),
              AllOf(HasSubstr("lora.rank = 4"), HasSubstr("leave one of them out")));
  EXPECT_THAT(error(Tune(kAdapter, out)), HasSubstr("both have adapters"));
  EXPECT_THAT(error(Tune("tests/testdata/qwen2_parity", out)),
              AllOf(HasSubstr("llama_peft/adapter_model.safetensors"),
                    HasSubstr("the adapter belongs to another model")));
  EXPECT_THAT(error({"models/train_gpt", "--lora.init_from=" + kAdapter, "--out_dir=" + out}),
              AllOf(HasSubstr("lora.init_from"), HasSubstr("--init_from")));
  EXPECT_THAT(error(Sample("tests/testdata/qwen2_parity", {"--adapter=" + kAdapter})),
              HasSubstr("the adapter belongs to another model"));
  EXPECT_THAT(error(Sample(kBase, {"--adapter=" + kBase})),
              HasSubstr("it has no adapter_config.json"));
}

}  // namespace
}  // namespace lockstep
