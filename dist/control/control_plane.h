// How the processes of a run talk about the run: they meet, show that they are alive, pass
// messages, and all learn of the first failure.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dist/control/acceptor.h"
#include "dist/control/awake_clock.h"
#include "dist/control/claim.h"
#include "dist/control/event_loop.h"
#include "dist/control/failure.h"
#include "dist/control/link.h"
#include "dist/control/rank_tree.h"

namespace lockstep::dist {

// Work of one rank for which others wait (dist/groups/pause.h).
struct DeclaredPause {
  int rank = 0;
  std::string what;
  std::chrono::milliseconds age{0};
};
// "rank 0 has been writing a checkpoint for 31 s"
std::string Describe(const DeclaredPause& pause);

// What ranks answered to a question.
template <class T>
struct Answers {
  std::map<int, T> by_rank;
  // The ranks that are known not to answer. Where that is a rank on the way to the others, nothing
  // is known of these: they are in neither.
  std::vector<int> silent = {};
};
// Reads them by parse(text), which throws for what no rank writes: such answers are left out.
template <class T, class Parse>
Answers<T> Parsed(const Answers<std::string>& answers, const Parse& parse) {
  Answers<T> parsed{.by_rank = {}, .silent = answers.silent};
  for (const auto& [rank, text] : answers.by_rank) {
    try {
      parsed.by_rank.emplace(rank, parse(text));
    } catch (const std::exception&) {
    }
  }
  return parsed;
}
// "; rank 0 does not answer (...)", or "" for none.
std::string SilenceClause(const std::vector<int>& silent);

// The calls in which a rank has been waiting for a while, the longest first: of which group, and
// "all_reduce #7 (f32[8], sum) of bucket 1 ('wte.weight') in Backward".
struct RankWaits {
  int64_t reached = 0;  // the number of its last call in the group that was asked for
  std::vector<std::pair<std::string, std::string>> calls = {};
};
// Where ranks wait in different calls, "; rank 0 waits in ...; ranks 1 and 2 wait in ...", and what
// usually makes ranks wait for each other; else "".
std::string Describe(const Answers<RankWaits>& waits);

// The topic of that name.
uint64_t TopicOf(const std::string& name);

// Where the other ranks meet rank 0.
struct RootAddress {
  std::string host;  // numeric
  int port = 0;
  // All ranks know it; empty only where other users cannot connect.
  std::string secret;
  // Whether a program that does not know the secret may be another one than rank 0, which is then
  // elsewhere.
  bool uncertain = false;
};

// One rank's part of the control plane: a connection to its parent in the tree of ranks, those of
// its children, and a thread (the loop's), whatever the number of groups. How it works:
//
//   meeting     Every rank dials rank 0 and says who it is. When all are there, rank 0 tells each
//               its parent's address; ranks with other parents dial those, and leave rank 0. Once
//               all are attached, a word from rank 0 down the tree opens the plane.
//   life        Neighbours send each other a beat. A child whose connection ends, or is silent for
//               too long, is reported to rank 0; the children of such a rank see it themselves.
//   failure     The first one that rank 0 hears of counts. It goes down the tree, and every rank
//               stops with it.
//   messages    from any rank to any other, along the tree; questions, which the other rank's loop
//               answers, whatever its other threads do. Rank 0 asks for all who want to know.
//   pauses      A rank says that others wait for it, and why; all ranks know of the longest pause.
//   the end     A rank leaves after its children.
//
// Public functions may be called from any thread but the loop's, Send and Post* from any. Unless
// something else is said, callbacks run on the loop's thread, and must not block.
class ControlPlane {
 public:
  using Clock = EventLoop::Clock;
  using Milliseconds = std::chrono::milliseconds;
  // A message from rank `from`.
  using Handler = std::function<void(int from, uint64_t number, const std::string& body)>;

  struct Options {
    int rank = 0;
    Claim claim;
    // Where other ranks reach this one. The address and port of the last belong into the claim;
    // rank 0 may have another, at which the others look for it.
    std::vector<Socket> listeners = {};
    // Rank 0's address, as far as it is known now: called again for each attempt, and may block,
    // looking up a name. Throws ConnectionError if it is not yet known. On rank 0 it returns at
    // once, and only the secret is used.
    std::function<RootAddress()> root = {};
    // How long ranks wait for each other at the start.
    Milliseconds timeout = std::chrono::minutes(5);
    // A rank whose process is stopped or cut off is named within this time; 0: never.
    Milliseconds heartbeat = std::chrono::seconds(20);
    // For errors: what says a process's rank, and what to do if ranks did not come.
    std::string rank_variable = "RANK", hint = {};
    // Called once, when the plane is open, or when ranks cannot meet, with the reason.
    std::function<void(const std::string& refusal)> on_open = [](const std::string&) {};
    int fan_out = RankTree::kFanOut;
  };

  // Begins to meet the others. Several planes may share a loop (threads as ranks; tests of
  // thousands).
  ControlPlane(std::shared_ptr<EventLoop> loop, Options options);
  // Leaves: the end of this process is no failure any more, unless an exception destroys the plane.
  // While the run has not failed, waits for the ranks below this one in the tree to leave first,
  // because their messages pass here.
  ~ControlPlane();
  ControlPlane(const ControlPlane&) = delete;
  ControlPlane& operator=(const ControlPlane&) = delete;

  int rank() const { return options_.rank; }
  int size() const { return tree_.size(); }

  // Returns when the plane is open. Throws ConnectionError, on every rank that can be reached, if
  // ranks are missing at the end of the timeout (it lists them), if two processes claim the same
  // rank, or if ranks differ in world size or build; on this rank, if `gives_up`, asked several
  // times a second, says so.
  void WaitUntilOpen(const std::function<bool()>& gives_up = {});
  // Names this meeting of the ranks: the same on all of them, and never reused. Once it is open.
  const std::string& meeting() const { return meeting_; }

  // `topic` says whom it concerns. Messages between two ranks arrive in order. What arrives before
  // its topic has a handler waits for it.
  void Send(int to, uint64_t topic, uint64_t number, std::string body);
  // Sets the topic's handler. After Unsubscribe has returned, it is not called any more.
  void Subscribe(uint64_t topic, Handler handler);
  void Unsubscribe(uint64_t topic);

  // Sets how questions on a topic are answered here. After Unsubscribe has returned, it is not
  // called any more.
  using Responder = std::function<std::string(const std::string& question)>;
  bool Answer(uint64_t topic, Responder responder);
  // The answers of the ranks, this one included, "" from those that have set nobody to answer.
  // Silent are those that have not answered within a second, or the rank through which their
  // answers would have passed, which need not be one of `ranks`; if rank 0 has not passed on the
  // answers by the deadline, the rank that is to blame for that: itself, or one between. If the run
  // fails meanwhile, nobody is. The answers may be those that another rank is being given: up to a
  // second older than the call if a rank is slow to answer.
  Answers<std::string> Ask(const std::vector<int>& ranks, uint64_t topic,
                           const std::string& question, Clock::time_point deadline);

  // Connections that carry a group's data: from OpenData on, on_socket is called with each
  // connection to a rank for the topic, or with an empty one and a ConnectionError, why there can
  // be none: a NoDescriptorsError if that is for want of them in this process. The rank with the
  // higher number of the two calls DialData.
  using OnSocket = std::function<void(int rank, Socket socket, std::exception_ptr error)>;
  bool OpenData(uint64_t topic, OnSocket on_socket);
  void DialData(uint64_t topic, int rank);
  // on_socket is not called any more.
  void CloseData(uint64_t topic);

  // Runs `f` on the loop's thread.
  void Post(EventLoop::Function f) { loop_->Post(std::move(f)); }
  // Runs `f`, which may block for a while, on another thread. The end of the plane waits for it.
  void PostBlocking(EventLoop::Function f) { loop_->PostBlocking(std::move(f)); }

  // Makes `failure` the run's failure, unless there is one; returns the one that counts.
  Failure Fail(const Failure& failure);
  std::optional<Failure> failure() const;

  // Calls `f` once, when this rank learns of the run's failure, or at once, on this thread, if it
  // has. Returns a number for RemoveListener, after which `f` is not called.
  using Listener = std::function<void(const Failure&)>;
  int AddListener(Listener f);
  void RemoveListener(int number);
  // Calls `f` at that interval until RemoveListener.
  int Every(Milliseconds interval, std::function<void()> f);

  // This rank begins work for which others wait ("writing a checkpoint"), or has ended it. The
  // topic says who waits (0: everybody); of nested pauses with the same topic only the outermost
  // counts. The others are told once it has lasted for 50 ms, and never if it ends before.
  void BeginPause(const std::string& what, uint64_t topic = 0);
  void EndPause(uint64_t topic = 0);
  // The longest pause of any rank that has not ended, and for which those of the topic wait.
  std::optional<DeclaredPause> pause(uint64_t topic = 0) const;
  // Whether to tell the user now why ranks wait: at most once per `interval`.
  bool MayReportPause(Milliseconds interval);

  // This rank begins a call of the group, which may wait for others, or has ended it; or the group
  // ends.
  void BeginWait(const std::string& group, const Collective& call, const std::string& purpose);
  void EndWait(const std::string& group);
  void ForgetWaits(const std::string& group);
  // Where all ranks have waited for at least so long, as Ask answers.
  Answers<RankWaits> Waits(const std::string& group, Milliseconds least);
  // To be called now and then while this rank may wait in a call of the group, on the loop's
  // thread. Prints once that this rank waits, for whom, and in which calls these wait. Where they
  // may be busy, it prints this only once a run. It prints nothing during a pause.
  void LookAtWait(const std::string& group, const std::vector<int>& members, Milliseconds timeout);

  // Cuts all connections, as the end of the process does.
  void Cut();

  // Messages that this rank has sent, received or passed on, for tests.
  struct Traffic {
    int64_t received = 0, sent = 0;
  };
  Traffic traffic();

 private:
  enum class State { kMeeting, kAttaching, kOpen };
  struct Child {
    std::shared_ptr<Link> link;
    bool ready = false, left = false;
  };
  // A connection whose rank is not yet known, or that has joined and may become a child.
  struct Guest {
    std::shared_ptr<Link> link;
    int rank = -1;
    std::string meeting = {};  // that it wants to attach to
    uint64_t topic = 0;        // for which it is a data connection
  };
  // What to do with each answer to a question.
  using AnswerHandler = std::function<void(int from, const std::string& answer)>;
  struct OpenQuestion {
    size_t left;  // replies
    AnswerHandler handler;
  };
  // A question that rank 0 asks for others.
  struct Survey {
    uint64_t topic = 0, number = 0;  // of its question
    size_t left = 0;                 // replies
    EventLoop::Timer timer = 0;      // to end it without the others
    std::map<int, std::string> answers = {};
    std::optional<std::string> result = {};
    std::vector<std::pair<int, uint64_t>> askers = {};  // not yet told, and their numbers
  };
  struct Paused {
    int rank = 0;
    std::string what;
    Clock::time_point since;
    bool operator==(const Paused&) const = default;
  };
  // A group's last call.
  struct Wait {
    Collective call = {};
    std::string purpose = {};
    int64_t reached = 0;                               // its number, or of the last before
    std::optional<AwakeClock::time_point> since = {};  // none: it has ended
    AwakeClock::time_point look_at = {};               // the last time
    bool told = false;
  };
  // The pauses of one topic in this rank's subtree.
  struct PausesBelow {
    std::map<int, Paused> longest = {};  // of this rank, and below each child
    std::optional<Paused> told = {};     // of these, to the parent, or by rank 0 to all
    bool waits = false;                  // to tell what has changed
  };

  // Meeting (meeting.cc). The side that listens:
  void Begin();
  void Accept(Acceptor* acceptor);
  void Dismiss(uint64_t id);
  Guest& Name(uint64_t id, int rank);
  void AnswerAddress();
  void OnData(uint64_t id, const Frame& frame);
  void Give(uint64_t id, const OnSocket& on_socket);
  void Dial(uint64_t topic, int peer, const std::string& address, int attempts);
  void OnGuestFrame(uint64_t id, const Frame& frame);
  void OnGuestEnd(uint64_t id, const std::string& reason);
  void OnJoin(uint64_t id, const Frame& frame);
  void OnAttach(uint64_t id, const Frame& frame);
  void Welcome();
  void Adopt(int child, uint64_t id);
  // The side that dials:
  void DialRoot();
  void JoinAt(const RootAddress& root);
  void DialParent();
  void OnWelcome(const Frame& frame);
  void Retry(const std::string& obstacle, Link::Cause cause, void (ControlPlane::*dial)());
  std::string RootName() const;
  // Both:
  std::vector<int> MissingRanks() const;
  void TellMissing(Milliseconds waited);
  void OnDeadline();
  void Refuse(const std::string& reason);
  void CheckReady();
  void Open();

  Link::Handlers ParentHandlers(std::function<void()> on_open);
  void OnFrame(int neighbour, Frame frame);
  void Route(Frame frame);
  void Deliver(const Frame& frame);
  void SendTo(int neighbour, const Frame& frame);
  void SendUp(const Frame& frame);
  void Broadcast(const Frame& frame);
  void Beat();
  void OnLost(int neighbour, const std::string& reason);
  void OnFailed(const Failure& failure, int neighbour);
  void GiveUp(const std::string& reason);
  void SetFailure(const Failure& failure);
  void Leave();
  void CheckLeft();
  void Tick(int number, Milliseconds interval, const std::function<void()>& f);
  // Pauses (pauses.cc).
  static std::optional<Paused> ReadPause(const Frame& frame);
  void SetPause(int of, uint64_t topic, std::optional<Paused> pause);
  void TellPause(uint64_t topic);
  void OnPaused(const Frame& frame);
  // Waits (waits.cc).
  void AnswerWaits();
  void TellWait(const std::string& group, const std::vector<int>& members, Milliseconds timeout);
  // Questions (questions.cc).
  std::string AnswerHere(uint64_t topic, const std::string& question);
  void OnAnswer(const Frame& frame);
  uint64_t Question(Frame::Kind kind, const std::vector<int>& ranks, uint64_t topic,
                    const std::string& question, AnswerHandler handler);
  std::map<int, std::string> Await(Frame::Kind kind, const std::vector<int>& ranks, uint64_t topic,
                                   const std::string& question, Clock::time_point deadline);
  std::vector<int> SilentAbove(uint64_t topic, const std::string& question);
  void OnSurvey(const Frame& frame);
  void EndSurvey(const std::shared_ptr<Survey>& survey);
  void TellAskers(Survey& survey);
  EventLoop::Timer After(Milliseconds delay, std::function<void()> f);
  // Before the next attempt to connect: more and more, and at random.
  static Milliseconds RetryDelay(int attempts);
  Milliseconds BeatTime() const;
  Milliseconds Silence() const;

  const std::shared_ptr<EventLoop> loop_;
  Options options_;
  const RankTree tree_;
  const Clock::time_point deadline_;

  // Used on the loop's thread only.
  State state_ = State::kMeeting;
  bool cut_ = false;
  bool leaving_ = false, told_ = false;  // told_: the parent, that this rank leaves
  std::deque<Clock::time_point> beats_;  // of this rank: the last ones, since the plane opened
  int attempts_ = 0;
  std::string obstacle_;  // what keeps this rank from joining, as a sentence
  std::vector<std::unique_ptr<Acceptor>> acceptors_;
  std::string secret_, root_text_;
  uint64_t last_guest_ = 0;
  std::map<uint64_t, Guest> guests_;
  std::set<uint64_t> strangers_;  // the guests that have not said who they are, oldest first
  std::map<int, std::pair<Claim, uint64_t>> claims_;  // and the guest
  std::map<int, Child> children_;
  std::shared_ptr<Link> root_, parent_;  // root_: until this rank has reached its parent
  std::string parent_address_;
  int parent_port_ = 0;
  std::map<uint64_t, OnSocket> data_;
  std::map<std::pair<uint64_t, int>, std::shared_ptr<Link>> dialling_;  // by topic and rank
  std::set<EventLoop::Timer> timers_;
  std::unordered_map<uint64_t, Handler> handlers_;
  std::unordered_map<uint64_t, Responder> responders_;
  std::map<int, Listener> listeners_;
  std::set<int> ticking_;
  std::map<uint64_t, OpenQuestion> questions_;
  uint64_t last_question_ = 0;
  std::map<std::pair<uint64_t, std::string>, std::shared_ptr<Survey>> surveys_;
  std::deque<Frame> early_;
  std::map<uint64_t, PausesBelow> pauses_below_;  // by topic
  Traffic traffic_;

  std::atomic<int> last_listener_{0};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false, left_ = false;
  std::string meeting_;
  std::optional<Failure> failure_;
  std::map<uint64_t, int> pauses_here_;  // by topic, how many of this rank are nested
  std::map<uint64_t, Paused> pauses_;    // by topic, the longest of all ranks
  std::optional<Clock::time_point> last_report_;
  std::map<std::string, Wait> waits_;  // by group
  bool told_of_busy_ = false;          // a wait for ranks that may be busy
};

}  // namespace lockstep::dist
