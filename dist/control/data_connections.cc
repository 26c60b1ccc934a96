// ControlPlane: connections that carry a group's data. See control_plane.h.
#include <utility>

#include "dist/control/control_plane.h"

namespace lockstep::dist {
namespace {

// After some 5 s, a process without descriptors will not get one any more.
constexpr int kMostAttemptsForRoom = 24;

uint64_t AddressTopic() {
  static const uint64_t topic = TopicOf("address");
  return topic;
}

}  // namespace

void ControlPlane::AnswerAddress() {
  responders_[AddressTopic()] = [this](const std::string&) {
    return StrCat(options_.claim.address, " ", options_.claim.port);
  };
}

bool ControlPlane::OpenData(uint64_t topic, OnSocket on_socket) {
  bool is_new = false;
  loop_->Run([&] {
    is_new = data_.try_emplace(topic, on_socket).second;
    if (!is_new) return;
    std::vector<uint64_t> here;
    for (const auto& [id, guest] : guests_) {
      if (guest.topic == topic) here.push_back(id);
    }
    for (const uint64_t id : here) Give(id, on_socket);
  });
  return is_new;
}

void ControlPlane::CloseData(uint64_t topic) {
  loop_->Run([&] {
    data_.erase(topic);
    std::erase_if(dialling_, [topic](const auto& entry) {
      if (entry.first.first == topic) entry.second->Close();
      return entry.first.first == topic;
    });
    std::erase_if(guests_, [topic](const auto& guest) {
      if (guest.second.topic == topic) guest.second.link->Close();
      return guest.second.topic == topic;
    });
  });
}

// From a rank that has dialled. If its group is not yet here, it waits.
void ControlPlane::OnData(uint64_t id, const Frame& frame) {
  if (guests_.at(id).rank >= 0 || frame.topic == 0) return Dismiss(id);
  Name(id, frame.from).topic = frame.topic;
  const auto group = data_.find(frame.topic);
  if (group != data_.end()) Give(id, group->second);
}

void ControlPlane::Give(uint64_t id, const OnSocket& on_socket) {
  const Guest guest = guests_.at(id);
  guests_.erase(id);
  guest.link->Send({.kind = Frame::Kind::kGiven});
  if (guest.link->open()) on_socket(guest.rank, guest.link->TakeSocket(), nullptr);
}

void ControlPlane::DialData(uint64_t topic, int peer) {
  loop_->Post([this, topic, peer] {
    Question(Frame::Kind::kQuestion, {peer}, AddressTopic(), "",
             [this, topic, peer](int, const std::string& address) {
               if (!address.empty() && data_.contains(topic)) Dial(topic, peer, address, 1);
             });
  });
}

void ControlPlane::Dial(uint64_t topic, int peer, const std::string& address, int attempts) {
  const size_t space = address.rfind(' ');
  const int port = std::atoi(address.c_str() + std::min(space, address.size()));
  Link::Handlers handlers;
  const auto link = [this, key = std::pair(topic, peer)] { return dialling_.at(key); };
  handlers.on_open = [this, topic, link] {
    link()->AwaitLastFrame();
    link()->Send({.kind = Frame::Kind::kData, .from = rank(), .topic = topic});
  };
  handlers.on_frame = [this, topic, peer, link](const Frame& frame) {
    if (frame.kind != Frame::Kind::kGiven) return;
    Socket socket = link()->TakeSocket();
    dialling_.erase({topic, peer});
    data_.at(topic)(peer, std::move(socket), nullptr);
  };
  handlers.on_end = [=, this](const std::string& reason, Link::Cause cause) {
    dialling_.erase({topic, peer});
    const OnSocket& on_socket = data_.at(topic);
    if (cause == Link::Cause::kNoDescriptors) {
      return on_socket(peer, Socket(), std::make_exception_ptr(NoDescriptorsError(reason)));
    }
    if (cause == Link::Cause::kHopeless ||
        (cause == Link::Cause::kNoRoom && attempts >= kMostAttemptsForRoom)) {
      return on_socket(peer, Socket(), std::make_exception_ptr(ConnectionError(reason)));
    }
    After(RetryDelay(attempts), [=, this] {
      if (data_.contains(topic)) Dial(topic, peer, address, attempts + 1);
    });
  };
  dialling_[{topic, peer}] =
      Link::Dial(*loop_, address.substr(0, space), port, secret_, std::move(handlers));
}

}  // namespace lockstep::dist
