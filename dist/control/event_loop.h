// Descriptors, timers and posted functions, served by one thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "dist/control/file_descriptor.h"

namespace lockstep::dist {

// An epoll loop: what an event costs does not depend on how many descriptors are watched. Its
// thread runs everything: other threads may call only what posts. The functions that it runs must
// neither block nor throw.
class EventLoop {
 public:
  using Clock = std::chrono::steady_clock;
  using Function = std::function<void()>;
  // Identifies a timer; 0 is none.
  using Timer = uint64_t;

  // Throws ConnectionError if the system has no descriptor left.
  EventLoop();
  // Runs what was posted before, then ends the thread. Not from the loop's own thread.
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Runs `f` on the loop's thread, after everything posted earlier.
  void Post(Function f);
  // The same, and returns when `f` has run. Not from the loop's thread.
  void Run(const Function& f);
  // Runs `f`, which may block, on another thread, after everything that was posted so earlier; that
  // thread lives only while there is something to do. From any thread.
  void PostBlocking(Function f);
  // Returns when what was posted so has run.
  void WaitBlocking();

  // Calls on_events(EPOLLIN, EPOLLOUT, ... as they are) whenever there are any of `events`; an
  // error or the end of a connection always counts. Watching a descriptor again changes `events`.
  void Watch(int fd, uint32_t events, std::function<void(uint32_t)> on_events);
  void SetEvents(int fd, uint32_t events);
  // Call it before the descriptor is closed.
  void Forget(int fd);

  Timer After(Clock::duration delay, Function f);
  // Also for timers that have fired, and 0.
  void Cancel(Timer timer);

  bool OnLoopThread() const { return std::this_thread::get_id() == thread_.get_id(); }

 private:
  using Handler = std::function<void(uint32_t)>;
  void Loop();
  void RunPosted();
  void RunTimers();
  void RunBlocking();
  int TimeToNextTimer() const;

  FileDescriptor epoll_, wake_;
  // Shared, because a handler may forget itself.
  std::unordered_map<int, std::shared_ptr<Handler>> handlers_;
  std::map<std::pair<Clock::time_point, Timer>, Function> timers_;
  std::unordered_map<Timer, Clock::time_point> times_;
  Timer last_timer_ = 0;
  std::mutex mutex_;
  std::vector<Function> posted_;
  bool stop_ = false;
  std::thread thread_;

  std::mutex blocking_mutex_;
  std::condition_variable blocking_done_;
  std::deque<Function> blocking_;
  bool runs_blocking_ = false;
  std::thread blocking_thread_;
};

}  // namespace lockstep::dist
