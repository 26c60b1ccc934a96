// Messages over TCP, by Gloo.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "dist/control/store.h"
#include "dist/groups/transport.h"

namespace lockstep::dist {

struct GlooAddress {
  // A network interface ("eth0"); if empty, `host`, an address of this machine, counts.
  std::string interface;
  std::string host = "127.0.0.1";
};

// Connects every pair of ranks; collective. Its keys in the store begin with `name`, which must be
// unique. Throws StoreError if the ranks do not connect in time.
std::unique_ptr<Transport> MakeGlooTransport(Store& store, const std::string& name, int rank,
                                             int size, const GlooAddress& address,
                                             std::chrono::milliseconds timeout);

}  // namespace lockstep::dist
