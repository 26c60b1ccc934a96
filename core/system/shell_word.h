// Commands that are printed to be copied.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// The text as one word of a shell's command line: as it is, or in single quotes if the shell would
// split or change it ("my run" -> 'my run').
std::string ShellWord(std::string_view text);

}  // namespace lockstep
