// How a connection begins: each side proves to the other that it knows the run's secret
// (HMAC-SHA256 over the listener's address and both nonces). Both run on x86-64.
//
//   listener: Hello     dialler: Proof     listener: its own proof
//
// The address is the one that was dialled, for the dialler, and the one that the connection was
// accepted at, for the listener. Without it, a program that listens where ranks look for rank 0
// (another user's, at MASTER_PORT) could pass the proofs on to rank 0 and back, and then say what
// it likes to both. It cannot do so at the address at which rank 0 itself listens. The price: where
// something between the machines changes addresses (DNAT, a proxy), ranks refuse each other: there
// MASTER_ADDR must be an address that rank 0's own machine has, as those must be at which ranks
// reach each other. The dialler's address is left out, because masquerading may well change it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "dist/control/socket.h"

namespace lockstep::dist::handshake {

inline constexpr uint64_t kMagic = 0x31454e414c50534cu;  // "LSPLANE1"
// The listener turns this dialler away: see Hello::limit.
inline constexpr uint64_t kNoRoomMagic = 0x4d4f4f524f4e534cu;  // "LSNOROOM"

using Nonce = std::array<std::byte, 32>;
using Mac = std::array<std::byte, 32>;

struct Hello {
  uint64_t magic = kMagic;
  Nonce nonce = {};
  // With kNoRoomMagic: the descriptor limit of the listener's process, which has none left.
  int64_t limit = 0;
};

struct Proof {
  uint64_t magic = kMagic;
  Nonce nonce = {};
  Mac mac = {};
};

Nonce RandomNonce();
// 32 hexadecimal digits.
std::string RandomSecret();
// Proves that `role`, "client" or "server", knows the secret. `listener`: see above.
Mac MacOf(std::string_view secret, std::string_view role, const Endpoint& listener,
          const Nonce& server, const Nonce& client);
// Compares in constant time.
bool Equal(const Mac& a, const Mac& b);

}  // namespace lockstep::dist::handshake
