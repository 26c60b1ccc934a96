// Small models of the families of gpt/hf, and their folders.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "core/io/file.h"
#include "core/io/safetensors.h"
#include "models/gpt/hf/hf_format.h"

namespace lockstep::models {

inline constexpr GptConfig kSmall{
    .vocab_size = 11, .block_size = 6, .n_layer = 2, .n_head = 2, .n_embd = 8};

inline constexpr GptConfig kLlama{.vocab_size = 11,
                                  .block_size = 6,
                                  .n_layer = 2,
                                  .n_head = 4,
                                  .n_embd = 16,
                                  .bias = false,
                                  .tie_embeddings = false,
                                  .n_kv_head = 2,
                                  .n_inner = 12,
                                  .norm = NormKind::kRmsNorm,
                                  .norm_eps = 1e-6,
                                  .activation = nn::MlpActivation::kSwiGlu,
                                  .position = Position::kRope,
                                  .init_std = 0.3};

inline constexpr nn::MixtureOptions kExperts{.n_expert = 3, .n_expert_used = 2, .n_inner = 12};

constexpr GptConfig Qwen3() {
  GptConfig config = kLlama;
  config.head_dim = 6;
  config.qk_norm = nn::QkNorm::kHead;
  return config;
}

inline GptConfig With(GptConfig config, const std::function<void(GptConfig&)>& change) {
  change(config);
  return config;
}

inline std::string Folder(const std::string& name) {
  const std::string path = JoinPath(testing::TempDir(), name);
  MakeDirectories(path);
  return path;
}

inline void Save(Gpt& model, const std::string& folder) {
  FileWriter out(folder + "/model.safetensors");
  WriteSafetensors(out, ToHfTensors(model));
  out.Close();
  WriteFileAtomically(folder + "/config.json", ToHfConfig(model.config()));
}

}  // namespace lockstep::models
