#include "dist/control/own_address.h"

#include <thread>

#include "core/system/environment.h"
#include "dist/control/socket.h"

namespace lockstep::dist {

bool IsElsewhereToOthers(const Rendezvous& r) {
  return r.local_world_size < r.world_size && IsOwnName(r.master_addr);
}

OwnAddress ChooseAddress(const Rendezvous& r, std::chrono::steady_clock::time_point deadline) {
  const auto interface = EnvironmentVariable("LOCKSTEP_INTERFACE");
  if (interface) {
    return {AddressOfInterface(*interface), StrCat("LOCKSTEP_INTERFACE names ", *interface)};
  }
  while (true) {
    try {
      if (IsElsewhereToOthers(r)) {
        return {OutwardAddress(), StrCat("it has this machine's default route, as the name ",
                                         r.master_addr, " is one of the loopback device here")};
      }
      return {AddressTowards(r.master_addr, r.master_port),
              StrCat("it has the route to rank 0 at ", r.master_addr)};
    } catch (const NoDescriptorsError&) {
      throw;
    } catch (const ConnectionError&) {
      if (std::chrono::steady_clock::now() > deadline) throw;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

}  // namespace lockstep::dist
