// Stands in for libFuzzer: NAME_fuzz CORPUS_FOLDER runs LLVMFuzzerTestOneInput on every seed of the
// folder, one gtest case each, and on truncations and single-byte changes of it. Deterministic.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

// Copies to a buffer of exactly that size, so that AddressSanitizer sees a read past the end.
void RunOn(const std::vector<uint8_t>& bytes) {
  const std::vector<uint8_t> exact(bytes.begin(), bytes.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

class Replay : public testing::Test {
 public:
  explicit Replay(std::filesystem::path seed) : seed_(std::move(seed)) {}

  void TestBody() override {
    std::ifstream file(seed_, std::ios::binary);
    ASSERT_TRUE(file) << "cannot read " << seed_;
    const std::vector<uint8_t> bytes{std::istreambuf_iterator<char>(file), {}};
    RunOn(bytes);

    constexpr size_t kChanges = 128;  // of each kind, spread evenly
    const size_t stride = std::max<size_t>(1, bytes.size() / kChanges);
    for (size_t size = 0; size < bytes.size(); size += stride) {
      RunOn({bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size)});
    }
    for (size_t i = 0; i < bytes.size(); i += stride) {
      for (const int change : {0x00, 0xff, 0x01, 0x80}) {
        std::vector<uint8_t> changed = bytes;
        changed[i] =
            static_cast<uint8_t>(change == 0x00 || change == 0xff ? change : changed[i] ^ change);
        RunOn(changed);
      }
    }
  }

 private:
  std::filesystem::path seed_;
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s CORPUS_FOLDER\n", argv[0]);
    return 2;
  }
  std::vector<std::filesystem::path> seeds;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[1])) {
    if (entry.is_regular_file()) seeds.push_back(entry.path());
  }
  if (seeds.empty()) {
    std::fprintf(stderr, "%s: there are no seeds in %s\n", argv[0], argv[1]);
    return 1;
  }
  std::sort(seeds.begin(), seeds.end());
  for (const auto& seed : seeds) {
    testing::RegisterTest("Replay", seed.filename().string().c_str(), nullptr, nullptr, __FILE__,
                          __LINE__, [seed] { return new Replay(seed); });
  }
  return RUN_ALL_TESTS();
}
