// How a connection begins: each side proves to the other that it knows the run's secret
// (HMAC-SHA256 over both nonces). Both run on x86-64.
//
//   listener: Hello     dialler: Proof     listener: its own proof
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::dist::handshake {

inline constexpr uint64_t kMagic = 0x3345524f5453534cu;  // "LSSTORE3"
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
// Proves that `role`, "client" or "server", knows the secret.
Mac MacOf(std::string_view secret, std::string_view role, const Nonce& server, const Nonce& client);
// Compares in constant time.
bool Equal(const Mac& a, const Mac& b);

}  // namespace lockstep::dist::handshake
