#include "core/io/sha256.h"

#include <openssl/evp.h>

#include "core/error.h"
#include "core/io/file.h"

namespace lockstep {

struct Sha256::Context {
  Context() : evp(EVP_MD_CTX_new()) {
    LS_INVARIANT(evp != nullptr && EVP_DigestInit_ex(evp, EVP_sha256(), nullptr) == 1,
                 "OpenSSL has no SHA-256");
  }
  ~Context() { EVP_MD_CTX_free(evp); }
  EVP_MD_CTX* evp;
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::Update(std::span<const std::byte> bytes) {
  LS_INVARIANT(EVP_DigestUpdate(context_->evp, bytes.data(), bytes.size()) == 1);
}

std::string Sha256::HexDigest() const {
  const Context copy;
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  LS_INVARIANT(EVP_MD_CTX_copy_ex(copy.evp, context_->evp) == 1 &&
               EVP_DigestFinal_ex(copy.evp, digest, &size) == 1);
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) {
    hex += kDigits[digest[i] >> 4];
    hex += kDigits[digest[i] & 15];
  }
  return hex;
}

std::string Sha256Of(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.Update(bytes);
  return hash.HexDigest();
}

std::string Sha256Of(std::string_view text) {
  return Sha256Of(std::as_bytes(std::span(text.data(), text.size())));
}

std::string Sha256OfFile(const std::string& path) {
  Sha256 hash;
  ReadFileInPieces(path, [&](std::span<const std::byte> piece) { hash.Update(piece); });
  return hash.HexDigest();
}

}  // namespace lockstep
