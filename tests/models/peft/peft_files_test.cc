// Folders of adapters that Lockstep must refuse, saying what is wrong and where, and those whose
// configuration has less common forms.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/io/file.h"
#include "core/io/json.h"
#include "core/io/safetensors.h"
#include "models/checkpoint/adapter_base.h"
#include "models/checkpoint/checkpoint.h"
#include "models/gpt/hf/hf_format.h"
#include "models/gpt/peft/adapter.h"
#include "models/gpt/peft/adapter_set.h"
#include "models/gpt/peft/merged_weights.h"
#include "models/gpt/peft/write_adapter.h"
#include "models/train/run_setup.h"
#include "nn/init.h"
#include "tests/message_of.h"
#include "tests/models/parsed_run.h"

namespace lockstep::models {
namespace {
using test::MessageOf;
using testing::AllOf;
using testing::HasSubstr;

std::string Base(const std::string& family) { return StrCat("tests/testdata/", family, "_parity"); }
std::string Golden(const std::string& family) { return StrCat("tests/testdata/", family, "_peft"); }

using Tensors = std::map<std::string, Tensor>;

// A copy of a family's golden adapter in which `change` has changed something.
std::string Changed(const std::string& family, const std::function<void(Json&, Tensors&)>& change) {
  const std::string folder = JoinPath(testing::TempDir(), "changed_adapter");
  RemoveTree(folder);
  MakeDirectories(folder);
  const std::string config = Golden(family) + "/adapter_config.json";
  Json j = ParseJson(ReadFile(config), config);
  Tensors tensors;
  const SafetensorsFile file = SafetensorsFile::Open(Golden(family) + "/adapter_model.safetensors");
  for (const SafetensorsEntry& entry : file.entries()) tensors[entry.name] = entry.ToTensor();
  change(j, tensors);
  std::vector<SafetensorsItem> items;
  for (const auto& [name, tensor] : tensors) items.push_back(SafetensorsItem::Of(name, tensor));
  FileWriter out(folder + "/adapter_model.safetensors");
  WriteSafetensors(out, items);
  out.Close();
  WriteFileAtomically(folder + "/adapter_config.json", j.dump());
  return folder;
}

std::string WithField(const std::string& family, const char* key, const Json& value) {
  return Changed(family, [&](Json& j, Tensors&) { j[key] = value; });
}

std::string WithTensors(const std::string& family, const std::function<void(Tensors&)>& change) {
  return Changed(family, [&](Json&, Tensors& tensors) { change(tensors); });
}

// What reading the folder into a model of this family says.
std::string Refusal(const std::string& folder, const GptConfig& model) {
  return MessageOf<InputError>([&] {
    Gpt gpt(model);
    PeftAdapter::Open(folder).AddTo(gpt);
  });
}
std::string Refusal(const std::string& folder, const std::string& family) {
  return Refusal(folder, ReadHfConfig(Base(family)));
}

constexpr char kLayer[] = "base_model.model.model.layers.0.self_attn.q_proj";

TEST(PeftConfigs, KindsThatLockstepLacksAreRefusedByTheirField) {
  const auto refusal = [](const char* key, const Json& value) {
    return Refusal(WithField("qwen2", key, value), "qwen2");
  };
  EXPECT_THAT(
      refusal("use_dora", true),
      HasSubstr("adapter_config.json: \"use_dora\" is true; Lockstep has no such adapters"));
  EXPECT_THAT(refusal("lora_bias", true), HasSubstr("\"lora_bias\" is true"));
  EXPECT_THAT(refusal("layer_replication", Json::array({{0, 4}, {2, 5}})),
              HasSubstr("\"layer_replication\" is [[0,4],[2,5]]"));
  EXPECT_THAT(refusal("trainable_token_indices", Json::array({1, 2})),
              HasSubstr("\"trainable_token_indices\" is [1,2]"));
  EXPECT_THAT(refusal("target_parameters", Json::array({"experts.w"})),
              HasSubstr("\"target_parameters\" is"));
  EXPECT_THAT(refusal("a_field_of_2030", 3), HasSubstr("\"a_field_of_2030\" is 3"));
  EXPECT_THAT(refusal("peft_type", "IA3"),
              HasSubstr("\"peft_type\" is \"IA3\"; only \"LORA\" is supported"));
  EXPECT_THAT(refusal("task_type", "SEQ_CLS"), HasSubstr("\"task_type\" is \"SEQ_CLS\""));
  EXPECT_THAT(refusal("bias", "all"), HasSubstr("\"bias\" is \"all\""));
  EXPECT_THAT(refusal("init_lora_weights", "pissa"),
              AllOf(HasSubstr("\"init_lora_weights\" is \"pissa\""), HasSubstr("convert")));
  EXPECT_THAT(refusal("r", "eight"), HasSubstr("\"r\" must be an integer"));
  EXPECT_THAT(refusal("r", 0), HasSubstr("\"r\" must be at least 1"));
  EXPECT_THAT(refusal("rank_pattern", {{"q_proj", -1}}), HasSubstr("\"rank_pattern\" has -1"));
  EXPECT_THAT(refusal("target_modules", "(q_proj"), HasSubstr("\"target_modules\""));
  EXPECT_EQ(refusal("init_lora_weights", "gaussian"), "no error");
  EXPECT_EQ(refusal("loftq_config", Json::object()), "no error");
}

TEST(PeftConfigs, AreWrittenAsTheyAreRead) {
  PeftConfig c{.base = "base", .rank = 3, .alpha = 4.5, .dropout = 0.25, .rank_stabilized = true};
  c.rank_pattern = {{"q_proj", 2}};
  c.alpha_pattern = {{"k_proj", 7}};
  c.target_modules = {"k_proj", "q_proj"};
  c.modules_to_save = {"lm_head"};
  const std::string text = ToJson(c);
  EXPECT_EQ(ToJson(ParsePeftConfig(text, "again")), text);
  c.target_modules.clear();
  c.target_regex = ".*_proj";
  EXPECT_EQ(ParsePeftConfig(ToJson(c), "again").target_regex, ".*_proj");
}

TEST(PeftFiles, ARegularExpressionMayNameTheTargets) {
  EXPECT_EQ(Refusal(WithField("qwen2", "target_modules", ".*\\.(q|v)_proj"), "qwen2"), "no error");
  EXPECT_THAT(Refusal(WithField("qwen2", "target_modules", "all-linear"), "qwen2"),
              HasSubstr("there are no matrices of model.layers.0.self_attn.k_proj"));
  EXPECT_THAT(Refusal(WithField("qwen2", "target_modules", ".*\\.q_proj"), "qwen2"),
              AllOf(HasSubstr("v_proj.lora_A.weight\" is there, but \"target_modules\""),
                    HasSubstr("do not belong together")));
  // Names are those of the model that was trained, here of one without a head.
  const auto bare = [](const char* regex) {
    return Refusal(Changed("qwen2",
                           [&](Json& j, Tensors& tensors) {
                             j["target_modules"] = regex;
                             Tensors renamed;
                             for (const auto& [name, tensor] : tensors) {
                               renamed["base_model.model." + name.substr(23)] = tensor;
                             }
                             tensors = renamed;
                           }),
                   "qwen2");
  };
  EXPECT_EQ(bare(R"(layers\..*\.(q|v)_proj)"), "no error");
  EXPECT_THAT(bare(R"(model\.layers\..*\.(q|v)_proj)"), HasSubstr("\"target_modules\""));
}

TEST(PeftFiles, WhatTheConfigurationNamesAndTheFileLacks) {
  const auto without = [](const std::string& prefix) {
    return WithTensors("qwen2", [&](Tensors& tensors) {
      EXPECT_GT(std::erase_if(tensors, [&](const auto& t) { return t.first.starts_with(prefix); }),
                0u);
    });
  };
  EXPECT_THAT(Refusal(without(kLayer), "qwen2"),
              AllOf(HasSubstr("there are no matrices of model.layers.0.self_attn.q_proj"),
                    HasSubstr("\"target_modules\"")));
  EXPECT_THAT(Refusal(WithField("qwen2", "modules_to_save", {"model.norm"}), "qwen2"),
              AllOf(HasSubstr("there is no model.norm.weight"), HasSubstr("\"modules_to_save\"")));
}

TEST(PeftFiles, OfAnotherModel) {
  EXPECT_THAT(Refusal(Golden("llama"), "qwen2"),
              AllOf(HasSubstr("adapter_model.safetensors: "), HasSubstr("has shape [2, 32], but "),
                    HasSubstr("needs [2, 24]: the adapter belongs to another model")));
  EXPECT_THAT(Refusal(Golden("gpt2"), "llama"),
              AllOf(HasSubstr("\"base_model.model.transformer.h.0.attn.c_attn.lora_A.weight\" "),
                    HasSubstr("this model (Llama, 2 layers) does not have"),
                    HasSubstr("the layers' q_proj, k_proj, v_proj, o_proj")));
  GptConfig shallow = ReadHfConfig(Base("qwen2"));
  shallow.n_layer = 1;
  EXPECT_THAT(Refusal(Golden("qwen2"), shallow),
              AllOf(HasSubstr("model.layers.1.self_attn.q_proj"), HasSubstr("1 layers) does not")));
  EXPECT_THAT(Refusal(WithField("qwen2", "r", 5), "qwen2"),
              AllOf(HasSubstr("has shape [3, 24]"), HasSubstr("with rank 5 needs [5, 24]")));
}

TEST(PeftFiles, ARankAboveThatOfTheMatrix) {
  const std::string folder = Changed("qwen2", [](Json& j, Tensors& tensors) {
    tensors.clear();
    tensors[StrCat(kLayer, ".lora_A.weight")] = Tensor::Zeros({25, 24}, DType::kF32);
    tensors[StrCat(kLayer, ".lora_B.weight")] = Tensor::Zeros({24, 25}, DType::kF32);
    j["r"] = 25;
  });
  EXPECT_THAT(Refusal(folder, "qwen2"),
              HasSubstr("has rank 25, above that of the matrix, [24, 24]"));
}

TEST(PeftFiles, WhatIsNoAdapter) {
  EXPECT_THAT(Refusal(Base("qwen2"), "qwen2"), HasSubstr("it has no adapter_config.json"));
  EXPECT_THAT(Refusal(WithTensors("qwen2", [](Tensors& t) { t.clear(); }), "qwen2"),
              HasSubstr("holds no lora_A and lora_B of any module"));
  EXPECT_THAT(
      Refusal(WithTensors("qwen2", [](Tensors& t) { t.erase(StrCat(kLayer, ".lora_B.weight")); }),
              "qwen2"),
      HasSubstr("q_proj.lora_A.weight\" is there without its lora_B"));
  const auto with = [](const std::string& name) {
    return Refusal(WithTensors("qwen2",
                               [&](Tensors& t) {
                                 t[name] = Tensor::Zeros({67, 24}, DType::kF32);
                               }),
                   "qwen2");
  };
  EXPECT_THAT(with("model.layers.0.weight"), HasSubstr("does not begin with base_model.model."));
  EXPECT_THAT(with("base_model.model.model.embed_tokens.lora_embedding_A"),
              HasSubstr("adapts an embedding"));
  EXPECT_THAT(with(StrCat(kLayer, ".lora_magnitude_vector")),
              HasSubstr("adapters that Lockstep lacks"));
  EXPECT_THAT(with("base_model.model.model.pooler.weight"),
              HasSubstr("is of a module that this model does not have"));
  const std::string pickled = WithField("qwen2", "r", 3);
  RenameDurably(pickled + "/adapter_model.safetensors", pickled + "/adapter_model.bin");
  EXPECT_THAT(Refusal(pickled, "qwen2"), HasSubstr("may run code when it is read"));
}

// What would change a head that is tied to the embedding, or the embedding.
TEST(PeftFiles, OfATiedHead) {
  const auto adapted = [](const std::string& family, int64_t width) {
    return Changed(family, [&](Json& j, Tensors& tensors) {
      tensors["base_model.model.lm_head.lora_A.weight"] = Tensor::Zeros({3, width}, DType::kF32);
      tensors["base_model.model.lm_head.lora_B.weight"] = Tensor::Zeros({67, 3}, DType::kF32);
      tensors.erase("base_model.model.lm_head.weight");
      j["target_modules"].push_back("lm_head");
    });
  };
  EXPECT_THAT(Refusal(adapted("qwen2", 24), "qwen2"),
              AllOf(HasSubstr("\"base_model.model.lm_head.lora_A.weight\" changes lm_head"),
                    HasSubstr("tied to its token embedding")));
  EXPECT_THAT(Refusal(adapted("llama", 32), "llama"),
              HasSubstr("adapts the head, which Lockstep does not; modules_to_save may"));
  for (const std::string module : {"lm_head", "model.embed_tokens"}) {
    const std::string folder = Changed("qwen2", [&](Json& j, Tensors& tensors) {
      tensors[StrCat("base_model.model.", module, ".weight")] =
          Tensor::Zeros({67, 24}, DType::kF32);
      j["modules_to_save"] = {module};
    });
    EXPECT_THAT(Refusal(folder, "qwen2"), HasSubstr("tied to its token embedding")) << module;
  }
}

TEST(PeftFiles, ModulesToSave) {
  const std::string unnamed = Changed("llama", [](Json&, Tensors& tensors) {
    tensors["base_model.model.model.norm.weight"] = Tensor::Zeros({32}, DType::kF32);
  });
  EXPECT_THAT(Refusal(unnamed, "llama"),
              HasSubstr("\"modules_to_save\" of adapter_config.json has no such module"));
  // Queries without keys and values: one matrix of Gpt's.
  const std::string folder = Changed("qwen2", [](Json& j, Tensors& tensors) {
    tensors["base_model.model.model.layers.1.self_attn.q_proj.weight"] =
        Tensor::Zeros({24, 24}, DType::kF32);
    j["modules_to_save"] = {"layers.1.self_attn.q_proj"};
    std::erase_if(tensors, [](const auto& one) {
      return one.first.find("layers.1.self_attn.q_proj.lora") != one.first.npos;
    });
  });
  EXPECT_THAT(Refusal(folder, "qwen2"), HasSubstr("list all of them in modules_to_save"));
}

// PEFT ignores such tensors: a module that is saved whole, or left out, has no adapter.
TEST(PeftFiles, TensorsOfModulesThatAreLeftOutAreRefused) {
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, Json>>{{"modules_to_save", {"self_attn"}},
                                                 {"exclude_modules", {"v_proj"}},
                                                 {"exclude_modules", ".*layers.1.*"},
                                                 {"layers_to_transform", 0}}) {
    EXPECT_THAT(Refusal(WithField("qwen2", key.c_str(), value), "qwen2"),
                AllOf(HasSubstr("lora_A.weight\" is there"), HasSubstr(key)));
  }
  EXPECT_EQ(Refusal(WithField("qwen2", "layers_to_transform", {0, 1}), "qwen2"), "no error");
  EXPECT_THAT(Refusal(WithField("qwen2", "layers_pattern", "layers"), "qwen2"),
              HasSubstr("\"layers_pattern\" needs \"layers_to_transform\""));
}

// ---- Which weights an adapter belongs to. ----

std::unique_ptr<Gpt> Loaded(const std::string& base, const std::string& adapter) {
  auto model = std::make_unique<Gpt>(ReadHfConfig(base));
  if (!adapter.empty()) PeftAdapter::Open(adapter).AddTo(*model);
  model->Materialize(kCpu, 0);
  LoadHfWeights(*model, base);
  if (!adapter.empty()) PeftAdapter::Open(adapter).LoadInto(*model);
  return model;
}

std::vector<float> Logits(Gpt& model) {
  const NoGrad no_grad;
  return model(Tensor::FromVector<int32_t>({3, 1, 4, 1, 5}, {1, 5})).ToVector<float>();
}

TEST(PeftBase, IsKnownByTheHashOfItsContent) {
  const auto model = Loaded(Base("qwen2"), Golden("qwen2"));
  PeftConfig config = PeftConfigOf(*model, true);
  config.base = "/elsewhere/base";
  const std::string folder = JoinPath(testing::TempDir(), "hashed_adapter");
  WriteAdapter(folder, *model, config, HashOfBase(Base("qwen2")));
  const PeftAdapter adapter = PeftAdapter::Open(folder);
  std::string said;
  const auto warn = [&](const std::string& text) { said = text; };
  CheckBase(adapter, Base("qwen2"), warn);  // wherever it is
  EXPECT_EQ(said, "");
  EXPECT_THAT(MessageOf<InputError>([&] { CheckBase(adapter, Base("qwen3"), warn); }),
              AllOf(HasSubstr("has adapters of other weights than those that are now in "),
                    HasSubstr("qwen3_parity (they were in /elsewhere/base)")));
}

// A tokenizer, a template or a page beside the weights is none of them.
TEST(PeftBase, IsItsWeightsAndTheirShapeOnly) {
  const std::string folder = JoinPath(testing::TempDir(), "base_of_adapters");
  RemoveTree(folder);
  MakeDirectories(folder);
  const auto copy = [&](const char* name, const std::string& from) {
    WriteFileAtomically(JoinPath(folder, name), ReadFile(JoinPath(Base(from), name)));
  };
  copy("config.json", "qwen2");
  copy("model.safetensors", "qwen2");
  const std::string hash = HashOfBase(folder);
  WriteFileAtomically(JoinPath(folder, "special_tokens_map.json"), "{}");
  WriteFileAtomically(JoinPath(folder, "adapter_model.safetensors"), "an adapter beside them");
  Json config = Json::parse(ReadFile(JoinPath(folder, "config.json")));
  config["transformers_version"] = "6.0.0";
  WriteFileAtomically(JoinPath(folder, "config.json"), config.dump());
  EXPECT_EQ(HashOfBase(folder), hash);
  config["num_key_value_heads"] = 4;
  WriteFileAtomically(JoinPath(folder, "config.json"), config.dump());
  EXPECT_NE(HashOfBase(folder), hash);
  copy("config.json", "qwen2");
  copy("model.safetensors", "qwen3");
  EXPECT_NE(HashOfBase(folder), hash);
}

TEST(PeftBase, OfOtherProgramsHasOnlyAName) {
  std::string said;
  const auto warn = [&](const std::string& text) { said = text; };
  CheckBase(PeftAdapter::Open(Golden("qwen2")), Base("qwen2"), warn);
  EXPECT_EQ(said, "");
  const PeftAdapter other =
      PeftAdapter::Open(WithField("qwen2", "base_model_name_or_path", "Qwen/Qwen2.5-0.5B"));
  CheckBase(other, Base("qwen2"), warn);
  EXPECT_THAT(said, HasSubstr("says that it belongs to \"Qwen/Qwen2.5-0.5B\", and nothing tells"));
}

TEST(PeftBase, ThatIsNotThere) {
  EXPECT_EQ(WeightsOf(Golden("qwen2")), Base("qwen2"));
  EXPECT_EQ(WeightsOf(Base("qwen2")), Base("qwen2"));
  const std::string folder = WithField("qwen2", "base_model_name_or_path", "Qwen/Qwen2.5-0.5B");
  EXPECT_THAT(
      MessageOf<InputError>([&] { WeightsOf(folder); }),
      AllOf(HasSubstr("adapters of the weights of 'Qwen/Qwen2.5-0.5B', and there is no such"),
            HasSubstr("or link that path to where they are now")));
}

// What lora.base says holds also where the adapters are there already.
TEST(PeftBase, IsQuantisedBesideAdaptersOfOthers) {
  std::vector<std::string> arguments = {"--init_from=" + Base("llama"),
                                        "--lora.init_from=" + Golden("llama"), "--lora.base=nf4",
                                        "--parallel.tp=1"};
  const ParsedRun run(arguments);
  EXPECT_EQ(PrepareShape(run.options, run.config, kCpu, 1).model.lora.base, "nf4");
  arguments.back() = "--parallel.tp=2";
  const ParsedRun cut(arguments);
  EXPECT_THAT(
      MessageOf<InputError>([&] { PrepareShape(cut.options, cut.config, kCpu, 2); }),
      HasSubstr("a quantised weight of shape [32, 32] cannot be cut by its columns into 2"));
}

// After resize_token_embeddings PEFT writes embedding and head, and leaves modules_to_save as it
// is.
TEST(PeftFiles, EmbeddingsOfAChangedVocabulary) {
  constexpr char kEmbedding[] = "base_model.model.model.embed_tokens.weight";
  constexpr char kHead[] = "base_model.model.lm_head.weight";
  const auto resized = [&](const std::string& family, float embedding, float head, int64_t rows) {
    return Changed(family, [&](Json& j, Tensors& tensors) {
      j["modules_to_save"] = nullptr;
      const int64_t width = family == "llama" ? 32 : 24;
      tensors[kEmbedding] = Tensor::Full({rows, width}, embedding, DType::kF32);
      tensors[kHead] = Tensor::Full({rows, width}, head, DType::kF32);
    });
  };
  for (const auto& [family, head] : {std::pair("llama", 0.5F), {"qwen2", 0.25F}}) {
    const auto model = Loaded(Base(family), resized(family, 0.25F, head, 67));
    int found = 0;
    for (const auto& [name, p] : model->NamedParameters()) {
      if (name != "wte.weight" && name != "lm_head.weight") continue;
      const float want = name == "wte.weight" ? 0.25F : head;
      EXPECT_EQ(p->value().ToVector<float>(),
                std::vector<float>(static_cast<size_t>(p->value().numel()), want));
      ++found;
    }
    EXPECT_EQ(found, model->config().tie_embeddings ? 1 : 2);
    EXPECT_THAT(Refusal(resized(family, 0.25F, head, 70), family),
                AllOf(HasSubstr("has 70 rows, but the model's vocabulary has 67 tokens"),
                      HasSubstr("resize_token_embeddings")));
  }
  EXPECT_THAT(Refusal(resized("qwen2", 0.25F, 0.5F, 67), "qwen2"),
              AllOf(HasSubstr("changes lm_head"), HasSubstr("tied to its token embedding")));
}

// ---- Several at a time. ----

TEST(AdapterSet, SwitchesBetweenAdaptersAndNone) {
  const std::string other = Changed("llama", [](Json& j, Tensors& tensors) {
    std::erase_if(tensors, [](const auto& t) { return t.first.find("v_proj") == t.first.npos; });
    j["target_modules"] = {"v_proj"};
    j["modules_to_save"] = nullptr;
    j["lora_alpha"] = 40;
  });
  const std::string base = Base("llama");
  const std::vector<float> plain = Logits(*Loaded(base, "")),
                           first = Logits(*Loaded(base, Golden("llama"))),
                           second = Logits(*Loaded(base, other));
  EXPECT_NE(first, plain);
  EXPECT_NE(second, plain);
  EXPECT_NE(first, second);
  const auto model = Loaded(base, "");
  AdapterSet set(*model);
  set.Add("first", PeftAdapter::Open(Golden("llama")));
  set.Add("second", PeftAdapter::Open(other));
  EXPECT_EQ(Logits(*model), plain);
  for (int round = 0; round < 2; ++round) {
    set.Use("first");
    EXPECT_EQ(set.used(), "first");
    EXPECT_EQ(Logits(*model), first);
    set.Use("second");
    EXPECT_EQ(Logits(*model), second);  // also with the head of the base
    set.UseNone();
    EXPECT_EQ(Logits(*model), plain);
  }
  EXPECT_THAT(MessageOf([&] { set.Use("third"); }),
              HasSubstr("there is no adapter 'third'; there are: first, second"));
  EXPECT_THAT(MessageOf<InputError>([&] { set.Add("gpt2", PeftAdapter::Open(Golden("gpt2"))); }),
              HasSubstr("belongs to another model"));
  EXPECT_THAT(MessageOf([&] { set.Add("first", PeftAdapter::Open(other)); }),
              HasSubstr("there is an adapter 'first' already"));
}

// Values of another adapter than the one whose layers the model has.
TEST(PeftFiles, LoadedIntoOtherAdapters) {
  const auto model = Loaded(Base("llama"), Golden("llama"));
  const auto refusal = [&](const std::string& folder) {
    return MessageOf<InputError>([&] { PeftAdapter::Open(folder).LoadInto(*model); });
  };
  EXPECT_THAT(refusal(WithTensors("llama",
                                  [](Tensors& t) {
                                    t.erase(StrCat(kLayer, ".lora_A.weight"));
                                    t.erase(StrCat(kLayer, ".lora_B.weight"));
                                  })),
              HasSubstr("has no adapter of model.layers.0.self_attn.q_proj"));
  EXPECT_THAT(
      refusal(WithTensors("llama", [](Tensors& t) { t.erase("base_model.model.lm_head.weight"); })),
      HasSubstr("lacks base_model.model.lm_head.weight"));
  EXPECT_THAT(refusal(WithField("llama", "lora_alpha", 40)),
              AllOf(HasSubstr("q_proj adds is multiplied by 20"), HasSubstr("multiplies it by 4:"),
                    HasSubstr("--lora.init_from=")));
}

// ---- Experts. ----

// In Mixtral's format, or in Lockstep's.
GptConfig Mixture(bool mixtral, const std::string& targets = "") {
  GptConfig c;
  c.vocab_size = 17;
  c.block_size = 12;
  c.n_layer = c.n_head = 2;
  c.n_embd = 8;
  c.bias = false;
  c.mixture = {.n_expert = 3, .n_expert_used = 2, .n_inner = 6};
  if (mixtral) {
    c.n_inner = c.mixture.n_inner;
    c.norm = NormKind::kRmsNorm;
    c.activation = nn::MlpActivation::kSwiGlu;
    c.position = Position::kRope;
  }
  if (!targets.empty()) c.lora = {.rank = 2, .alpha = 8, .targets = targets};
  EXPECT_EQ(HfModelType(c), mixtral ? "mixtral" : "lockstep");
  return c;
}

std::map<std::string, std::vector<float>> ValuesOf(const nn::LoraAdapter& adapter) {
  std::map<std::string, std::vector<float>> out;
  std::vector<std::shared_ptr<Parameter>> own = {adapter.a()};
  for (size_t i = 0; i < adapter.slices().size(); ++i) own.push_back(adapter.b(i));
  for (const auto& p : own) {
    if (p) out[p->name()] = p->value().Detach().ToVector<float>();
  }
  return out;
}

TEST(PeftFiles, OfExpertsAreWrittenReadAndMerged) {
  const Tensor ids = Tensor::FromVector<int32_t>({1, 5, 2, 16, 7, 7, 0, 3}, {1, 8});
  for (const bool mixtral : {true, false}) {
    const GptConfig config = Mixture(mixtral, mixtral ? "q_proj,w2,w3" : "experts.*.c_fc");
    Gpt model(config);
    model.Materialize(kCpu, 3);
    for (const auto& [name, p] : nn::LoraParameters(model)) {
      const Initializer values = nn::Uniform(-0.2, 0.2);
      std::vector<float> numbers(static_cast<size_t>(p->logical_shape().numel()));
      values(numbers, 0, 5, name);
      p->value().Detach().CopyFrom(Tensor::FromVector(numbers, p->logical_shape()));
    }
    const std::string folder = JoinPath(testing::TempDir(), "experts");
    RemoveTree(folder);
    WriteAdapter(folder, model, PeftConfigOf(model, false), "");
    const PeftAdapter adapter = PeftAdapter::Open(folder);
    const std::string module =
        mixtral ? "model.layers.1.block_sparse_moe.experts.2.w3" : "h.1.mlp.experts.2.c_fc";
    const auto [a, b] = adapter.Matrices(module);
    EXPECT_EQ(a.shape(), Shape({2, 8}));
    EXPECT_EQ(b.shape(), Shape({6, 2}));
    using Names = std::vector<std::string>;
    EXPECT_EQ(adapter.config().target_modules,
              mixtral ? Names({"q_proj", "w2", "w3"}) : Names({"c_fc"}));

    GptConfig plain = config, read = config;
    plain.lora = {};
    read.lora = {.init_from = folder};
    Gpt again(read), base(plain);
    again.Materialize(kCpu, 3);
    base.Materialize(kCpu, 3);
    adapter.LoadInto(again);
    const auto adapters = nn::LoraAdapters(model), others = nn::LoraAdapters(again);
    ASSERT_EQ(adapters.size(), mixtral ? 6u : 2u);
    ASSERT_EQ(others.size(), adapters.size());
    for (size_t i = 0; i < adapters.size(); ++i) {
      EXPECT_EQ(ValuesOf(*adapters[i]), ValuesOf(*others[i]));
    }
    const std::string copy = folder + "_copy";
    RemoveTree(copy);
    WriteAdapter(copy, again, PeftConfigOf(again, false), "");
    for (const char* file : {"/adapter_model.safetensors", "/adapter_config.json"}) {
      EXPECT_EQ(ReadFile(copy + file), ReadFile(folder + file));
    }

    const NoGrad no_grad;
    const std::vector<float> adapted = again(ids).ToVector<float>();
    const std::vector<float> before = base(ids).ToVector<float>();
    const WeightSource merged = MergedWeights(
        base.config(), adapter, [](const std::string&, const Parameter& p) { return p.value(); },
        DType::kF32);
    nn::MergeLora(again);
    const auto own = again.NamedParameters(), parameters = base.NamedParameters();
    ASSERT_EQ(own.size(), parameters.size());
    for (size_t i = 0; i < own.size(); ++i) {
      const auto& [name, p] = parameters[i];
      EXPECT_EQ(merged(name, *p).ToVector<float>(),
                own[i].second->value().Detach().ToVector<float>())
          << name;
    }
    const std::vector<float> after = again(ids).ToVector<float>();
    EXPECT_NE(adapted, before);
    for (size_t i = 0; i < after.size(); ++i) EXPECT_NEAR(after[i], adapted[i], 1e-5);
  }
}

// One expert of a layer, or all of one layer.
TEST(PeftFiles, OfSomeExpertsAreRefused) {
  Gpt model(Mixture(true, "w1,w2"));
  model.Materialize(kCpu, 3);
  const PeftConfig config = PeftConfigOf(model, false);
  const std::string folder = JoinPath(testing::TempDir(), "some_experts");
  for (const char* lacks : {"experts.2.w1", "experts."}) {
    std::vector<SafetensorsItem> items = ToPeftTensors(model);
    EXPECT_EQ(items.size(), 2u * 3 * 2 * 2);
    std::erase_if(items, [&](const SafetensorsItem& item) {
      return item.name.find(StrCat("layers.1.block_sparse_moe.", lacks)) != std::string::npos;
    });
    RemoveTree(folder);
    WriteAdapter(folder, model, config, "");
    FileWriter out(folder + "/adapter_model.safetensors");
    WriteSafetensors(out, items);
    out.Close();
    EXPECT_THAT(Refusal(folder, Mixture(true)),
                HasSubstr(StrCat("adapter_model.safetensors: there are no matrices of "
                                 "model.layers.1.block_sparse_moe.",
                                 lacks)));
  }
}

}  // namespace
}  // namespace lockstep::models
