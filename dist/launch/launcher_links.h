// Connections between the launchers of an elastic run: from those of all machines to the first's.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dist/control/acceptor.h"
#include "dist/control/event_loop.h"
#include "dist/control/link.h"

namespace lockstep::dist {

// Texts in both directions, in order, between launchers that know the same secret. A machine whose
// launcher is silent for kSilence has gone: it sees the silence, too, and ends its ranks by itself,
// for which the first machine's launcher waits a little longer.
class LauncherLinks {
 public:
  static constexpr std::chrono::seconds kSilence{6}, kFence{2};

  struct News {
    int node = 0;  // from which machine
    std::string text{};
    bool gone = false;     // the machine is; the text says why
    bool refused = false;  // and is there, but does not take this one
  };

  // The first machine's side. Listens on the port, on all addresses. Throws ConnectionError.
  LauncherLinks(const std::string& address, int port, const std::string& secret);
  // Another machine's. Tries for `patience` to reach the first one; then that has gone.
  LauncherLinks(const std::string& host, int port, const std::string& secret, int node,
                std::chrono::seconds patience);
  // What was sent leaves, if the other side takes it within a second.
  ~LauncherLinks();
  LauncherLinks(const LauncherLinks&) = delete;
  LauncherLinks& operator=(const LauncherLinks&) = delete;

  // Readable when there is something to Take.
  int fd() const { return event_.fd(); }
  std::vector<News> Take();
  // To a machine; nothing if it has gone.
  void Send(int node, const std::string& text);
  // The address of this machine by which it reaches the first one.
  static std::string OwnAddress(const std::string& host, int port);

 private:
  void Tell(News news);
  void Accept();
  void Dial();
  void Beat();
  Link::Handlers Handlers(uint64_t guest);
  void OnFrame(uint64_t guest, const Frame& frame);
  void OnEnd(uint64_t guest, const std::string& reason);

  const FileDescriptor event_;
  const std::string secret_;
  const std::string host_;  // of the first machine, for another
  const int port_ = 0, node_ = 0;
  const std::chrono::steady_clock::time_point deadline_;

  // Used on the loop's thread only.
  std::unique_ptr<Acceptor> acceptor_;
  std::map<uint64_t, std::shared_ptr<Link>> links_;
  std::map<int, uint64_t> by_node_;
  uint64_t last_ = 0;
  bool refused_ = false;

  std::mutex mutex_;
  std::vector<News> news_;
  EventLoop loop_;  // its thread ends first
};

}  // namespace lockstep::dist
