// How this program was started, and what it writes to.
#pragma once

#include <string>

#include "core/system/environment.h"

namespace lockstep::models {

// The command that runs the program with this label, "//models:sample_gpt": through Bazel if it
// runs this process; else the file beside this program or, where this one lies in a folder of
// Bazel's, "bazel-bin/tools", that in the folder of its package. `called`: the first word of this
// program's command line.
std::string CommandOf(const std::string& label, const Environment& environment,
                      const std::string& called);
// For this process.
std::string CommandOf(const std::string& label);
// The width of the terminal on stdout, else $COLUMNS, else 100.
int TerminalColumns();
// `bazel run` starts a program in a folder of its own. Call this first in main: it changes to the
// folder where the user typed the command, so that relative paths mean what they say.
void EnterInvocationFolder();

// IoError unless all that was written to standard output has arrived: on a full disk, for example.
void CheckOutput();

}  // namespace lockstep::models
