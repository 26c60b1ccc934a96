#include "dist/control/handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <span>
#include <vector>

#include "core/error.h"

namespace lockstep::dist::handshake {

Nonce RandomNonce() {
  Nonce nonce;
  LS_INVARIANT(RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), nonce.size()) == 1,
               "OpenSSL could not generate random bytes");
  return nonce;
}

std::string RandomSecret() {
  const Nonce nonce = RandomNonce();
  std::string secret;
  for (size_t i = 0; i < 16; ++i) {
    constexpr char kDigits[] = "0123456789abcdef";
    const auto byte = std::to_integer<unsigned>(nonce[i]);
    secret += {kDigits[byte / 16], kDigits[byte % 16]};
  }
  return secret;
}

Mac MacOf(std::string_view secret, std::string_view role, const Endpoint& listener,
          const Nonce& server, const Nonce& client) {
  std::vector<unsigned char> text(role.begin(), role.end());
  const auto add = [&](std::span<const std::byte> part) {
    const auto* const bytes = reinterpret_cast<const unsigned char*>(part.data());
    text.insert(text.end(), bytes, bytes + part.size());
  };
  add(listener);
  add(server);
  add(client);
  Mac mac;
  unsigned int size = 0;
  const auto* const done =
      HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()), text.data(), text.size(),
           reinterpret_cast<unsigned char*>(mac.data()), &size);
  LS_INVARIANT(done != nullptr && size == mac.size(), "OpenSSL's HMAC failed");
  return mac;
}

bool Equal(const Mac& a, const Mac& b) { return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0; }

}  // namespace lockstep::dist::handshake
