// ControlPlane: questions that the loops of other ranks answer. See control_plane.h.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/io/json.h"
#include "dist/control/control_plane.h"

namespace lockstep::dist {
namespace {

using nlohmann::json;

// How long rank 0 waits for answers. Those who ask wait longer.
constexpr ControlPlane::Milliseconds kSurveyTime(1000);
// For each rank that answers: how long rank 0 gives the same answers to all who ask the same. All
// answers of a large run pass it.
constexpr auto kSharingTime = std::chrono::microseconds(50);

// Texts by rank, each text once, with the runs of ranks that say it: first, last, first, last, ...
std::string Pack(const std::map<int, std::string>& texts) {
  std::map<std::string, std::vector<int>> runs;
  for (const auto& [rank, text] : texts) {
    std::vector<int>& of_text = runs[text];
    if (!of_text.empty() && of_text.back() + 1 == rank) {
      of_text.back() = rank;
    } else {
      of_text.insert(of_text.end(), {rank, rank});
    }
  }
  return DumpJson(json(runs));
}

// Stops at what no rank of `size` writes.
std::map<int, std::string> Unpack(const std::string& bytes, int size) {
  std::map<int, std::string> texts;
  try {
    for (const auto& [text, runs] : TryParseJson(bytes).get<std::map<std::string, json>>()) {
      for (size_t i = 0; i + 1 < runs.size(); i += 2) {
        const int64_t last = IntegerOf(runs[i + 1], 0, size - 1);
        for (auto rank = static_cast<int>(IntegerOf(runs[i], 0, size)); rank <= last; ++rank) {
          texts[rank] = text;
        }
      }
    }
  } catch (const std::exception&) {
  }
  return texts;
}

}  // namespace

bool ControlPlane::Answer(uint64_t topic, Responder responder) {
  bool is_new = false;
  loop_->Run([&] { is_new = responders_.try_emplace(topic, std::move(responder)).second; });
  return is_new;
}

std::optional<std::string> ControlPlane::AnswerHere(uint64_t topic, const std::string& question) {
  const auto responder = responders_.find(topic);
  if (responder == responders_.end()) return std::nullopt;
  return responder->second(question);
}

void ControlPlane::Reply(const Frame& question) {
  Frame answer{Frame::Kind::kAnswer, rank(), question.from, 0, question.number, {}};
  if (auto text = AnswerHere(question.topic, question.body)) {
    answer.topic = question.topic;
    answer.body = std::move(*text);
  }
  Route(std::move(answer));
}

void ControlPlane::OnAnswer(const Frame& frame) {
  const auto question = questions_.find(frame.number);
  if (question == questions_.end()) return;
  const AnswerHandler handler = question->second.handler;
  if (--question->second.left == 0) questions_.erase(question);
  handler(frame.from, frame.topic != 0 ? &frame.body : nullptr);
}

uint64_t ControlPlane::Question(const std::vector<int>& ranks, uint64_t topic,
                                const std::string& question, AnswerHandler handler) {
  const uint64_t number = ++last_question_;
  questions_[number] = {ranks.size(), std::move(handler)};
  for (const int to : ranks) {
    Route({Frame::Kind::kQuestion, rank(), to, topic, number, question});
  }
  return number;
}

std::map<int, std::string> ControlPlane::Ask(const std::vector<int>& ranks, uint64_t topic,
                                             const std::string& question,
                                             Clock::time_point deadline) {
  std::map<int, std::string> questions;
  for (const int r : ranks) questions[r] = question;
  std::optional<std::string> result;
  uint64_t number = 0;
  loop_->Post([&, this] {
    number = ++last_question_;
    questions_[number] = {1, [&, this](int, const std::string* answers) {
                            const std::lock_guard<std::mutex> lock(mutex_);
                            result = answers != nullptr ? *answers : "";
                            changed_.notify_all();
                          }};
    Route({Frame::Kind::kSurvey, rank(), 0, topic, number, Pack(questions)});
  });
  {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_until(lock, deadline, [&] { return result || failure_; });
  }
  std::map<int, std::string> answers;
  loop_->Run([&] {
    questions_.erase(number);
    if (result) answers = Unpack(*result, size());
    // Known even if rank 0 does not answer.
    const auto mine = questions.contains(rank()) ? AnswerHere(topic, question) : std::nullopt;
    if (mine) answers[rank()] = *mine;
  });
  return answers;
}

// On rank 0: asks the ranks, unless it is doing so, or has just done so, for another one. So that
// all of W ranks may ask all others at once: it takes a few times W messages, not W x W.
void ControlPlane::OnSurvey(const Frame& frame) {
  std::shared_ptr<Survey>& here = surveys_[{frame.topic, frame.body}];
  const bool is_new = here == nullptr;
  if (is_new) here = std::make_shared<Survey>(Survey{.topic = frame.topic});
  const std::shared_ptr<Survey> survey = here;
  survey->askers.emplace_back(frame.from, frame.number);
  if (survey->result) return TellAskers(*survey);
  if (!is_new) return;
  std::vector<int> ranks;
  std::string question;
  for (const auto& [rank, text] : Unpack(frame.body, size())) {
    ranks.push_back(rank);
    question = text;
  }
  survey->left = ranks.size();
  survey->number =
      Question(ranks, frame.topic, question, [this, survey](int from, const std::string* answer) {
        if (answer != nullptr) survey->answers[from] = *answer;
        if (--survey->left == 0) EndSurvey(survey);
      });
  if (ranks.empty()) return EndSurvey(survey);
  if (!survey->result) survey->timer = After(kSurveyTime, [this, survey] { EndSurvey(survey); });
}

void ControlPlane::EndSurvey(const std::shared_ptr<Survey>& survey) {
  if (survey->result) return;
  questions_.erase(survey->number);
  loop_->Cancel(survey->timer);
  timers_.erase(survey->timer);
  survey->result = Pack(survey->answers);
  TellAskers(*survey);
  After(std::chrono::duration_cast<Milliseconds>(size() * kSharingTime), [this, survey] {
    std::erase_if(surveys_, [&](const auto& entry) { return entry.second == survey; });
  });
}

void ControlPlane::TellAskers(Survey& survey) {
  for (const auto& [to, number] : std::exchange(survey.askers, {})) {
    Route({Frame::Kind::kAnswer, rank(), to, survey.topic, number, *survey.result});
  }
}

}  // namespace lockstep::dist
