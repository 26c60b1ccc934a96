// SHA-256 (FIPS 180-4), by OpenSSL.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void Update(std::span<const std::byte> bytes);
  // The hash of everything so far in 64 lower-case hexadecimal digits. More may be added
  // afterwards.
  std::string HexDigest() const;

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

std::string Sha256Of(std::span<const std::byte> bytes);
std::string Sha256Of(std::string_view text);
// Reads the file in pieces; IoError if it cannot be read.
std::string Sha256OfFile(const std::string& path);

}  // namespace lockstep
