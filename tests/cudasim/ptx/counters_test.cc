// Counts of instructions by kind, however lanes diverge and threads share the blocks; and the rules
// of sectors and banks, against their definitions.
#include "tools/cudasim/ptx/detectors/counters.h"

#include <random>
#include <set>

#include "tests/cudasim/ptx/machine.h"

namespace cudasim::ptx {
namespace {

using Kind = InstructionKind;

KernelCounts CountsOf(const std::string& body, uint32_t blocks = 1, uint32_t threads = 32,
                      Settings settings = {}) {
  alignas(256) static uint32_t data[4][4096];
  Counters counters;
  settings.counters = &counters;
  Image image(KernelText(body, {4, 4, 4, 4}));
  Launch1(&image, "test", {blocks}, {threads}, settings, data[0], data[1], data[2], data[3]);
  return counters.Take().at("test");
}

// Without what KernelText begins and ends with.
Counts Beyond(const KernelCounts& counts) {
  static const Counts empty = CountsOf("").total;
  Counts of = counts.total;
  for (size_t k = 0; k < of.instructions.size(); ++k) of.instructions[k] -= empty.instructions[k];
  return of;
}

void ExpectKinds(const Counts& got, std::map<Kind, uint64_t> want) {
  for (size_t k = 0; k < got.instructions.size(); ++k) {
    EXPECT_EQ(got.instructions[k], want[static_cast<Kind>(k)]) << "kind " << k;
  }
}

TEST(CountersTest, InstructionsByKind) {
  ExpectKinds(Beyond(CountsOf(R"(
      add.u32 %r3, %r0, 1; xor.b32 %r3, %r3, %r0; setp.lt.u32 %p1, %r3, 7; cvt.u64.u32 %rd5, %r3;
      fma.rn.f32 %f1, %f1, %f1, %f1; add.rz.ftz.f32 %f1, %f1, %f1; add.sat.f32 %f1, %f1, %f1;
      setp.lt.f32 %p2, %f1, %f1; mul.f64 %fd1, %fd1, %fd1;
      ex2.approx.ftz.f32 %f2, %f1; div.rn.f32 %f2, %f1, %f2; rem.u32 %r4, %r3, 7;
      cvt.rn.f32.u32 %f3, %r3; cvt.rzi.s32.f32 %r5, %f3;
      mov.b32 %r6, %f3; cvta.global.u64 %rd6, %rd0; ld.param.u64 %rd7, [pa];
      bar.sync 0; membar.gl; bra NEXT;
      NEXT: shfl.sync.bfly.b32 %r7, %r6, 1, 31, 0xffffffff; vote.sync.any.pred %p3, %p1, -1;
      ld.global.u32 %r8, [%rd0]; st.global.u32 [%rd1], %r8; atom.global.add.u32 %r9, [%rd2], 1;
      .shared .align 4 .b8 s[128]; mov.u32 %r10, s; shl.b32 %r11, %r0, 2; add.u32 %r10, %r10, %r11;
      st.shared.u32 [%r10], %r9; ld.shared.u32 %r9, [%r10];
      .local .align 4 .b8 l[8]; mov.u64 %rd8, l; st.local.u32 [%rd8], %r9;)")),
              // %r10 is s, which is no constant; 7, 1 and the like are operands.
              {{Kind::kInteger, 6},
               {Kind::kFloat, 5},
               {Kind::kSpecial, 3},
               {Kind::kConvert, 2},
               {Kind::kMove, 5},
               {Kind::kControl, 3},
               {Kind::kExchange, 2},
               {Kind::kGlobal, 3},
               {Kind::kShared, 2},
               {Kind::kLocal, 1}});
}

TEST(CountersTest, LanesThatDivergeAreInstructionsOfTheirOwn) {
  // The first 8 lanes go around the block that the others run; all shuffle together, once.
  const std::string body = R"(
      setp.lt.u32 %p1, %r0, 8; @%p1 bra FEW;
      ld.global.u32 %r3, [%rd0]; bra MET;
      FEW: ld.global.u32 %r3, [%rd1]; st.global.u32 [%rd2], %r3;
      MET: shfl.sync.bfly.b32 %r4, %r3, 1, 31, 0xffffffff;)";
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Settings settings;
    settings.order = seed == 0 ? Settings::Order::kForward : Settings::Order::kRandom;
    settings.seed = seed;
    const Counts got = Beyond(CountsOf(body, 1, 32, settings));
    EXPECT_EQ(got.of(Kind::kExchange), 1u);
    if (seed > 0) continue;  // a warp's lanes part at random
    ExpectKinds(
        got, {{Kind::kInteger, 1}, {Kind::kControl, 2}, {Kind::kGlobal, 3}, {Kind::kExchange, 1}});
    EXPECT_EQ(got.global.bytes, 24u * 4 + 2 * 8 * 4);
    EXPECT_EQ(got.global.moved, 3u + 1 + 1);
  }
}

TEST(CountersTest, GuardedInstructionsCountForTheLanesThatRunThem) {
  Counts got = Beyond(CountsOf(R"(
      setp.lt.u32 %p1, %r0, 9; @%p1 st.global.u32 [%rd0], %r0;
      setp.lt.u32 %p2, %r0, 0; @%p2 st.global.u32 [%rd0], %r0; @%p1 add.u32 %r3, %r0, 1;)"));
  ExpectKinds(got, {{Kind::kInteger, 3}, {Kind::kGlobal, 1}});
  EXPECT_EQ(got.global.bytes, 36u);
  EXPECT_EQ(got.global.moved, 2u);
}

TEST(CountersTest, GenericAddressesCountWhereTheyLead) {
  const Counts got = CountsOf(R"(
      .shared .align 4 .b8 s[256]; .local .align 4 .b8 l[8];
      mov.u64 %rd5, s; cvta.shared.u64 %rd5, %rd5; mul.wide.u32 %rd6, %r0, 8; add.u64 %rd5, %rd5, %rd6;
      st.u32 [%rd5], %r0; setp.lt.u32 %p1, %r0, 16; selp.u64 %rd7, %rd5, %rd0, %p1;
      ld.u32 %r3, [%rd7]; mov.u64 %rd8, l; cvta.local.u64 %rd8, %rd8; st.u32 [%rd8], %r3;)")
                         .total;
  // 32 words that are two apart: 2 cycles. Then half of the lanes read from there, half from x.
  EXPECT_EQ(got.shared.requests, 2u);
  EXPECT_EQ(got.shared.moved, 2u + 1);
  EXPECT_EQ(got.global.requests, 1u);
  EXPECT_EQ(got.global.moved, 2u);
  EXPECT_EQ(got.local_bytes, 128u);
}

TEST(CountersTest, AnyNumberOfThreadsCountsTheSame) {
  const std::string body = "ld.global.u32 %r3, [%rd0]; bar.sync 0; st.global.u32 [%rd1], %r3;";
  for (int threads : {1, 4}) {
    Settings settings;
    settings.threads = threads;
    const KernelCounts got = CountsOf(body, 64, 64, settings);
    EXPECT_EQ(got.launches, 1u);
    EXPECT_EQ(got.total.of(Kind::kGlobal), 2u * 2 * 64);
    EXPECT_EQ(got.total.global.moved, 2u * 2 * 64 * 4);
    EXPECT_EQ(got.total.global.bytes, 2u * 64 * 64 * 4);
  }
}

// ---- The rules ----

// Word by word, bank by bank.
uint64_t NaiveCycles(const uint64_t* at, uint32_t mask, uint32_t bytes, bool atomic) {
  uint64_t cycles = 0;
  const int lanes = bytes <= 4 ? 32 : bytes == 8 ? 16 : 8;
  for (int first = 0; first < 32; first += lanes) {
    std::multiset<uint64_t> words[32];
    for (int lane = first; lane < first + lanes; ++lane) {
      if ((mask >> lane & 1) == 0) continue;
      std::set<uint64_t> own;
      for (uint32_t byte = 0; byte < bytes; ++byte) own.insert((at[lane] + byte) / 4);
      for (const uint64_t word : own) {
        if (atomic || words[word % 32].count(word) == 0) words[word % 32].insert(word);
      }
    }
    size_t most = 0;
    for (const auto& bank : words) most = std::max(most, bank.size());
    cycles += most;
  }
  return cycles;
}

TEST(CountersTest, RandomAccessesAgreeWithTheDefinitions) {
  std::mt19937 random(1);
  for (int round = 0; round < 3000; ++round) {
    const uint32_t bytes = 1u << random() % 5;
    const uint64_t range = uint64_t{1} << random() % 12;
    const uint32_t mask = (round % 3 == 0 ? ~0u : random() | random()) | 1u << random() % 32;
    uint64_t at[32];
    std::set<uint64_t> sectors, values;
    for (int lane = 0; lane < 32; ++lane) {
      at[lane] = (round % 4 == 0 ? lane * range : random() % range) * bytes;
      if ((mask >> lane & 1) == 0) continue;
      for (uint32_t byte = 0; byte < bytes; ++byte) {
        sectors.insert((at[lane] + byte) / 32);
        values.insert(at[lane] + byte);
      }
    }
    const Traffic global = GlobalTraffic(at, mask, bytes);
    EXPECT_EQ(global.moved, sectors.size());
    EXPECT_EQ(global.ideal, (values.size() + 31) / 32);
    EXPECT_EQ(global.bytes, bytes * static_cast<uint64_t>(__builtin_popcount(mask)));
    for (const bool atomic : {false, true}) {
      EXPECT_EQ(SharedTraffic(at, mask, bytes, atomic).moved, NaiveCycles(at, mask, bytes, atomic));
    }
  }
}

}  // namespace
}  // namespace cudasim::ptx
