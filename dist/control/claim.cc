#include "dist/control/claim.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <limits>

#include "core/io/file.h"
#include "core/io/json.h"
#include "dist/content_hash.h"
#include "dist/control/socket.h"

namespace lockstep::dist {
namespace {

// So that ranks of different builds are detected at the start.
const std::string& BuildId() {
  static const std::string id = [] {
    try {
      const std::string file = ReadFile("/proc/self/exe");
      return StrCat(HashBytes(std::as_bytes(std::span(file))));
    } catch (const Error&) {
      return std::string();  // unknown: not compared
    }
  }();
  return id;
}

}  // namespace

Claim Claim::Of(int size) {
  static std::atomic<int> meetings{0};
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  Claim claim{size, HostName(), BuildId(), "", getpid()};
  claim.meeting = StrCat(claim.host, "/", claim.process, "/", ++meetings, "/",
                         std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
  return claim;
}

std::optional<Claim> Claim::Parse(const std::string& text) {
  try {
    const Json j = TryParseJson(text);
    constexpr int kMost = std::numeric_limits<int>::max();
    return Claim{static_cast<int>(IntegerOf(j.at("size"), 0, kMost)),
                 j.at("host").get<std::string>(),
                 j.at("build").get<std::string>(),
                 j.at("meeting").get<std::string>(),
                 IntegerOf(j.at("process")),
                 j.at("address").get<std::string>(),
                 static_cast<int>(IntegerOf(j.at("port"), 0, 65535))};
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::string Claim::ToText() const {
  return Json{{"size", size},       {"host", host},       {"build", build}, {"meeting", meeting},
              {"process", process}, {"address", address}, {"port", port}}
      .dump();
}

std::string Claim::Who() const { return StrCat("process ", process, " on ", host); }

std::string Contradiction(int rank, const Claim& claim, int other_rank, const Claim& other) {
  if (claim.size != other.size) {
    return StrCat("ranks disagree on the world size: it is ", claim.size, " on rank ", rank,
                  " and ", other.size, " on rank ", other_rank,
                  "; set the same world size for all");
  }
  if (claim.build != other.build && !claim.build.empty() && !other.build.empty()) {
    return StrCat("rank ", other_rank, " on ", other.host,
                  " runs a different build of the program than rank ", rank, " on ", claim.host,
                  ": copy the same file to all machines");
  }
  return "";
}

}  // namespace lockstep::dist
