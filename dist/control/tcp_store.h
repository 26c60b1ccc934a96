// A store over TCP: rank 0 serves it, every rank is a client.
#pragma once

#include <memory>
#include <string>

#include "dist/control/store.h"

namespace lockstep::dist {

// Client and server prove to each other that they know the same secret (HMAC-SHA256 over nonces of
// both); what they say afterwards is neither encrypted nor authenticated. Without a secret anybody
// who reaches the port may write, so that it is required unless the address is of the loopback
// device.
struct TcpStoreAddress {
  std::string host = "127.0.0.1";
  int port = 0;
  std::string secret;
};

// Serves from a thread of its own until it is destroyed. At most 64 MiB of keys and values, 4096
// clients, and 10 s for a client to prove itself.
class TcpStoreServer {
 public:
  // Port 0 picks a free one. StoreError where the port is taken, naming by whom; ArgumentError
  // without a secret where one is needed.
  explicit TcpStoreServer(const TcpStoreAddress& address);
  ~TcpStoreServer();

  // With the port.
  const TcpStoreAddress& address() const { return address_; }

 private:
  class Loop;
  TcpStoreAddress address_;
  std::unique_ptr<Loop> loop_;
};

// Waits for the server up to `timeout`; StoreError with what to look at if it does not come or
// refuses.
std::unique_ptr<Store> ConnectTcpStore(const TcpStoreAddress& address,
                                       std::chrono::milliseconds timeout);

}  // namespace lockstep::dist
