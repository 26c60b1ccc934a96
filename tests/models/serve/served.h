// A small model of bytes, for tests of the server.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "data/chat/chat_template.h"
#include "data/tokenizer/training/bpe_trainer.h"
#include "models/gpt/gpt.h"
#include "models/serve/served_model.h"
#include "tests/models/spread_weights.h"

namespace lockstep::test {

// Three special tokens and the 256 bytes.
inline constexpr int64_t kVocabulary = 259;
inline constexpr int32_t kEndOfText = 0, kEndOfTurn = 2;

inline constexpr std::string_view kTemplate =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + ':' + m.content + '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant:' }}{% endif %}";

inline std::shared_ptr<const data::Tokenizer> MakeTokenizer() {
  data::BpeTrainerOptions options{.allow_fewer = true};
  options.special_tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  options.vocab_size = kVocabulary;
  return data::Tokenizer::FromJson(
      data::ToHuggingFaceJson(data::TrainBpe({}, options), data::Gpt2PreTokenizer(), nullptr),
      "the test's tokenizer");
}

inline models::GptConfig Gpt2Shape() {
  return {.vocab_size = kVocabulary, .block_size = 48, .n_layer = 2, .n_head = 4, .n_embd = 32};
}

inline models::GptConfig LlamaShape() {
  models::GptConfig shape = Gpt2Shape();
  shape.n_kv_head = 2;
  shape.bias = false;
  shape.norm = NormKind::kRmsNorm;
  shape.activation = nn::MlpActivation::kSwiGlu;
  shape.position = models::Position::kRope;
  shape.tie_embeddings = false;
  return shape;
}

inline std::unique_ptr<models::Gpt> MakeModel(const models::GptConfig& shape) {
  auto model = std::make_unique<models::Gpt>(shape);
  model->Materialize(kCpu, 3);
  SpreadWeights(*model);
  return model;
}

inline models::ServedModel MakeServed(const models::GptConfig& shape, int64_t context = 0) {
  return models::MakeServedModel(
      "tiny", shape, MakeTokenizer(),
      std::make_shared<data::ChatTemplate>(kTemplate, "the test's template"), context);
}

}  // namespace lockstep::test
