// Finds the process that listens on a port.
#pragma once

#include <string>

namespace lockstep::dist {

// ", which process 1234 (python3) is using", from /proc; empty if it cannot be found out.
std::string OwnerOfPort(int port);

}  // namespace lockstep::dist
