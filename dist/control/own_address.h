// Where the other ranks of a run reach this one.
#pragma once

#include <chrono>
#include <string>

#include "dist/control/rendezvous.h"

namespace lockstep::dist {

struct OwnAddress {
  std::string address;  // numeric
  std::string why;      // "LOCKSTEP_INTERFACE names eth0"
};

// That of the interface in LOCKSTEP_INTERFACE, or else the one from which this machine reaches rank
// 0's, whose name may become known only after a while: until the deadline. Throws ConnectionError.
OwnAddress ChooseAddress(const Rendezvous& r, std::chrono::steady_clock::time_point deadline);

// Whether other machines know another address of rank 0's, which is this one.
bool IsElsewhereToOthers(const Rendezvous& r);

}  // namespace lockstep::dist
