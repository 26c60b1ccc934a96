#include "models/serve/engine.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "core/error.h"
#include "core/math.h"

namespace lockstep::models {

// A text in the batch.
struct Engine::Growing {
  EngineRequest request;
  bool ended = false;  // has its last token

  void Finish(const std::string& error) { request.on_end(error); }
};

ScoredToken ScoreToken(int32_t id, std::span<const float> logits, int64_t likeliest) {
  const double largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += math::Exp(logit - largest);
  const double offset = largest + math::Log(sum);
  ScoredToken token{.id = id, .log_probability = logits[static_cast<size_t>(id)] - offset};
  std::vector<int32_t> ids(likeliest > 0 ? logits.size() : 0);
  std::iota(ids.begin(), ids.end(), 0);
  const auto end = ids.begin() + std::min(likeliest, std::ssize(ids));
  std::partial_sort(ids.begin(), end, ids.end(), [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  for (auto i = ids.begin(); i < end; ++i) {
    token.likeliest.emplace_back(*i, logits[static_cast<size_t>(*i)] - offset);
  }
  return token;
}

Engine::Engine(Gpt& model, int64_t vocab_limit, const EngineOptions& options)
    : max_queue_(options.max_queue),
      batch_(model, vocab_limit, {.slots = options.max_batch, .capacity = options.context}) {
  batch_.Start({.prompt = {0}, .tokens = 1});
}

bool Engine::Submit(std::vector<EngineRequest> requests) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_ || std::ssize(queue_) + std::ssize(requests) > max_queue_) return false;
    for (EngineRequest& request : requests) queue_.push_back(std::move(request));
  }
  came_.notify_one();
  return true;
}

bool Engine::Step() {
  while (!batch_.full()) {
    EngineRequest next;
    {
      const std::lock_guard lock(mutex_);
      if (queue_.empty()) break;
      next = std::move(queue_.front());
      queue_.pop_front();
    }
    if (*next.abandoned) {
      next.on_end("nobody waits for it");
      continue;
    }
    Begin(std::move(next));
    if (batch_.size() == 0) return true;
    break;
  }
  if (batch_.size() == 0) return false;
  try {
    batch_.Advance();
  } catch (const std::exception& e) {
    EndAll(e.what());
  }
  std::erase_if(growing_, [](const auto& text) {
    if (text->ended) text->Finish("");
    return text->ended;
  });
  return true;
}

// Computes the text's prompt, and draws its first token.
void Engine::Begin(EngineRequest request) {
  const auto growing = std::make_shared<Growing>(Growing{std::move(request)});
  TextRequest text = std::move(growing->request.text);
  const int64_t likeliest = growing->request.likeliest;
  const auto score = [likeliest](int32_t id, std::span<const float> logits) {
    return likeliest < 0 ? ScoredToken{.id = id} : ScoreToken(id, logits, likeliest);
  };
  if (growing->request.on_prompt_token) {
    text.on_prompt_token = [g = growing.get(), score](int32_t id, std::span<const float> logits) {
      if (!*g->request.abandoned) g->request.on_prompt_token(score(id, logits));
    };
  }
  int64_t left = text.tokens;
  text.on_token = [g = growing, score, left](int32_t id, std::span<const float> logits) mutable {
    const bool go_on = !*g->request.abandoned && g->request.on_token(score(id, logits));
    g->ended = --left == 0 || !go_on;
    return !g->ended;
  };
  growing->ended = left == 0;
  try {
    batch_.Start(std::move(text));
  } catch (const std::exception& e) {
    growing->Finish(e.what());
    return;
  }
  if (growing->ended) {
    growing->Finish("");
  } else {
    growing_.push_back(growing);
  }
}

void Engine::EndAll(const std::string& error) {
  batch_.Clear();
  for (const auto& text : std::exchange(growing_, {})) text->Finish(text->ended ? "" : error);
}

void Engine::Run(const std::function<bool()>& stop) {
  while (!stop()) {
    if (Step()) continue;
    std::unique_lock lock(mutex_);
    came_.wait_for(lock, std::chrono::milliseconds(100), [&] { return !queue_.empty(); });
  }
  std::deque<EngineRequest> waiting;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    waiting.swap(queue_);
  }
  const std::string kStops = "the server stops";
  EndAll(kStops);
  for (const EngineRequest& request : waiting) request.on_end(kStops);
}

}  // namespace lockstep::models
