// Whole exports: folders that read back, and what is refused.
#include "models/export/export_gpt.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/io/fault.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "core/io/safetensors.h"
#include "models/checkpoint/checkpoint.h"
#include "models/gpt/hf/hf_format.h"
#include "models/gpt/peft/adapter.h"
#include "models/gpt/peft/write_adapter.h"
#include "tests/message_of.h"
#include "tests/models/export/gguf_file.h"
#include "tests/models/temp_folder.h"

namespace lockstep::models {
namespace {
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// A Llama in three files, of 67 tokens or more, with a tokenizer where it has room for one.
class ExportGptTest : public testing::Test {
 protected:
  void SetUp() override {
    const Json golden = Json::parse(ReadFile("tests/data/testdata/tokenizers/llama3.json"));
    tokenizer_ = golden["tokenizer"];
    WriteFileAtomically(folder_.Path("tokenizer.json"), tokenizer_.dump());
    GptConfig config = ReadHfConfig("tests/testdata/llama_parity");
    config.vocab_size = std::ssize(tokenizer_["model"]["vocab"]) + 20;
    MakeModel(config, "model");
    Copy("tokenizer.json", "model/tokenizer.json");
    WriteFileAtomically(
        folder_.Path("model/tokenizer_config.json"),
        Json{{"chat_template", "{{ messages }}"}, {"eos_token", "<|im_end|>"}}.dump());
    config_.checkpoint = folder_.Path("model");
    config_.out = folder_.Path("out");
  }

  void MakeModel(const GptConfig& config, const std::string& name) {
    Gpt model(config);
    model.Materialize(kCpu, 5);
    WriteHfFolder(folder_.Path(name), ToHfConfig(config), ToHfTensors(model), 1 << 30);
  }
  void Copy(const std::string& from, const std::string& to) {
    WriteFileAtomically(folder_.Path(to), ReadFile(folder_.Path(from)));
  }
  std::string Refusal() {
    const std::vector<std::string> before = ListDirectory(folder_.path());
    const std::string message = test::MessageOf<InputError>([&] { ExportGpt(config_); });
    EXPECT_EQ(ListDirectory(folder_.path()), before) << message;
    return message;
  }

  const test::TempFolder folder_{"export"};
  Json tokenizer_;
  ExportConfig config_;
};

TEST_F(ExportGptTest, WritesAFolderThatReadsBack) {
  config_.max_file_gb = 2e-5;
  EXPECT_EQ(ExportGpt(config_), 0);
  EXPECT_TRUE(PathExists(folder_.Path("out/model.safetensors.index.json")));
  EXPECT_EQ(ReadHfConfig(folder_.Path("out")), ReadHfConfig(folder_.Path("model")));
  const SafetensorsSet before = SafetensorsSet::Open(folder_.Path("model"));
  const SafetensorsSet after = SafetensorsSet::Open(folder_.Path("out"));
  ASSERT_EQ(after.names(), before.names());
  for (const std::string& name : before.names()) {
    EXPECT_TRUE(std::ranges::equal(after.Get(name).bytes, before.Get(name).bytes)) << name;
  }
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    EXPECT_EQ(ReadFile(JoinPath(config_.out, name)), ReadFile(JoinPath(config_.checkpoint, name)));
  }
  EXPECT_EQ(ReadFile(folder_.Path("out/chat_template.jinja")), "{{ messages }}");
  const Json generation = Json::parse(ReadFile(folder_.Path("out/generation_config.json")));
  const auto tokenizer = ReadTokenizer(folder_.Path("out"));
  EXPECT_EQ(generation["bos_token_id"], *tokenizer->special_ids().bos);
  EXPECT_THAT(generation["eos_token_id"], testing::Contains(*tokenizer->special_ids().eos));
}

TEST_F(ExportGptTest, RoundsOnce) {
  for (const auto& [name, dtype] : {std::pair("bf16", DType::kBF16), {"f16", DType::kF16}}) {
    config_.dtype = name;
    config_.out = folder_.Path(name);
    ExportGpt(config_);
    const SafetensorsSet before = SafetensorsSet::Open(folder_.Path("model"));
    const SafetensorsSet after = SafetensorsSet::Open(config_.out);
    for (const std::string& tensor : before.names()) {
      const Tensor want = before.Get(tensor).ToTensor().To(dtype);
      EXPECT_EQ(after.Get(tensor).dtype(), dtype);
      EXPECT_EQ(after.Get(tensor).ToTensor().To(DType::kF32).ToVector<float>(),
                want.To(DType::kF32).ToVector<float>())
          << tensor;
    }
  }
  // As they are: a folder of bf16 stays one.
  config_.checkpoint = folder_.Path("bf16");
  config_.dtype = "auto";
  config_.out = folder_.Path("again");
  ExportGpt(config_);
  EXPECT_EQ(ReadFile(folder_.Path("again/model.safetensors")),
            ReadFile(folder_.Path("bf16/model.safetensors")));
  EXPECT_EQ(ReadFile(folder_.Path("again/config.json")),
            ReadFile(folder_.Path("bf16/config.json")));
}

TEST_F(ExportGptTest, WritesAFileWithTokenizerAndTemplate) {
  config_.format = "gguf";
  config_.out = folder_.Path("tiny-llama.gguf");
  ExportGpt(config_);
  const test::GgufFile file(config_.out);
  EXPECT_EQ(file.Get<std::string>("general.name"), "tiny-llama");
  EXPECT_EQ(file.Get<std::string>("tokenizer.chat_template"), "{{ messages }}");
  const auto tokens = file.Get<std::vector<std::string>>("tokenizer.ggml.tokens");
  EXPECT_EQ(tokens.size(), file.tensors.at("token_embd.weight").sizes[1]);
  EXPECT_EQ(std::ranges::count(file.Get<std::vector<int32_t>>("tokenizer.ggml.token_type"), 5) > 0,
            true);
}

TEST_F(ExportGptTest, WritesNamedTemplates) {
  const auto named = [](const char* name, const char* text) {
    return Json{{"name", name}, {"template", text}};
  };
  const auto write = [&](const char* other) {
    WriteFileAtomically(folder_.Path("model/tokenizer_config.json"),
                        Json{{"chat_template", {named("default", "D"), named(other, "T")}}}.dump());
  };
  write("tool_use");
  EXPECT_EQ(ExportGpt(config_), 0);
  EXPECT_EQ(ReadFile(folder_.Path("out/chat_template.jinja")), "D");
  EXPECT_EQ(ReadFile(folder_.Path("out/additional_chat_templates/tool_use.jinja")), "T");
  config_.format = "gguf";
  config_.out = folder_.Path("out.gguf");
  EXPECT_EQ(ExportGpt(config_), 0);
  const test::GgufFile file(config_.out);
  EXPECT_EQ(file.Get<std::string>("tokenizer.chat_template"), "D");
  EXPECT_EQ(file.Get<std::string>("tokenizer.chat_template.tool_use"), "T");
  EXPECT_EQ(file.Get<std::vector<std::string>>("tokenizer.chat_templates"),
            std::vector<std::string>{"tool_use"});
  write("../up");
  config_.format = "hf";
  config_.out = folder_.Path("again");
  EXPECT_THAT(Refusal(), testing::HasSubstr("../up"));
}

// PEFT's own merge, which in bf16 rounds B A before it is added.
TEST_F(ExportGptTest, MergesAdapters) {
  config_.checkpoint = "tests/testdata/qwen2_parity";
  config_.adapter = "tests/testdata/qwen2_peft";
  const auto golden = SafetensorsFile::Open(config_.adapter + "/merged_f32.safetensors");
  for (const auto& [name, tolerance] : {std::pair("f32", 1e-6), {"bf16", 1.0 / 256}}) {
    config_.dtype = name;
    config_.out = folder_.Path(name);
    testing::internal::CaptureStdout();
    ExportGpt(config_);
    const std::string said = testing::internal::GetCapturedStdout();
    const bool half = config_.dtype == "bf16";
    EXPECT_THAT(said, HasSubstr(half ? "self_attn.q_proj: rounding to bf16 takes"
                                     : "self_attn.q_proj: rounding to f32 takes 0.0% of"));
    EXPECT_THAT(said, Not(HasSubstr("--dtype=f32 keeps all")));  // 0.2% are not worth a word
    const SafetensorsSet merged = SafetensorsSet::Open(config_.out);
    const SafetensorsSet base = SafetensorsSet::Open(config_.checkpoint);
    ASSERT_EQ(merged.names(), base.names());
    int changed = 0;
    for (const SafetensorsEntry& entry : golden.entries()) {
      const auto want = entry.ToTensor().To(DType::kF32).ToVector<float>();
      const auto got = merged.Get(entry.name).ToTensor().To(DType::kF32).ToVector<float>();
      const auto plain = base.Get(entry.name).ToTensor().To(DType::kF32).ToVector<float>();
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_NEAR(got[i], want[i], tolerance * std::abs(want[i]) + 1e-7) << entry.name;
      }
      changed += got != plain ? 1 : 0;
    }
    EXPECT_GT(changed, 0);
  }
}

TEST_F(ExportGptTest, TellsOfAdaptersThatWereTrainedBeside4Bits) {
  const std::string golden = "tests/testdata/qwen2_peft";
  config_.checkpoint = "tests/testdata/qwen2_parity";
  config_.adapter = folder_.Path("qlora");
  MakeDirectories(config_.adapter);
  WriteFileAtomically(JoinPath(config_.adapter, kAdapterConfig),
                      ReadFile(JoinPath(golden, kAdapterConfig)));
  const auto said = [&](const std::map<std::string, std::string>& metadata) {
    const SafetensorsFile file = SafetensorsFile::Open(JoinPath(golden, kAdapterTensors));
    std::vector<SafetensorsItem> items;
    for (const SafetensorsEntry& entry : file.entries()) {
      items.push_back(SafetensorsItem::Of(entry.name, entry.ToTensor()));
    }
    FileWriter writer(JoinPath(config_.adapter, kAdapterTensors));
    WriteSafetensors(writer, items, metadata);
    writer.Close();
    config_.out = folder_.Path(metadata.empty() ? "beside_f32" : "beside_nf4");
    testing::internal::CaptureStderr();
    ExportGpt(config_);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(said({}), "");
  EXPECT_THAT(said({{kBaseKindEntry, "nf4"}}),
              AllOf(HasSubstr("qlora was trained on weights in 4 bits (nf4), and is merged"),
                    HasSubstr("into the weights of tests/testdata/qwen2_parity")));
}

constexpr char kChatMl[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

TEST_F(ExportGptTest, SaysWhichTokenEndsAnAnswer) {
  WriteFileAtomically(folder_.Path("model/chat_template.jinja"), kChatMl);
  WriteFileAtomically(folder_.Path("model/tokenizer_config.json"), "{}");
  const int32_t end = *ReadTokenizer(folder_.Path("model"))->AddedId("<|im_end|>");
  const auto generation = [&](const char* out, const std::string& of_base) {
    WriteFileAtomically(folder_.Path("model/generation_config.json"), of_base);
    config_.out = folder_.Path(out);
    ExportGpt(config_);
    return ReadFile(JoinPath(config_.out, "generation_config.json"));
  };
  for (const auto& [out, eos, want] :
       {std::tuple("one", Json(3), Json{3, end}), {"list", Json{5, 3}, Json{5, 3, end}}}) {
    EXPECT_EQ(Json::parse(generation(out, Json{{"eos_token_id", eos}, {"top_k", 20}}.dump())),
              (Json{{"eos_token_id", want}, {"top_k", 20}}));
  }
  const std::string knows = Json{{"eos_token_id", {end, 3}}}.dump();
  EXPECT_EQ(generation("knows", knows), knows);
  EXPECT_THAT(Json::parse(generation("none", "{}"))["eos_token_id"], testing::Contains(end));

  config_.format = "gguf";
  config_.out = folder_.Path("chat.gguf");
  ExportGpt(config_);
  EXPECT_EQ(test::GgufFile(config_.out).Get<uint32_t>("tokenizer.ggml.eot_token_id"),
            static_cast<uint32_t>(end));
}

// Weights, tokenizer, chat template and where answers end.
TEST_F(ExportGptTest, GgufIsExportedToTheFolderThatItCameFrom) {
  WriteFileAtomically(folder_.Path("model/chat_template.jinja"), kChatMl);
  WriteFileAtomically(folder_.Path("model/tokenizer_config.json"), "{}");
  config_.out = folder_.Path("direct");
  ExportGpt(config_);
  config_.format = "gguf";
  config_.out = folder_.Path("between.gguf");
  ExportGpt(config_);
  config_.format = "hf";
  config_.checkpoint = config_.out;
  config_.out = folder_.Path("back");
  ExportGpt(config_);
  const auto same = [&](const std::string& name) {
    return ReadFile(folder_.Path("direct/" + name)) == ReadFile(folder_.Path("back/" + name));
  };
  EXPECT_TRUE(same("model.safetensors"));
  EXPECT_TRUE(same("chat_template.jinja"));
  const auto ends = [&](const std::string& folder) {
    return Json::parse(ReadFile(folder_.Path(folder + "/generation_config.json")))["eos_token_id"];
  };
  EXPECT_EQ(ends("back"), ends("direct"));
  const auto want = ReadTokenizer(folder_.Path("direct")), got = ReadTokenizer(config_.out);
  const std::string text = "<|im_start|>user\nSome text, and 1234 more.<|im_end|>\n";
  EXPECT_EQ(got->EncodeWithSpecials(text), want->EncodeWithSpecials(text));
}

TEST_F(ExportGptTest, WritesAdaptersAlone) {
  config_.format = "gguf_lora";
  config_.out = folder_.Path("adapter.gguf");
  EXPECT_THAT(Refusal(), HasSubstr("has no adapters: name them with --adapter"));
  config_.checkpoint = "tests/testdata/qwen2_parity";
  config_.adapter = "tests/testdata/qwen2_peft";
  config_.dtype = "q8_0";
  EXPECT_THAT(Refusal(), HasSubstr("--dtype=q8_0 is a type of models in GGUF"));
  config_.dtype = "auto";
  EXPECT_EQ(ExportGpt(config_), 0);
  const test::GgufFile file(config_.out);
  EXPECT_EQ(file.Get<std::string>("general.name"), "adapter");
  EXPECT_EQ(file.tensors.at("blk.0.attn_q.weight.lora_a").type, 0u);
}

// What 8 bits take of an adapter is not measured, so no figure may be printed.
TEST_F(ExportGptTest, SaysNoShareOfAnAdapterInBlocks) {
  GptConfig config = ReadHfConfig(folder_.Path("model"));
  config.lora.rank = 2;
  Gpt model(config);
  model.Materialize(kCpu, 5);
  WriteAdapter(folder_.Path("adapter"), model, PeftConfigOf(model, false), "");
  config_.adapter = folder_.Path("adapter");
  config_.format = "gguf";
  config_.dtype = "q8_0";
  config_.out = folder_.Path("small.gguf");
  testing::internal::CaptureStdout();
  ExportGpt(config_);
  EXPECT_THAT(testing::internal::GetCapturedStdout(),
              AllOf(HasSubstr("merged in f32, and the sums were rounded to q8_0"),
                    Not(HasSubstr("% of the adapter"))));
}

TEST_F(ExportGptTest, TakesTheBestCheckpointOfARun) {
  MakeDirectories(folder_.Path("run"));
  ReplaceSymlink("../nowhere", folder_.Path("run/latest"));
  ReplaceSymlink("../model", folder_.Path("run/best"));
  config_.checkpoint = folder_.Path("run");
  EXPECT_EQ(ExportGpt(config_), 0);
}

// As with data.val_fraction=0.
TEST_F(ExportGptTest, TakesTheLatestCheckpointOfARunWithoutABest) {
  MakeDirectories(folder_.Path("run"));
  ReplaceSymlink("../model", folder_.Path("run/latest"));
  EXPECT_EQ(CheckpointOf(folder_.Path("run")), folder_.Path("run/latest"));
  EXPECT_EQ(CheckpointOf(folder_.Path("model")), folder_.Path("model"));
  MakeDirectories(folder_.Path("begun"));
  WriteFileAtomically(folder_.Path("begun/config.toml"), "");
  EXPECT_THAT(test::MessageOf<InputError>([&] { CheckpointOf(folder_.Path("begun")); }),
              HasSubstr("no checkpoint yet"));
  // Weights are what was named, whatever lies below them.
  MakeDirectories(folder_.Path("model/best"));
  EXPECT_EQ(CheckpointOf(folder_.Path("model")), folder_.Path("model"));
  config_.checkpoint = folder_.Path("run/best");
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("the run has no best checkpoint"),
                               HasSubstr(StrCat("use ", folder_.Path("run/latest")))));
  config_.checkpoint = folder_.Path("run");
  EXPECT_EQ(ExportGpt(config_), 0);
}

TEST_F(ExportGptTest, KnowsTheOptionsOfOtherPrograms) {
  Options options({.name = "export_gpt", .summary = "Exports."});
  AddExportOptions(options, config_);
  EXPECT_THAT(test::MessageOf<InputError>([&] { options.Parse({"--to=my-model"}); }),
              AllOf(HasSubstr("--out"), Not(HasSubstr("format"))));
}

TEST_F(ExportGptTest, RefusesWithoutATrace) {
  config_.out = "";
  EXPECT_THAT(Refusal(), HasSubstr("--out=FOLDER"));
  config_.out = folder_.Path("model");
  EXPECT_THAT(Refusal(), HasSubstr("model exists already"));
  config_.out = folder_.Path("out");
  config_.dtype = "q8_0";
  EXPECT_THAT(Refusal(), HasSubstr("--format=gguf"));
  config_.dtype = "auto";
  config_.checkpoint = folder_.Path("none");
  EXPECT_THAT(Refusal(), HasSubstr("none: there is no such folder"));
  config_.checkpoint = folder_.path();
  EXPECT_THAT(Refusal(), HasSubstr("has no config.json"));
  config_.format = "gguf";
  config_.checkpoint = "tests/testdata/llama_parity";
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("has no tokenizer"), HasSubstr("--tokenizer=PATH")));
  config_.tokenizer = folder_.Path("tokenizer.json");
  EXPECT_THAT(Refusal(),
              AllOf(HasSubstr("the model's vocabulary has 67"), HasSubstr("another model")));
  config_.tokenizer = "byte";
  EXPECT_THAT(Refusal(), HasSubstr("another model"));
}

TEST_F(ExportGptTest, RefusesWeightsThatAreNoNumbers) {
  GptConfig config = ReadHfConfig("tests/testdata/llama_parity");
  Gpt model(config);
  model.Materialize(kCpu, 5);
  model.Parameters().at(1)->value().Detach().Fill(-1e6);
  WriteHfFolder(folder_.Path("big"), ToHfConfig(config), ToHfTensors(model), 1 << 30);
  config_.checkpoint = folder_.Path("big");
  config_.dtype = "f16";
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("-1e+06"), HasSubstr("--dtype=bf16")));
}

TEST_F(ExportGptTest, LeavesNothingOnAFullDisk) {
  for (const char* format : {"hf", "gguf"}) {
    config_.format = format;
    FaultInjector counter;
    {
      const ScopedFaultInjector scope(&counter);
      ExportGpt(config_);
    }
    RemoveTree(config_.out);
    const std::vector<std::string> before = ListDirectory(folder_.path());
    ASSERT_GT(counter.operations(), 4);
    // But for the last two, the rename and the sync that makes it last.
    for (int64_t at = 1; at < counter.operations() - 1; ++at) {
      FaultInjector injector(FaultPlan::Parse(StrCat("enospc@", at, "+")));
      const ScopedFaultInjector scope(&injector);
      EXPECT_THROW(ExportGpt(config_), IoError) << format << " " << at;
      EXPECT_EQ(ListDirectory(folder_.path()), before) << format << " " << at;
    }
  }
}

}  // namespace
}  // namespace lockstep::models
