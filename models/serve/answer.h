// The answer to one call: the engine writes it, a connection reads it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "models/serve/call.h"
#include "models/serve/choice.h"
#include "models/serve/engine.h"

namespace lockstep::models {

// Thread-safe.
class Answer : public std::enable_shared_from_this<Answer> {
 public:
  // Asks the engine for all choices: number s of a prompt is its sample s, as in sample_gpt.
  // `seed` is for a call without one. `model` must outlive the answer. RequestError if the engine
  // takes no more.
  static std::shared_ptr<Answer> Start(Call call, const ServedModel& model, Engine& engine,
                                       uint64_t seed);

  // Waits until all is there, at most so long; returns whether it is.
  bool Wait(std::chrono::milliseconds most);
  // All of it as JSON, once it is there, for a call without stream. RequestError if it failed.
  std::string Whole();
  // The next server-sent events; empty if there are none yet after so long a wait; none after the
  // last ones.
  std::optional<std::string> NextEvents(std::chrono::milliseconds most);

  // The client has left: the engine may stop.
  void Abandon() { *abandoned_ = true; }

 private:
  Answer(Call call, const ServedModel& model, uint64_t seed);
  EngineRequest RequestOf(int64_t index);
  bool IsComplete() const { return ended_ == call_.choices(); }
  OrderedJson Head(bool of_stream) const;
  OrderedJson Usage() const;

  const Call call_;
  const ServedModel& model_;
  const uint64_t seed_;
  const std::string id_;
  const int64_t created_;  // seconds since 1970
  const std::shared_ptr<std::atomic<bool>> abandoned_ = std::make_shared<std::atomic<bool>>(false);

  std::mutex mutex_;  // of what follows
  std::condition_variable news_;
  std::vector<Choice> choices_;
  int64_t ended_ = 0;
  std::string error_;
  bool told_all_ = false;
};

}  // namespace lockstep::models
