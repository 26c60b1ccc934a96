// A store over TCP: rank 0 serves it, every rank is a client.
#pragma once

#include <memory>
#include <string>

#include "dist/control/store.h"

namespace lockstep::dist {

// Client and server prove to each other that they know the same secret (HMAC-SHA256 over both
// nonces); later messages are neither encrypted nor authenticated. Without a secret anybody who
// reaches the port could write, so one is required unless the address is a loopback address.
struct TcpStoreAddress {
  std::string host = "127.0.0.1";
  int port = 0;
  std::string secret;
};

// Serves from a thread of its own until it is destroyed. At most 64 MiB of keys and values, 4096
// clients, and 10 s for a client to prove itself.
class TcpStoreServer {
 public:
  // Port 0 picks a free port. Throws StoreError if the port is in use, naming the process, and
  // ArgumentError if a required secret is missing.
  explicit TcpStoreServer(const TcpStoreAddress& address);
  ~TcpStoreServer();

  // Includes the actual port.
  const TcpStoreAddress& address() const { return address_; }

 private:
  class Loop;
  TcpStoreAddress address_;
  std::unique_ptr<Loop> loop_;
};

// Waits for the server up to `timeout`. If it does not appear, or refuses, throws StoreError that
// says what to check.
std::unique_ptr<Store> ConnectTcpStore(const TcpStoreAddress& address,
                                       std::chrono::milliseconds timeout);

}  // namespace lockstep::dist
