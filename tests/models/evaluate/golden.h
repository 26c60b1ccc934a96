// What lm-evaluation-harness and nanochat make of the task files in testdata, for a tiny model
// (tests/peers/make_evaluate_goldens.py).
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/io/file.h"
#include "core/io/json.h"
#include "data/tokenizer/tokenizer.h"
#include "models/evaluate/request_encoder.h"
#include "models/gpt/gpt.h"
#include "models/gpt/hf/hf_format.h"

namespace lockstep::test {

inline const std::string kData = "tests/models/evaluate/testdata";
inline const std::string kEvals = kData + "/evals";

inline const Json& Golden() {
  static const Json golden = Json::parse(ReadFile(kData + "/golden.json"));
  return golden;
}

inline std::unique_ptr<models::Gpt> TinyModel() {
  const std::string folder = kData + "/model";
  auto model = std::make_unique<models::Gpt>(models::ReadHfConfig(folder));
  model->Materialize(kCpu, /*seed=*/std::nullopt);
  models::LoadHfWeights(*model, folder);
  return model;
}

// `kind`: "", or "bos" for the tokenizer that puts a token before each text.
inline const data::Tokenizer& TinyTokenizer(const std::string& kind) {
  static const auto plain = data::LoadTokenizer(kData + "/model");
  static const auto bos = data::LoadTokenizer(kData + "/tokenizer_bos");
  return kind == "bos" ? *bos : *plain;
}

inline models::RequestEncoder TinyEncoder(const std::string& kind, int64_t block_size = 300) {
  return {TinyTokenizer(kind), block_size, 384};
}

}  // namespace lockstep::test
