#include "models/options/invocation.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/error.h"

namespace lockstep::models {

std::string CommandOf(const std::string& program, const Environment& environment,
                      const std::string& called) {
  if (environment.count("BUILD_WORKSPACE_DIRECTORY")) {
    return "bazel run -c opt //models:" + program + " --";
  }
  return called.substr(0, called.rfind('/') + 1) + program;  // npos + 1 is 0
}

int TerminalColumns() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const char* columns = std::getenv("COLUMNS");
  const int number = columns ? std::atoi(columns) : 0;
  return number > 0 ? number : 100;
}

void EnterInvocationFolder() {
  const char* folder = std::getenv("BUILD_WORKING_DIRECTORY");
  if (folder && chdir(folder) != 0)
    throw InputError(StrCat("cannot enter the folder ", folder,
                            " of BUILD_WORKING_DIRECTORY: unset the variable"));
}

void CheckOutput() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  throw IoError(StrCat("standard output could not be written to its end: ", std::strerror(errno)));
}

}  // namespace lockstep::models
