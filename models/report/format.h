// Numbers for people to read.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::models {

std::string FormatCount(double n);           // 999, 12.3k, 2.49M, 1.56B
std::string FormatDuration(double seconds);  // 8s, 1m05s, 1h02m, 3d04h
std::string FormatBytes(double bytes);       // 512 B, 1.50 MiB
// As data sheets count: 512 B, 1.50 MB, 80.0 GB.
std::string FormatDecimalBytes(double bytes);

}  // namespace lockstep::models
