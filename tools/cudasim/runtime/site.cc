#include "site.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

extern "C" void __sanitizer_symbolize_pc(void* pc, const char* format, char* out, size_t size)
    __attribute__((weak));

namespace cudasim::runtime {
namespace {

// A call's return address is after the call, possibly on the next line.
void* CallOf(void* return_address) { return static_cast<char*>(return_address) - 1; }

// "Function at file:line" for addresses in one executable or library; empty if addr2line fails.
std::string Addr2Line(const char* module, const std::vector<std::string>& offsets) {
  int ends[2];
  if (pipe(ends) != 0) return {};
  std::vector<const char*> arguments = {"addr2line", "-C", "-f", "-p", "-s", "-e", module};
  for (const std::string& offset : offsets) arguments.push_back(offset.c_str());
  arguments.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    close(STDERR_FILENO);
    execvp(arguments[0], const_cast<char* const*>(arguments.data()));
    _exit(127);
  }
  close(ends[1]);
  std::string output;
  char buffer[1024];
  ssize_t got = 0;
  while (child > 0 && (got = read(ends[0], buffer, sizeof(buffer))) > 0) output.append(buffer, got);
  close(ends[0]);
  int status = 1;
  if (child > 0) waitpid(child, &status, 0);
  return status == 0 ? output : std::string();
}

bool IsOfTheSimulator(const std::string& line) {
  return line.find("cudasim::") != std::string::npos || line.rfind("    cuda", 0) == 0;
}

// Drops the callers of main, and the simulator's own calls at the top.
std::string Trim(const std::vector<std::string>& lines) {
  std::string text;
  bool inside = true;
  for (const std::string& line : lines) {
    inside = inside && IsOfTheSimulator(line);
    if (inside) continue;
    if (line.find("__libc_start") != std::string::npos || line.rfind("    _start", 0) == 0) break;
    text += line + "\n";
  }
  return text;
}

}  // namespace

Site CaptureSite() {
  Site site;
  site.count = backtrace(site.frames, Site::kFrames);
  return site;
}

std::string Describe(const Site& site) {
  std::vector<std::string> lines;
  // Consecutive frames of the same module are one call of addr2line.
  for (int i = 1; i < site.count;) {
    if (&__sanitizer_symbolize_pc != nullptr) {
      char buffer[1024];
      __sanitizer_symbolize_pc(CallOf(site.frames[i]), "%f at %s:%l", buffer, sizeof(buffer));
      lines.push_back("    " + std::string(buffer));
      ++i;
      continue;
    }
    Dl_info info;
    if (dladdr(CallOf(site.frames[i]), &info) == 0 || info.dli_fname == nullptr) {
      ++i;
      continue;
    }
    const void* const base = info.dli_fbase;
    const std::string module = info.dli_fname;
    std::vector<std::string> offsets;
    while (i < site.count && dladdr(CallOf(site.frames[i]), &info) != 0 && info.dli_fbase == base) {
      char offset[32];
      std::snprintf(offset, sizeof(offset), "0x%zx",
                    static_cast<size_t>(static_cast<char*>(CallOf(site.frames[i])) -
                                        static_cast<const char*>(base)));
      offsets.emplace_back(offset);
      ++i;
    }
    std::istringstream text(Addr2Line(module.c_str(), offsets));
    std::string line;
    bool any = false;
    while (std::getline(text, line)) {
      any = true;
      lines.push_back("    " + line);
    }
    if (!any) {
      for (const std::string& offset : offsets) lines.push_back("    " + module + " + " + offset);
    }
  }
  return Trim(lines);
}

}  // namespace cudasim::runtime
