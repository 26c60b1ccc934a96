// Who has a port.
#pragma once

#include <string>

namespace lockstep::dist {

// ", which process 1234 (python3) has", from /proc; empty where that cannot be seen.
std::string OwnerOfPort(int port);

}  // namespace lockstep::dist
