#include "dist/launch/membership.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <chrono>

#include "core/error.h"
#include "core/io/json.h"
#include "core/system/environment.h"
#include "dist/launch/launcher.h"
#include "dist/launch/launcher_links.h"
#include "dist/launch/member_messages.h"
#include "dist/launch/rank_process.h"

namespace lockstep::dist {

Membership::Membership(FileDescriptor launcher) : launcher_(std::move(launcher)) {}

Membership::~Membership() = default;

std::unique_ptr<Membership> Membership::Find() {
  const auto fd = EnvironmentVariable(RankProcess::kMemberVariable);
  if (!fd) return nullptr;
  FileDescriptor launcher(std::stoi(*fd));
  fcntl(launcher.fd(), F_SETFD, FD_CLOEXEC);
  auto membership = std::make_unique<Membership>(std::move(launcher));
  const Rendezvous r = ReadRendezvous();
  if (r.world_size > r.local_world_size) membership->WatchLauncher();
  return membership;
}

// Other machines take a launcher that is silent for so long for gone, with its processes, and go
// on. One that is stopped cannot end them.
void Membership::WatchLauncher() {
  watch_ = std::jthread([launcher = getppid()](const std::stop_token& stop) {
    using Clock = std::chrono::steady_clock;
    for (auto seen = Clock::now(); !stop.stop_requested();) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      if (!IsSuspended(launcher)) seen = Clock::now();
      if (Clock::now() - seen > LauncherLinks::kSilence) raise(SIGKILL);
    }
  });
}

std::optional<Membership::Place> Membership::Join(MemberReady ready) {
  port_ = std::make_unique<ReservedPort>();
  ready.epoch = epoch_;
  ready.port = port_->port();
  if (refusal_) throw Error(*refusal_);
  if (over_) return std::nullopt;
  SendLine(launcher_.fd(), ToLine(ready));
  while (const auto line = NextLine(/*timeout_ms=*/-1)) {
    Note(TryParseJson(*line));
    if (refusal_) throw Error(*refusal_);
    if (over_) return std::nullopt;
    if (!place_) continue;
    const MemberPlace place = *std::exchange(place_, std::nullopt);
    summoned_ = broken_ = false;
    epoch_ = place.epoch;
    Rendezvous r = ReadRendezvous();
    r.rank = place.rank;
    r.world_size = place.size;
    r.local_rank = place.local_rank;
    r.local_world_size = place.local_size;
    r.master_addr = place.address;
    r.master_port = place.port;
    // A process that sleeps through a world cannot enter a later one.
    r.run_id = StrCat("world ", place.epoch);
    return Place{r, place.epoch, place.news};
  }
  throw Error("the launcher has ended");
}

void Membership::Note(const Json& message) {
  if (message.contains("refused")) refusal_ = message.at("refused").get<std::string>();
  if (message.contains("place")) place_ = PlaceOf(message.at("place"));
  over_ |= message.contains("over");
  summoned_ |= message.contains("summoned");
  broken_ |= message.contains("broken");
}

void Membership::Hear() {
  while (const auto line = NextLine(/*timeout_ms=*/0)) Note(TryParseJson(*line));
}

// The launcher's end is no matter: the kernel then kills this process.
std::optional<std::string> Membership::NextLine(int timeout_ms) {
  for (;;) {
    if (auto line = TakeLine(&begun_)) return line;
    pollfd fd = {launcher_.fd(), POLLIN, 0};
    if (poll(&fd, 1, timeout_ms) <= 0) return std::nullopt;
    std::array<char, 4096> buffer;
    const ssize_t n = read(launcher_.fd(), buffer.data(), buffer.size());
    if (n <= 0) return std::nullopt;
    begun_.append(buffer.data(), static_cast<size_t>(n));
  }
}

}  // namespace lockstep::dist
