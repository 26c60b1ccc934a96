#include "dist/launch/member_messages.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "core/io/json.h"

namespace lockstep::dist {

std::string ToLine(const MemberReady& ready) {
  auto held = Json::array();
  for (const HeldParts& h : ready.held) held.push_back({h.epoch, h.step, h.of, h.parts});
  return Json{{"ready",
               {{"epoch", ready.epoch},
                {"step", ready.step},
                {"port", ready.port},
                {"lost", ready.lost},
                {"stop_ms", ready.stop_ms},
                {"leave_ms", ready.leave_ms},
                {"sizes", ready.sizes},
                {"held", held}}}}
             .dump() +
         "\n";
}

std::string ToLine(const MemberPlace& p) {
  return Json{{"place",
               {{"epoch", p.epoch},
                {"rank", p.rank},
                {"size", p.size},
                {"local_rank", p.local_rank},
                {"local_size", p.local_size},
                {"address", p.address},
                {"port", p.port},
                {"news", p.news}}}}
             .dump() +
         "\n";
}

std::string ToLine(const std::string& kind, const std::string& text) {
  return Json{{kind, text}}.dump() + "\n";
}

MemberReady ReadyOf(const Json& j) {
  std::vector<HeldParts> held;
  for (const auto& h : j.at("held")) {
    held.push_back({.epoch = h.at(0).get<int64_t>(),
                    .step = h.at(1).get<int64_t>(),
                    .of = h.at(2).get<int>(),
                    .parts = h.at(3).get<std::vector<int>>()});
  }
  return {.epoch = j.at("epoch").get<int64_t>(),
          .step = j.at("step").get<int64_t>(),
          .port = j.at("port").get<int>(),
          .lost = j.at("lost").get<std::vector<int>>(),
          .stop_ms = j.at("stop_ms").get<int64_t>(),
          .leave_ms = j.at("leave_ms").get<int64_t>(),
          .sizes = j.at("sizes").get<std::vector<int>>(),
          .held = std::move(held)};
}

MemberPlace PlaceOf(const Json& j) {
  return {.epoch = j.at("epoch").get<int64_t>(),
          .rank = j.at("rank").get<int>(),
          .size = j.at("size").get<int>(),
          .local_rank = j.at("local_rank").get<int>(),
          .local_size = j.at("local_size").get<int>(),
          .address = j.at("address").get<std::string>(),
          .port = j.at("port").get<int>(),
          .news = j.at("news").get<std::string>()};
}

std::optional<std::string> TakeLine(std::string* begun) {
  const size_t end = begun->find('\n');
  if (end == std::string::npos) return std::nullopt;
  std::string line = begun->substr(0, end);
  begun->erase(0, end + 1);
  return line;
}

// A line fits into a socket's buffer, and neither side leaves many unread.
bool SendLine(int fd, const std::string& line) {
  ssize_t n = 0;
  while ((n = send(fd, line.data(), line.size(), MSG_NOSIGNAL)) < 0 && errno == EINTR) {
  }
  return n == static_cast<ssize_t>(line.size());
}

}  // namespace lockstep::dist
