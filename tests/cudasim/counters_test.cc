// Kernels are counted as one counts them by hand.
#include "tools/cudasim/counters.h"

#include "tests/cudasim/counters.h"
#include "tests/cudasim/device_buffer.h"

namespace lockstep {
namespace {

struct Expected {
  const char* name;
  cudasim::Traffic global, shared;  // requests, bytes, moved, ideal
  std::map<std::string, uint64_t> products = {};
};

const Expected kExpected[] = {
    // 32 words are 128 bytes, 4 sectors, read and written.
    {"Copy", {2, 256, 8, 8}, {}},
    // Read: every other word of 256 bytes, 8 sectors.
    {"StrideTwo", {2, 256, 12, 8}, {}},
    // Read: bytes 4 to 131, which touch 5 sectors.
    {"Misaligned", {2, 256, 9, 8}, {}},
    // 32 rows are written to the tile in a cycle each; of the columns, whose 32 words lie in one
    // bank,
    // each takes 32 cycles.
    {"Transpose<32>", {64, 8192, 256, 256}, {64, 8192, 32 + 32 * 32, 64}},
    // Words of a column are 33 words apart: all in different banks.
    {"Transpose<33>", {64, 8192, 256, 256}, {64, 8192, 64, 64}},
    // 512 bytes: 16 sectors, read and written; 8 lanes at a time fill the 32 banks.
    {"Float4", {2, 1024, 32, 32}, {2, 1024, 8, 8}},
    // 256 bytes: 8 sectors. Lanes 0 and 8 of a half differ by 32 words, so each of the banks that
    // are
    // used has two words: 2 cycles for a half instead of one.
    {"Float2", {2, 512, 16, 16}, {2, 512, 8, 4}},
    // x[3] of all lanes is one sector, s[7] of all lanes one cycle.
    {"Broadcast", {3, 384, 9, 9}, {2, 256, 2, 2}},
    // 8 rows that are 32 words apart lie in the same four banks: 8 cycles for each matrix, and for
    // each quarter of the warp that writes them.
    {"Matrices<128>", {2, 640, 20, 20}, {2, 1024, 64, 8}},
    // 36 words apart: the rows' banks are 0-3, 4-7, ..., 28-31.
    {"Matrices<144>", {2, 640, 20, 20}, {2, 1024, 8, 8}},
    // Lane 0 writes the word; 32 lanes add to it one after the other; all read it at once. In
    // global
    // memory it is one sector.
    {"Atomic", {1, 128, 1, 1}, {3, 4 + 128 + 128, 1 + 32 + 1, 3}},
    {"Product", {2, 256, 8, 8}, {}, {{"m16n8k16.bf16", 1}, {"m16n8k16.f16", 2}}},
    // 16 lanes read 256 bytes, and 32 lanes write 512 to shared memory, read them, and write them.
    {"AsyncCopy", {2, 256 + 512, 8 + 16, 8 + 16}, {2, 1024, 8, 8}},
    // 3 of 4 warps have columns. Each reads and writes 2 sums of 8 columns, of which a lane's are 8
    // words from the next one's, so that 32 lanes share 4 banks: 8 cycles. 768 cycles for a row is
    // what reading its SASS had found. Of dy, 3 warps read 128 bytes.
    {"OldNormBackward", {3, 384, 12, 12}, {96, 96 * 128, 768, 96}},
};

void ExpectTraffic(const cudasim::Traffic& got, const cudasim::Traffic& want) {
  EXPECT_EQ(got.requests, want.requests);
  EXPECT_EQ(got.bytes, want.bytes);
  EXPECT_EQ(got.moved, want.moved);
  EXPECT_EQ(got.ideal, want.ideal);
}

TEST(CountersTest, CountsAreThoseDerivedByHand) {
  cudasim::CountKernels(true);
  cudasim::TakeCounts();
  for (const Expected& expected : kExpected) {
    SCOPED_TRACE(expected.name);
    DeviceBuffer<float> x(Numbers(1024, 1)), y(1024);
    for (int twice = 0; twice < 2; ++twice) {
      ASSERT_EQ(RunCounted(expected.name, x.data(), y.data()), cudaSuccess);
    }
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const cudasim::CountsByKernel counts = cudasim::TakeCounts();
    ASSERT_EQ(counts.size(), 1u);
    const auto& [name, of] = *counts.begin();
    std::string kernel = expected.name;
    kernel.insert(std::min(kernel.find('<'), kernel.size()), "Kernel");
    EXPECT_NE(name.find(kernel), std::string::npos) << name;
    EXPECT_EQ(of.launches, 2u);
    cudasim::Counts sum, twice;
    for (const auto& [place, line] : of.lines) sum += line;
    twice.global = expected.global;
    twice.shared = expected.shared;
    twice.products = expected.products;
    twice += cudasim::Counts(twice);
    for (const cudasim::Counts& got : {of.total, sum}) {
      ExpectTraffic(got.global, twice.global);
      ExpectTraffic(got.shared, twice.shared);
      EXPECT_EQ(got.products, twice.products);
      EXPECT_EQ(got.local_bytes, 0u);
    }
  }
  cudasim::CountKernels(false);
}

TEST(CountersTest, TheWorstPlaceIsNamed) {
  cudasim::CountKernels(true);
  cudasim::TakeCounts();
  DeviceBuffer<float> x(Numbers(1024, 1)), y(1024);
  for (const char* const name : {"Transpose<32>", "Transpose<33>"}) {
    ASSERT_EQ(RunCounted(name, x.data(), y.data()), cudaSuccess);
  }
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const cudasim::CountsByKernel counts = cudasim::TakeCounts();
  // Both instances in one line: 1056 and 64 cycles, ideally 64 each.
  const std::string table = cudasim::FormatCounts("here", counts);
  EXPECT_EQ(table.substr(0, 5), "here ");
  EXPECT_NE(table.find(" TransposeKernel "), std::string::npos) << table;
  EXPECT_NE(table.find(" 512      512     1.00     1120      128     8.75"), std::string::npos)
      << table;
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 1);
  const std::string excess = cudasim::FormatExcess(counts, 1.2);
  const std::string line = "TransposeKernel: 1024 cycles of shared memory, ideally 32, at ";
  EXPECT_EQ(excess.substr(0, line.size()), line);
  EXPECT_NE(excess.find("counters.cu:26\n"), std::string::npos) << excess;
  EXPECT_EQ(std::count(excess.begin(), excess.end(), '\n'), 1);
  EXPECT_EQ(cudasim::FormatExcess(counts, 40), "");
  cudasim::CountKernels(false);
  ASSERT_EQ(RunCounted("Copy", x.data(), y.data()), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_TRUE(cudasim::TakeCounts().empty());
}

}  // namespace
}  // namespace lockstep
