// Worlds whose ranks are threads of the test, each with a control plane of its own, as processes
// have.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "dist/world.h"

namespace lockstep::dist {

int FreePort();

// As a launcher says it, at this port of the loopback device.
Rendezvous RendezvousOf(int rank, int size, int port);

// Runs `body` on a thread for each rank of one world; returns their errors, "" for none.
std::vector<std::string> InWorld(int size, const std::function<void(World&)>& body,
                                 const WorldOptions& options = {
                                     .timeout = std::chrono::seconds(120)});

}  // namespace lockstep::dist
