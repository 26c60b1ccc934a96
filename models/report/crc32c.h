// CRC-32C (Castagnoli), RFC 3720 appendix B.4, as in TFRecord files.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep::models {

uint32_t Crc32c(std::string_view bytes);
// The form in which it is stored with the bytes: rotated right by 15 bits, plus a constant, since a
// CRC is weak for data that contains CRCs.
uint32_t MaskedCrc32c(std::string_view bytes);

}  // namespace lockstep::models
