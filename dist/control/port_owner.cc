#include "dist/control/port_owner.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "core/error.h"

namespace lockstep::dist {
namespace {

namespace fs = std::filesystem;

// Inodes of the sockets that listen on the port: /proc/net/tcp, columns 2 (address:port in hex), 4
// (state; 0A listens) and 10.
std::set<std::string> ListeningInodes(int port) {
  std::set<std::string> inodes;
  for (const char* const table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string word[10];
      for (std::string& w : word) words >> w;
      const size_t colon = word[1].rfind(':');
      if (colon == std::string::npos || word[3] != "0A") continue;
      if (std::stoi(word[1].substr(colon + 1), nullptr, 16) == port) inodes.insert(word[9]);
    }
  }
  return inodes;
}

bool HasSocket(const fs::path& process, const std::set<std::string>& inodes) {
  // Ignore errors: processes end, and those of other users hide their descriptors.
  std::error_code error;
  for (fs::directory_iterator fd(process / "fd", error), end; !error && fd != end;
       fd.increment(error)) {
    std::error_code closed;
    const std::string target = fs::read_symlink(fd->path(), closed);
    if (target.rfind("socket:[", 0) == 0 &&
        inodes.count(target.substr(8, target.size() - 9)) != 0) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::string OwnerOfPort(int port) {
  const std::set<std::string> inodes = ListeningInodes(port);
  std::error_code error;
  for (fs::directory_iterator process("/proc", error), end; !error && process != end;
       process.increment(error)) {
    const std::string pid = process->path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    if (!HasSocket(process->path(), inodes)) continue;
    std::ifstream file(process->path() / "comm");
    std::string name;
    std::getline(file, name);
    return StrCat(", which process ", pid, " (", name, ") is using");
  }
  return "";
}

}  // namespace lockstep::dist
