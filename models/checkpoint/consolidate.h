// Makes a Hugging Face folder from a checkpoint whose ranks wrote their parts.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::models {

inline constexpr int64_t kHfFileBytes = 5'000'000'000;  // as transformers does

// Writes the folder `to`, which must not exist yet: weights in files of at most `max_bytes`
// (WriteHfFolder), config.json, and tokenizer.json if there is one. Its weights have the bytes that
// a single rank's checkpoint has. Holds one parameter at a time, and leaves nothing when it throws.
// InputError if the checkpoint's files do not fit together; IoError.
void Consolidate(const std::string& checkpoint, const std::string& to,
                 int64_t max_bytes = kHfFileBytes);

}  // namespace lockstep::models
