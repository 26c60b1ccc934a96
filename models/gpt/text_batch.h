// Texts that a model continues at the same time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "models/gpt/context_cache.h"
#include "models/gpt/gpt.h"
#include "models/gpt/token_sampler.h"

namespace lockstep::models {

// Where the context of the token at `position` of a text starts. A model sees `block_size` tokens,
// whose positions count from the context's start: where the context moves, every key and value
// changes. So it does not move with each token, but by `slide` tokens whenever it is full: it
// starts at 0 while position <= block_size, then at the smallest multiple of `slide` that makes it
// fit. It then holds between block_size - slide + 1 and block_size tokens, and depends only on the
// position. slide = 1 always gives the last block_size tokens, but makes the cache useless.
int64_t ContextStart(int64_t position, int64_t block_size, int64_t slide);

// The slide in tokens, where 0 is half of the context. Throws ArgumentError if it is out of range.
int64_t SlideOf(int64_t slide, int64_t block_size);

// A text to continue, and how.
struct TextRequest {
  std::vector<int32_t> prompt;  // not empty
  int64_t tokens = 200;         // to generate, at most
  SamplingOptions sampling;
  uint64_t seed = 1337;
  int64_t sample = 0;  // which of several texts of the same prompt
  // Gets each token that is generated and the logits from which it was drawn, which are valid
  // during the call; false ends the text.
  std::function<bool(int32_t id, std::span<const float> logits)> on_token = nullptr;
  // If set, first gets the tokens of the prompt, all but the first, each with the logits that the
  // model has for its place. The prompt must fit the model's context, and there must be a cache.
  std::function<void(int32_t id, std::span<const float> logits)> on_prompt_token = nullptr;
};

struct TextBatchOptions {
  int64_t slots = 16;    // texts at once
  int64_t capacity = 0;  // tokens of a context in the cache; 0: the model's block_size
  int64_t slide = 0;     // SlideOf
  bool kv_cache = true;  // as in GenerateOptions
};

// Each text has its own settings, may start while others are under way, and has the bits that it
// has alone: a prompt is computed by itself, and single tokens in products of up to kFewRows rows
// (kernels/linear), whose rows do not depend on each other. No gradient is recorded. For one
// thread.
class TextBatch {
 public:
  // Ids at or above `vocab_limit` are never drawn. `kept`, which may be null: the context outlives
  // the text, of which there is one at a time. ArgumentError for options out of range.
  TextBatch(Gpt& model, int64_t vocab_limit, const TextBatchOptions& options,
            ContextCache* kept = nullptr);

  int64_t size() const { return std::ssize(active_); }
  bool full() const { return free_.empty(); }

  // Computes a text's prompt, and draws its first token. Returns how many tokens the model has
  // computed for that. Only if not full(). ArgumentError as Check.
  int64_t Start(TextRequest request);
  // ArgumentError for an empty prompt, for ids outside of the model's vocabulary, and for settings
  // out of range.
  void Check(const TextRequest& request) const;

  // Gives each text its next token. After an exception some may have got theirs: Clear().
  void Advance();
  // Forgets all texts.
  void Clear();

 private:
  struct Active {
    TextRequest request;
    TokenSampler sampler;
    std::vector<int32_t> text{};  // prompt and what was generated
    std::vector<uint8_t> seen{};  // per id, for the repetition penalty
    int64_t slot = 0;             // its place in the cache
    int64_t start = -1;           // where the context in the cache starts; -1: the place is empty
    int64_t left = 0;             // tokens to generate
  };

  int64_t Begin(const Active& a) const;
  Tensor Context(Active& a, int64_t* computed = nullptr);
  Tensor ScoredPrompt(Active& a);
  void Decode(const std::vector<Active*>& batch);
  Tensor Forward(const std::vector<int64_t>& slots, std::span<const int32_t> tokens);
  std::vector<float> Drawable(const Tensor& logits) const;
  void Draw(std::span<Active* const> texts, const Tensor& logits);

  Gpt& model_;
  const int64_t vocab_limit_;
  const Device device_;
  const int64_t block_, slide_, slots_;
  std::optional<nn::KvCache> own_cache_;
  nn::KvCache* cache_ = nullptr;  // null: each token recomputes its context
  ContextCache* kept_ = nullptr;  // whose cache that is; null: it is our own
  std::vector<int64_t> free_;     // slots
  std::vector<Active> active_;    // in the order in which they started
};

}  // namespace lockstep::models
