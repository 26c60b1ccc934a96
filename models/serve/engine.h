// The model behind a server: texts for many clients, computed together.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/gpt/text_batch.h"

namespace lockstep::models {

// A token, and how likely the model found it: by its logits alone, before temperature and whatever
// else changes what is drawn. In nats.
struct ScoredToken {
  int32_t id = 0;
  double log_probability = 0;
  std::vector<std::pair<int32_t, double>> likeliest;  // ids and theirs, the likeliest first
};

// A text that somebody waits for. The functions are called by the engine's thread, one at a time,
// and must neither block nor throw.
struct EngineRequest {
  TextRequest text;  // without its functions
  // How many of the likeliest tokens come with each token; -1: no log-probabilities either.
  int64_t likeliest = -1;
  // Gets the tokens of the prompt, all but the first; needs `likeliest` >= 0.
  std::function<void(const ScoredToken&)> on_prompt_token = nullptr;
  // Gets each token that is generated; false ends the text.
  std::function<bool(const ScoredToken&)> on_token;
  // Called once, after all others. `error`: why the text is not complete; empty if it is.
  std::function<void(const std::string& error)> on_end;
  // True once nobody waits any more: the text ends, and is not even begun.
  std::shared_ptr<const std::atomic<bool>> abandoned;
};

struct EngineOptions {
  int64_t max_batch = 16;    // texts that grow at once
  int64_t context = 0;       // tokens of a text's context in the cache; 0: the model's block_size
  int64_t max_queue = 1024;  // texts that wait to start
};

// Texts start in the order in which they came, as soon as there is room, and then grow together,
// each with the bits that it has alone (TextBatch), which are those of GenerateBatch.
class Engine {
 public:
  // Computes a token, so that the memory of all contexts is there, or an OutOfMemoryError. The
  // model must outlive it, and belongs to the thread that calls Step and Run.
  Engine(Gpt& model, int64_t vocab_limit, const EngineOptions& options);

  // From any thread. Takes all of these texts, or none: false if the queue has no room for them, or
  // is closed.
  bool Submit(std::vector<EngineRequest> requests);

  // Starts at most one text that waits, and gives each one that grows its next token. False if
  // there was nothing to do. A text that fails ends with its error; where a step of all fails, all
  // of them do.
  bool Step();
  // Steps and waits until `stop`, which is asked before each step and every tenth of a second,
  // then closes the queue and ends all texts.
  void Run(const std::function<bool()>& stop);

 private:
  struct Growing;

  void Begin(EngineRequest request);
  void EndAll(const std::string& error);

  const int64_t max_queue_;
  TextBatch batch_;
  std::vector<std::shared_ptr<Growing>> growing_;

  std::mutex mutex_;  // of what follows
  std::condition_variable came_;
  std::deque<EngineRequest> queue_;
  bool closed_ = false;
};

// The token's log-probability and the `likeliest` tokens, 0 or more, given the logits of all.
ScoredToken ScoreToken(int32_t id, std::span<const float> logits, int64_t likeliest);

}  // namespace lockstep::models
