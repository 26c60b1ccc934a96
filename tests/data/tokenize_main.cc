// Encodes texts for tests/peers/tokenizer_parity.py:
//
//   tokenize TOKENIZER INPUT OUTPUT [ordinary|specials]
//
// INPUT has texts, each as its size (uint32) and its bytes. OUTPUT gets, for each of them, the
// number of its ids (uint32), the ids (int32), and the size and the bytes of their text. Prints the
// seconds of processor time that encoding took.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/io/file.h"
#include "data/tokenizer/tokenizer.h"

int main(int argc, char** argv) try {
  if (argc < 4) {
    std::fprintf(stderr, "usage: tokenize TOKENIZER INPUT OUTPUT [ordinary|specials]\n");
    return 2;
  }
  const bool specials = argc > 4 && std::string_view(argv[4]) == "specials";
  const auto tokenizer = lockstep::data::LoadTokenizer(argv[1]);
  const std::string input = lockstep::ReadFile(argv[2]);
  lockstep::FileWriter output(argv[3]);
  const auto write_size = [&](size_t size) {
    const auto value = static_cast<uint32_t>(size);
    output.Write(std::string_view(reinterpret_cast<const char*>(&value), sizeof(value)));
  };
  std::clock_t encoding = 0;
  for (size_t at = 0; at + sizeof(uint32_t) <= input.size();) {
    uint32_t size;
    std::memcpy(&size, input.data() + at, sizeof(size));
    at += sizeof(size);
    const std::string_view text = std::string_view(input).substr(at, size);
    at += size;
    const std::clock_t begin = std::clock();
    const std::vector<int32_t> ids =
        specials ? tokenizer->EncodeWithSpecials(text) : tokenizer->Encode(text);
    encoding += std::clock() - begin;
    write_size(ids.size());
    output.Write(std::as_bytes(std::span(ids)));
    const std::string decoded = tokenizer->Decode(ids);
    write_size(decoded.size());
    output.Write(decoded);
  }
  output.Close();
  std::printf("%.6f\n", static_cast<double>(encoding) / CLOCKS_PER_SEC);
  return 0;
} catch (const lockstep::Error& error) {
  std::fprintf(stderr, "tokenize: %s\n", error.what());
  return 1;
}
