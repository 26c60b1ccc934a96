#include "models/options/invocation.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/error.h"

namespace lockstep::models {

std::string CommandOf(const std::string& label, const Environment& environment,
                      const std::string& called) {
  if (environment.count("BUILD_WORKSPACE_DIRECTORY")) return "bazel run -c opt " + label + " --";
  const size_t colon = label.find(':');
  const std::string package = label.substr(2, colon - 2), program = label.substr(colon + 1);
  std::string folder = called.substr(0, called.rfind('/') + 1);  // npos + 1 is 0
  for (const std::string of_bazel : {"models/", "tools/"}) {
    const bool whole = folder == of_bazel || folder.ends_with("/" + of_bazel);
    if (!whole) continue;
    folder = folder.substr(0, folder.size() - of_bazel.size()) + package + "/";
    break;
  }
  return folder + program;
}

std::string CommandOf(const std::string& label) {
  return CommandOf(label, ProcessEnvironment(), program_invocation_name);
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
