// The text that Lockstep trains on when it is given none. See data/corpus/README.md.
#pragma once

#include <string_view>

namespace lockstep::data {

// data/corpus/corpus.txt, compiled into the program.
std::string_view EmbeddedCorpus();

// The SHA-256 that data/corpus/corpus.sha256 says it has: 64 hexadecimal digits.
std::string_view EmbeddedCorpusSha256();

}  // namespace lockstep::data
