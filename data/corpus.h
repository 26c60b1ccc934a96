// The text that Lockstep trains on by default. See data/corpus/README.md.
#pragma once

#include <string_view>

namespace lockstep::data {

// data/corpus/corpus.txt, compiled into the program.
std::string_view EmbeddedCorpus();

// Its SHA-256 according to data/corpus/corpus.sha256, in 64 hexadecimal digits.
std::string_view EmbeddedCorpusSha256();

}  // namespace lockstep::data
