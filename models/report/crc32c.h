// CRC-32C (Castagnoli), RFC 3720 appendix B.4, as TFRecord files have it.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep::models {

uint32_t Crc32c(std::string_view bytes);
// As stored beside the bytes: rotated right by 15 bits, plus a constant, so that the checksum of
// data that holds checksums stays a good one.
uint32_t MaskedCrc32c(std::string_view bytes);

}  // namespace lockstep::models
