#include "models/serve/answer.h"

#include <algorithm>
#include <ctime>

#include "core/io/json.h"

namespace lockstep::models {
namespace {

std::string NewId(bool chat) {
  static std::atomic<int64_t> last{0};
  return StrCat(chat ? "chatcmpl-" : "cmpl-", ++last);
}

std::string Event(const OrderedJson& json) { return StrCat("data: ", json.dump(), "\n\n"); }

}  // namespace

Answer::Answer(Call call, const ServedModel& model, uint64_t seed)
    : call_(std::move(call)),
      model_(model),
      seed_(call_.seed.value_or(seed)),
      id_(NewId(call_.chat)),
      created_(std::time(nullptr)) {
  for (int64_t i = 0; i < call_.choices(); ++i) choices_.emplace_back(call_, model_, i);
}

std::shared_ptr<Answer> Answer::Start(Call call, const ServedModel& model, Engine& engine,
                                      uint64_t seed) {
  const std::shared_ptr<Answer> answer(new Answer(std::move(call), model, seed));
  std::vector<EngineRequest> requests;
  for (int64_t i = 0; i < answer->call_.choices(); ++i) requests.push_back(answer->RequestOf(i));
  if (!engine.Submit(std::move(requests))) {
    throw RequestError(429, "too many texts wait for this server: try again later", "",
                       "rate_limit_exceeded");
  }
  return answer;
}

// The engine keeps the answer alive until the text has ended.
EngineRequest Answer::RequestOf(int64_t index) {
  const std::vector<int32_t>& prompt = call_.prompts[static_cast<size_t>(index / call_.n)];
  // The last token is drawn, never computed.
  const int64_t room = model_.context + 1 - std::ssize(prompt);
  int64_t tokens = call_.tokens.value_or(room);
  if (call_.chat || !model_.slides) tokens = std::min(tokens, room);
  Choice* const choice = &choices_[static_cast<size_t>(index)];
  EngineRequest request{.text = {.prompt = prompt,
                                 .tokens = tokens,
                                 .sampling = call_.sampling,
                                 .seed = seed_,
                                 .sample = index % call_.n},
                        .likeliest = call_.likeliest,
                        .abandoned = abandoned_};
  if (call_.echo && call_.likeliest >= 0) {
    request.on_prompt_token = [self = shared_from_this(), choice](const ScoredToken& token) {
      const std::lock_guard lock(self->mutex_);
      choice->PushPrompt(token);
    };
  }
  request.on_token = [self = shared_from_this(), choice](const ScoredToken& token) {
    const std::lock_guard lock(self->mutex_);
    const bool go_on = choice->Push(token);
    if (choice->HasNews()) self->news_.notify_all();
    return go_on;
  };
  request.on_end = [self = shared_from_this(), choice](const std::string& error) {
    const std::lock_guard lock(self->mutex_);
    choice->End();
    ++self->ended_;
    if (self->error_.empty()) self->error_ = error;
    self->news_.notify_all();
  };
  return request;
}

bool Answer::Wait(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  return news_.wait_for(lock, most, [&] { return IsComplete(); });
}

OrderedJson Answer::Head(bool of_stream) const {
  const char* object = !call_.chat ? "text_completion"
                       : of_stream ? "chat.completion.chunk"
                                   : "chat.completion";
  return {{"id", id_},
          {"object", object},
          {"created", created_},
          {"model", model_.name},
          {"choices", OrderedJson::array()}};
}

OrderedJson Answer::Usage() const {
  int64_t prompt = 0, generated = 0;
  for (const std::vector<int32_t>& ids : call_.prompts) prompt += std::ssize(ids);
  for (const Choice& choice : choices_) generated += choice.tokens();
  return {{"prompt_tokens", prompt},
          {"completion_tokens", generated},
          {"total_tokens", prompt + generated}};
}

std::string Answer::Whole() {
  const std::lock_guard lock(mutex_);
  LS_INVARIANT(IsComplete());
  if (!error_.empty()) throw RequestError(503, error_);
  OrderedJson answer = Head(/*of_stream=*/false);
  for (Choice& choice : choices_) answer["choices"].push_back(choice.Take(/*of_stream=*/false));
  answer["usage"] = Usage();
  return answer.dump();
}

std::optional<std::string> Answer::NextEvents(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  if (told_all_) return {};
  const auto has_news = [](const Choice& choice) { return choice.HasNews(); };
  news_.wait_for(lock, most,
                 [&] { return IsComplete() || std::ranges::any_of(choices_, has_news); });
  std::string events;
  for (Choice& choice : choices_) {
    if (!choice.HasNews()) continue;
    OrderedJson event = Head(/*of_stream=*/true);
    event["choices"].push_back(choice.Take(/*of_stream=*/true));
    if (call_.include_usage) event["usage"] = nullptr;
    events += Event(event);
  }
  if (!IsComplete()) return events;
  told_all_ = true;
  if (!error_.empty()) {
    return StrCat(events, "data: ", RequestError(503, error_).ToJson(), "\n\n");
  }
  if (call_.include_usage) {
    OrderedJson event = Head(/*of_stream=*/true);
    event["usage"] = Usage();
    events += Event(event);
  }
  return events + "data: [DONE]\n\n";
}

}  // namespace lockstep::models
