// ControlPlane: questions that the loops of other ranks answer. See control_plane.h.
#include <algorithm>
#include <utility>

#include "core/io/json.h"
#include "dist/control/control_plane.h"

namespace lockstep::dist {
namespace {

// How long rank 0 waits for answers. Those who ask wait longer.
constexpr ControlPlane::Milliseconds kSurveyTime(1000);
// For each rank that answers: how long rank 0 gives the same answers to all who ask the same. All
// answers of a large run pass it.
constexpr auto kSharingTime = std::chrono::microseconds(50);

// Texts by rank, each text once, with the runs of ranks that say it: first, last, first, last, ...
// If they do not fit a message, the longest are "?", which answers no question.
std::string Pack(const std::map<int, std::string>& texts, size_t longest = Frame::kMaxBody) {
  std::map<std::string, std::vector<int>> runs;
  for (const auto& [rank, text] : texts) {
    std::vector<int>& of_text = runs[text.size() > longest ? "?" : text];
    if (!of_text.empty() && of_text.back() + 1 == rank) {
      of_text.back() = rank;
    } else {
      of_text.insert(of_text.end(), {rank, rank});
    }
  }
  std::string bytes = Json(runs).dump();
  return bytes.size() <= Frame::kMaxBody || longest <= 1 ? bytes : Pack(texts, longest / 2);
}

// Stops at what no rank of `size` writes.
std::map<int, std::string> Unpack(const std::string& bytes, int size) {
  std::map<int, std::string> texts;
  try {
    for (const auto& [text, runs] : TryParseJson(bytes).get<std::map<std::string, Json>>()) {
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

std::string ControlPlane::AnswerHere(uint64_t topic, const std::string& question) {
  const auto responder = responders_.find(topic);
  return responder == responders_.end() ? "" : responder->second(question);
}

void ControlPlane::OnAnswer(const Frame& frame) {
  const auto question = questions_.find(frame.number);
  if (question == questions_.end()) return;
  const AnswerHandler handler = question->second.handler;
  if (--question->second.left == 0) questions_.erase(question);
  handler(frame.from, frame.body);
}

uint64_t ControlPlane::Question(Frame::Kind kind, const std::vector<int>& ranks, uint64_t topic,
                                const std::string& question, AnswerHandler handler) {
  const uint64_t number = ++last_question_;
  questions_[number] = {ranks.size(), std::move(handler)};
  for (const int to : ranks) Route({kind, rank(), to, topic, number, question});
  return number;
}

// The answers that have come once all have, by the deadline, or when the run fails.
std::map<int, std::string> ControlPlane::Await(Frame::Kind kind, const std::vector<int>& ranks,
                                               uint64_t topic, const std::string& question,
                                               Clock::time_point deadline) {
  std::map<int, std::string> answers;
  uint64_t number = 0;
  loop_->Post([&, this] {
    number = Question(kind, ranks, topic, question, [&, this](int from, const std::string& text) {
      const std::lock_guard<std::mutex> lock(mutex_);
      answers[from] = text;
      changed_.notify_all();
    });
  });
  {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_until(lock, deadline, [&] { return answers.size() == ranks.size() || failure_; });
  }
  loop_->Run([&] { questions_.erase(number); });
  return answers;
}

Answers<std::string> ControlPlane::Ask(const std::vector<int>& ranks, uint64_t topic,
                                       const std::string& question, Clock::time_point deadline) {
  // Those through which the answers pass are asked too: one of them may have stopped.
  std::map<int, std::string> questions;
  for (const int r : ranks) {
    for (int at = r; at >= 0 && questions.try_emplace(at, question).second;) at = tree_.Parent(at);
  }
  const auto result = Await(Frame::Kind::kSurvey, {0}, topic, Pack(questions), deadline);
  Answers<std::string> answers;
  if (const auto survey = result.find(0); survey != result.end()) {
    answers.by_rank = Unpack(survey->second, size());
    for (const auto& [r, text] : questions) {
      if (r == rank() || answers.by_rank.contains(r)) continue;
      // Nothing is known of the ranks below a silent one.
      int above = tree_.Parent(r);
      while (above >= 0 && IndexOf(answers.silent, above) < 0) above = tree_.Parent(above);
      if (above < 0) answers.silent.push_back(r);
    }
  } else if (!failure()) {
    answers.silent = SilentAbove(topic, question);
  }
  const std::set<int> asked(ranks.begin(), ranks.end());
  std::erase_if(answers.by_rank, [&](const auto& answer) { return !asked.contains(answer.first); });
  // Known whatever rank 0 does.
  if (asked.contains(rank())) {
    loop_->Run([&] { answers.by_rank[rank()] = AnswerHere(topic, question); });
  }
  return answers;
}

// Rank 0 has not answered: which rank is to blame, of those between it and this one? None if they
// answer now, or the run has failed.
std::vector<int> ControlPlane::SilentAbove(uint64_t topic, const std::string& question) {
  std::vector<int> above;
  for (int r = tree_.Parent(rank()); r >= 0; r = tree_.Parent(r)) above.push_back(r);
  const auto answers =
      Await(Frame::Kind::kQuestion, above, topic, question, Clock::now() + kSurveyTime);
  const auto nearest =
      std::find_if(above.begin(), above.end(), [&](int r) { return !answers.contains(r); });
  if (nearest == above.end() || failure()) return {};
  return {*nearest};
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
  survey->number = Question(Frame::Kind::kQuestion, ranks, frame.topic, question,
                            [this, survey](int from, const std::string& answer) {
                              survey->answers[from] = answer;
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
