#include "dist/control/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <future>
#include <system_error>
#include <utility>

#include "dist/control/socket.h"

namespace lockstep::dist {

EventLoop::EventLoop()
    : epoll_(epoll_create1(EPOLL_CLOEXEC)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (epoll_.fd() < 0 || wake_.fd() < 0) {
    throw ConnectionError("the control plane cannot start: " + SystemErrorText(errno));
  }
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.fd = wake_.fd();
  epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, wake_.fd(), &event);
  thread_ = std::thread([this] { Loop(); });
}

EventLoop::~EventLoop() {
  Post([this] { stop_ = true; });
  thread_.join();
  WaitBlocking();
  if (blocking_thread_.joinable()) blocking_thread_.join();
  // What these own may cancel timers of its own.
  std::exchange(timers_, {}).clear();
  std::exchange(posted_, {}).clear();
}

void EventLoop::Post(Function f) {
  bool first;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    first = posted_.empty();
    posted_.push_back(std::move(f));
  }
  const uint64_t one = 1;
  if (first && !OnLoopThread()) [[maybe_unused]]
    const ssize_t n = write(wake_.fd(), &one, sizeof(one));
}

void EventLoop::Run(const Function& f) {
  std::promise<void> done;
  Post([&] {
    f();
    done.set_value();
  });
  done.get_future().wait();
}

void EventLoop::PostBlocking(Function f) {
  std::unique_lock<std::mutex> lock(blocking_mutex_);
  blocking_.push_back(std::move(f));
  if (std::exchange(runs_blocking_, true)) return;
  if (blocking_thread_.joinable()) blocking_thread_.join();  // it only has to return
  try {
    blocking_thread_ = std::thread([this] { RunBlocking(); });
  } catch (const std::system_error&) {  // there can be no thread: rather late than never
    lock.unlock();
    RunBlocking();
  }
}

void EventLoop::RunBlocking() {
  std::unique_lock<std::mutex> lock(blocking_mutex_);
  while (!blocking_.empty()) {
    Function f = std::move(blocking_.front());
    blocking_.pop_front();
    lock.unlock();
    f();
    f = nullptr;
    lock.lock();
  }
  runs_blocking_ = false;
  blocking_done_.notify_all();
}

void EventLoop::WaitBlocking() {
  std::unique_lock<std::mutex> lock(blocking_mutex_);
  blocking_done_.wait(lock, [this] { return !runs_blocking_; });
}

void EventLoop::Watch(int fd, uint32_t events, std::function<void(uint32_t)> on_events) {
  epoll_event event = {};
  event.events = events;
  event.data.fd = fd;
  const bool added =
      handlers_.insert_or_assign(fd, std::make_shared<Handler>(std::move(on_events))).second;
  epoll_ctl(epoll_.fd(), added ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &event);
}

void EventLoop::SetEvents(int fd, uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.fd = fd;
  epoll_ctl(epoll_.fd(), EPOLL_CTL_MOD, fd, &event);
}

void EventLoop::Forget(int fd) {
  handlers_.erase(fd);
  epoll_ctl(epoll_.fd(), EPOLL_CTL_DEL, fd, nullptr);
}

EventLoop::Timer EventLoop::After(Clock::duration delay, Function f) {
  const Clock::time_point time = Clock::now() + delay;
  const Timer timer = ++last_timer_;
  timers_.emplace(std::pair(time, timer), std::move(f));
  times_.emplace(timer, time);
  return timer;
}

void EventLoop::Cancel(Timer timer) {
  const auto found = times_.find(timer);
  if (found == times_.end()) return;
  timers_.erase({found->second, timer});
  times_.erase(found);
}

int EventLoop::TimeToNextTimer() const {
  if (timers_.empty()) return -1;
  const auto left = timers_.begin()->first.first - Clock::now();
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::clamp<int64_t>(ms, 0, 60'000));
}

void EventLoop::RunPosted() {
  std::vector<Function> posted;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    posted.swap(posted_);
  }
  for (const Function& f : posted) f();
}

void EventLoop::RunTimers() {
  const auto now = Clock::now();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    auto node = timers_.extract(timers_.begin());
    times_.erase(node.key().second);
    node.mapped()();
  }
}

void EventLoop::Loop() {
  std::array<epoll_event, 256> events;
  while (true) {
    bool more;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      more = !posted_.empty();
    }
    if (stop_ && !more) return;
    const int n = epoll_wait(epoll_.fd(), events.data(), static_cast<int>(events.size()),
                             more ? 0 : TimeToNextTimer());
    for (int i = 0; i < n; ++i) {
      const int fd = events[static_cast<size_t>(i)].data.fd;
      if (fd == wake_.fd()) {
        uint64_t count;
        [[maybe_unused]] const ssize_t read_bytes = read(fd, &count, sizeof(count));
        continue;
      }
      // One of this round's events may have forgotten another's descriptor.
      const auto found = handlers_.find(fd);
      if (found == handlers_.end()) continue;
      const std::shared_ptr<Handler> handler = found->second;
      (*handler)(events[static_cast<size_t>(i)].events);
    }
    // After the descriptors: if this process was stopped, first hear what was sent meanwhile.
    RunTimers();
    RunPosted();
  }
}

}  // namespace lockstep::dist
