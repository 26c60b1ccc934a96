// The wire protocol between TcpStoreServer and its clients. Both run on x86-64.
//
//   server: Hello            client: Proof           server: its own proof
//   then client: Request key value, server: Reply value, one after the other
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep::dist::tcp_store {

inline constexpr uint64_t kMagic = 0x3345524f5453534cu;  // "LSSTORE3"
// The server turns this client away: see Hello::limit.
inline constexpr uint64_t kNoRoomMagic = 0x4d4f4f524f4e534cu;  // "LSNOROOM"

using Nonce = std::array<std::byte, 32>;
using Mac = std::array<std::byte, 32>;

struct Hello {
  uint64_t magic = kMagic;
  Nonce nonce = {};
  // With kNoRoomMagic: the descriptor limit of the server's process, if it has none left; 0 if it
  // serves its maximum number of clients.
  int64_t limit = 0;
};

struct Proof {
  uint64_t magic = kMagic;
  Nonce nonce = {};
  Mac mac = {};
};

enum class Op : uint32_t { kSet, kSetIfAbsent, kGet, kAdd, kDelete, kBytes, kSetWill, kClearWill };

struct Request {
  Op op = Op::kGet;
  uint32_t key_bytes = 0;
  uint32_t value_bytes = 0;
  uint32_t first_bytes = 0;  // kSetWill: the part of the value for when the connection ends
  int64_t number = 0;        // kGet: milliseconds to wait; kSetWill: of silence; kAdd: summand
};

enum class Status : uint32_t { kOk, kTimeout, kRefused };  // refused: the value says why

struct Reply {
  Status status = Status::kOk;
  uint32_t value_bytes = 0;
  int64_t number = 0;
};

Nonce RandomNonce();
// Proves that `role`, "client" or "server", knows the secret.
Mac MacOf(std::string_view secret, std::string_view role, const Nonce& server, const Nonce& client);
// Compares in constant time.
bool Equal(const Mac& a, const Mac& b);

}  // namespace lockstep::dist::tcp_store
