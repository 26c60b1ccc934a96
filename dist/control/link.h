// A connection of the control plane.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "dist/control/event_loop.h"
#include "dist/control/frame.h"
#include "dist/control/handshake.h"
#include "dist/control/socket.h"

namespace lockstep::dist {

// Frames in both directions, after both sides have proved to each other that they know the same
// secret (dist/control/handshake.h; what follows is neither encrypted nor authenticated). Lives
// on a loop's thread; only there may it be used and released. A peer that breaks the protocol, does
// not prove itself in time, or leaves 64 MiB unread is cut off.
class Link : public std::enable_shared_from_this<Link> {
 public:
  // Why a link has ended.
  enum class Cause {
    kEnded,          // dialling again may help
    kNoRoom,         // the listener's process has no descriptor left
    kHopeless,       // the listener does not know the secret, or refuses this side
    kNoDescriptors,  // this process has no descriptor left
  };
  struct Handlers {
    // Both sides have proved themselves.
    std::function<void()> on_open = [] {};
    std::function<void(Frame)> on_frame;
    // The connection has ended, for this reason; called once, and not after Close.
    std::function<void(const std::string& reason, Cause cause)> on_end;
  };

  // The side that listens.
  static constexpr std::chrono::seconds kPatience{10};
  static std::shared_ptr<Link> Accept(EventLoop& loop, Socket socket, const std::string& secret,
                                      Handlers handlers);
  // The other side. Returns at once; on_end also says why a connection was not made. The host is an
  // address, not a name, since looking up a name would block the loop. `patience`: for the proof.
  static std::shared_ptr<Link> Dial(EventLoop& loop, const std::string& host, int port,
                                    const std::string& secret, Handlers handlers,
                                    EventLoop::Clock::duration patience = kPatience);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  void SetHandlers(Handlers handlers);
  // The connection itself, for other messages; the link has ended then. The side that takes it
  // first says so by a frame without a body, its last one; the other has called AwaitLastFrame
  // before, and sends nothing until then.
  Socket TakeSocket();
  void AwaitLastFrame() { one_frame_ = true; }
  // A frame that is too long ends the link.
  void Send(const Frame& frame);
  // Ends the connection once what was sent has left, if the peer takes it within a second.
  void Close();
  // When something last arrived.
  EventLoop::Clock::time_point heard() const { return heard_; }
  bool open() const { return state_ == State::kOpen; }

 private:
  enum class State { kConnecting, kAwaitsHello, kAwaitsProof, kAwaitsMac, kOpen, kClosing, kEnded };
  Link(EventLoop& loop, Socket socket, std::string secret, State state, Handlers handlers);

  void Begin(EventLoop::Clock::duration patience);
  void OnEvents(uint32_t events);
  bool Receive();
  void Read();
  bool Greet();
  void Flush();
  void End(const std::string& reason, Cause cause = Cause::kEnded);
  void Release();
  std::string NoAnswer() const;
  template <class T>
  bool Take(T* value);
  template <class T>
  void Put(const T& value);

  EventLoop& loop_;
  Socket socket_;
  const std::string secret_;
  State state_;
  std::shared_ptr<const Handlers> handlers_;  // shared, because a handler may replace them
  Endpoint listener_ = {};
  handshake::Nonce nonce_ = {};
  handshake::Proof proof_;
  EventLoop::Clock::time_point heard_;
  EventLoop::Timer timer_ = 0;
  std::string in_, out_;
  size_t sent_ = 0;  // of out_
  bool writes_ = false;
  bool one_frame_ = false;  // the bytes after it are not the link's
};

}  // namespace lockstep::dist
