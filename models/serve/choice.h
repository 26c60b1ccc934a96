// One choice of an answer, as it grows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/io/json.h"
#include "models/sample/text_stream.h"
#include "models/serve/call.h"
#include "models/serve/engine.h"

namespace lockstep::models {

// Turns tokens into what a client gets of a choice: whole characters, no part of a stop text, and
// log-probabilities. What it says depends on the tokens alone, not on when it is asked. All that it
// refers to must outlive it.
class Choice {
 public:
  Choice(const Call& call, const ServedModel& model, int64_t index);

  // A token of the prompt, all but the first, for a call with echo and log-probabilities.
  void PushPrompt(const ScoredToken& token) { Note(token, /*scored=*/true); }
  // A token that was generated; false if the text ends with it.
  bool Push(const ScoredToken& token);
  // There will be no more.
  void End();

  bool ended() const { return ended_; }
  int64_t tokens() const { return tokens_; }  // generated, with the one that ended the text
  // Whether Take has something to tell.
  bool HasNews() const { return !text_.empty() || (ended_ && !told_end_); }
  // What came since the last call, as an element of "choices": of a stream (a "delta" in a chat),
  // or else of a whole answer (its "message").
  OrderedJson Take(bool of_stream);

 private:
  void Note(const ScoredToken& token, bool scored);
  void Show(std::string text);
  OrderedJson TakeLogProbabilities();

  const Call& call_;
  const ServedModel& model_;
  const int64_t index_;
  TextStream stream_;
  std::string text_;  // not taken yet
  bool shown_ = false, by_end_ = false, ended_ = false, told_end_ = false, told_role_ = false;
  int64_t tokens_ = 0, offset_ = 0;  // characters of the tokens that were noted
  struct Noted {
    ScoredToken token;
    bool scored;
    int64_t offset;
  };
  std::vector<Noted> noted_;  // whose log-probabilities were not taken yet
};

}  // namespace lockstep::models
