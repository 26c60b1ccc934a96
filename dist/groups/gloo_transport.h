// Messages over TCP, by Gloo.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "dist/control/store.h"
#include "dist/groups/transport.h"

namespace lockstep::dist {

struct GlooAddress {
  // A network interface ("eth0"), or else an address of this machine.
  std::string interface;
  std::string host = "127.0.0.1";
};

// Connects each rank with each other one; collective. Keys of the store begin with `name`, which no
// other transport has. StoreError if the ranks do not connect in time.
std::unique_ptr<Transport> MakeGlooTransport(Store& store, const std::string& name, int rank,
                                             int size, const GlooAddress& address,
                                             std::chrono::milliseconds timeout);

}  // namespace lockstep::dist
