// The families, and which of them a model is.
#include <algorithm>
#include <array>

#include "core/io/file.h"
#include "core/io/json.h"
#include "models/gpt/gguf/gguf_reader.h"
#include "models/gpt/hf/bitsandbytes.h"
#include "models/gpt/hf/family.h"
#include "models/gpt/hf/hf_format.h"

namespace lockstep::models {
namespace {

// In the order in which a model's is looked for. The last has all models.
constexpr std::array kFamilies = {&kHfGpt2,    &kHfLlama,    &kHfMistral, &kHfMixtral, &kHfQwen2,
                                  &kHfQwen3,   &kHfQwen3Moe, &kHfGemma2,  &kHfGemma3,  &kHfOlmo2,
                                  &kHfSmolLm3, &kHfNanochat, &kHfLockstep};

// The config with only what decides numbers, so that equal models have equal ones.
GptConfig Canonical(const GptConfig& config) {
  const GptConfig d;
  GptConfig c = Resolved(config);
  c.init_zero = d.init_zero;
  c.loss_chunk = d.loss_chunk;
  c.z_loss = d.z_loss;
  c.recompute = d.recompute;
  c.offload = d.offload;
  c.lora = d.lora;
  if (c.window_pattern == 1) c.window = 0;
  if (c.window == 0) c.window_pattern = 0, c.rope_local_theta = 0;
  if (c.window_pattern > c.n_layer) c.window_pattern = 0;
  if (c.rope_skip > c.n_layer) c.rope_skip = 0;
  if (c.position != Position::kRope) {
    c.rope = d.rope;
    c.rope_local_theta = 0;
    c.rope_skip = 0;
  }
  RotaryOptions rope{.theta = c.rope.theta, .scaling = c.rope.scaling, .reverse = c.rope.reverse};
  if (c.rope.scaling == RotaryScaling::kLinear) rope.factor = c.rope.factor;
  if (c.rope.scaling != RotaryScaling::kLlama3) c.rope = rope;
  if (c.mixture.n_expert == 0) c.mixture = {}, c.n_dense = 0;
  if (c.mixture.n_shared == 0) c.mixture.shared_gate = false;
  return c;
}

bool Has(const HfFamily& family, const GptConfig& canonical) {
  const Json j = family.write(canonical);
  if (j.is_null()) return false;
  try {
    return Canonical(family.read({j, "config.json"})) == canonical;
  } catch (const Error&) {
    return false;
  }
}

GptConfig FromFields(const Fields& f) {
  CheckQuantizationConfig(f);
  f.Expect("is_causal", true);
  // OpenAI's own folders of GPT-2 have none.
  if (!f.Has("model_type") && !f.Has("n_embd")) {
    f.Fail("model_type", "is missing: write the architecture's, such as \"llama\"");
  }
  const std::string type = f.Text("model_type", "gpt2");
  std::string all;
  for (const HfFamily* family : kFamilies) {
    if (type == family->model_type) return family->read(f);
    all += StrCat(all.empty()                  ? ""
                  : family == kFamilies.back() ? " and "
                                               : ", ",
                  family->model_type);
  }
  f.Fail("model_type", StrCat("is \"", type, "\"; supported are ", all));
}

}  // namespace

const HfFamily& HfFamilyOf(const GptConfig& config) {
  const GptConfig c = Canonical(config);
  const auto found = std::find_if(kFamilies.begin(), kFamilies.end() - 1,
                                  [&](const HfFamily* family) { return Has(*family, c); });
  return **found;
}

std::string HfModelType(const GptConfig& config) { return HfFamilyOf(config).model_type; }

std::string HfTitle(const GptConfig& config) { return HfFamilyOf(config).title; }

std::string ToHfConfig(const GptConfig& config, DType dtype) {
  OrderedJson j = HfFamilyOf(config).write(Canonical(config));
  j["torch_dtype"] = dtype == DType::kBF16  ? "bfloat16"
                     : dtype == DType::kF16 ? "float16"
                                            : "float32";
  return j.dump(2) + "\n";
}

GptConfig FromHfConfig(const std::string& text, const std::string& source) {
  const Json j = ParseJson(text, source);
  if (!j.is_object()) throw InputError(StrCat(source, ": not a JSON object"));
  try {
    const GptConfig c = FromFields({j, source});
    Validate(c);
    return Resolved(c);
  } catch (const ArgumentError& e) {
    throw InputError(StrCat(source, ": ", e.what()));
  }
}

GptConfig ReadHfConfig(const std::string& path) {
  const std::string file = path + "/config.json";
  if (!PathExists(path)) {
    throw InputError(StrCat("there is no folder \"", path,
                            "\": name one on this machine. A model of the Hugging Face Hub is "
                            "downloaded by: hf download NAME --local-dir FOLDER"));
  }
  if (GgufFile::Is(path)) return FromHfConfig(HfConfigOf(GgufFile::Open(path)), path);
  if (!IsDirectory(path)) {
    throw InputError(StrCat(path,
                            ": is a file; of models in one file only GGUF can be read: name the "
                            "folder of others"));
  }
  if (!PathExists(file) && PathExists(JoinPath(path, "latest"))) {
    throw InputError(
        StrCat(path, " is the folder of a run: name one of its checkpoints, ", path, "/latest",
               PathExists(JoinPath(path, "best")) ? StrCat(" or ", path, "/best") : ""));
  }
  return FromHfConfig(ReadFile(file), file);
}

}  // namespace lockstep::models
