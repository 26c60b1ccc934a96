// What a client asks for: OpenAI's completions and chat completions, read from their JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "models/gpt/token_sampler.h"
#include "models/serve/served_model.h"

namespace lockstep::models {

// A request that is not answered, with the status and fields of OpenAI's errors.
class RequestError : public Error {
 public:
  RequestError(int status, const std::string& message, std::string param = "",
               std::string code = "")
      : Error(message), status_(status), param_(std::move(param)), code_(std::move(code)) {}

  int status() const { return status_; }
  // {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}
  std::string ToJson() const;

 private:
  int status_;
  std::string param_, code_;
};

struct Call {
  bool chat = false;
  bool stream = false, include_usage = false;
  bool echo = false;  // the choices begin with their prompts
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::string> prompt_texts;  // for echo
  int64_t n = 1;                          // choices of each prompt
  std::optional<int64_t> tokens;          // at most; none: as many as fit
  SamplingOptions sampling;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  std::vector<int32_t> ends;  // tokens
  int64_t likeliest = -1;     // how many come with each token; -1: no log-probabilities

  int64_t choices() const { return std::ssize(prompts) * n; }
};

// The body of /v1/completions. RequestError for anything that is not one that this model can
// answer, also for fields that are not known, or would change the answer and are not supported.
Call ParseCompletion(std::string_view body, const ServedModel& model);

// The body of /v1/chat/completions, likewise.
Call ParseChat(std::string_view body, const ServedModel& model);

}  // namespace lockstep::models
