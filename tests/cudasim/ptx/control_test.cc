// Branches, predicates, calls, and how warps and blocks take turns.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>

#include "tests/cudasim/ptx/machine.h"

namespace cudasim::ptx {
namespace {

std::vector<uint32_t> RunThreads(const std::string& body, uint32_t threads,
                                 const Settings& settings = {}) {
  std::vector<uint32_t> out(threads, 0);
  Image image(KernelText(body + "\nst.global.u32 [%rd3], %r9;", {0, 0, 0, 4}));
  Launch1(&image, "test", {1}, {threads}, settings, out.data(), out.data(), out.data(), out.data());
  return out;
}

uint32_t CollatzSteps(uint32_t n) {
  uint32_t steps = 0;
  for (; n != 1; ++steps) n = n % 2 == 0 ? n / 2 : 3 * n + 1;
  return steps;
}

TEST(ControlTest, LanesDivergeAndMeetAgain) {
  const std::string body =
      "mov.u32 %r9, 0; add.u32 %r3, %r0, 1;\n"
      "LOOP: setp.eq.u32 %p1, %r3, 1; @%p1 bra END;\n"
      "and.b32 %r4, %r3, 1; setp.eq.u32 %p2, %r4, 0; @%p2 bra EVEN;\n"
      "mad.lo.u32 %r3, %r3, 3, 1; bra NEXT;\n"
      "EVEN: shr.u32 %r3, %r3, 1;\nNEXT: add.u32 %r9, %r9, 1; bra LOOP;\n"
      // All lanes are here again.
      "END: activemask.b32 %r5; setp.ne.b32 %p3, %r5, -1; @%p3 mov.u32 %r9, 999;";
  const std::vector<uint32_t> out = RunThreads(body, 64);
  for (uint32_t j = 0; j < 64; ++j) EXPECT_EQ(out[j], CollatzSteps(j + 1)) << j;
}

TEST(ControlTest, AnyInstructionCanBeGuarded) {
  const std::vector<uint32_t> out = RunThreads(
      "mov.u32 %r9, 5; setp.lt.u32 %p1, %r0, 10; @%p1 add.u32 %r9, %r9, %r0;\n"
      "@!%p1 st.global.u32 [%rd3], %r0; @!%p1 ld.global.u32 %r9, [%rd3];\n"
      "setp.gt.and.u32 %p2|%p3, %r0, 3, %p1; @%p2 add.u32 %r9, %r9, 100; @%p3 add.u32 %r9, %r9, "
      "1000;",
      40);
  for (uint32_t j = 0; j < 40; ++j) {
    const uint32_t expected = j >= 10 ? j : 5 + j + (j > 3 ? 100 : 1000);
    EXPECT_EQ(out[j], expected) << j;
  }
}

TEST(ControlTest, BranchesByIndex) {
  const std::vector<uint32_t> out = RunThreads(
      "and.b32 %r3, %r0, 3; mov.u32 %r9, 0;\nTABLE: .branchtargets A, B, C, B;\n"
      "brx.idx %r3, TABLE;\nA: mov.u32 %r9, 10; bra END;\nB: mov.u32 %r9, 20; bra END;\n"
      "C: mov.u32 %r9, 30;\nEND:",
      32);
  for (uint32_t j = 0; j < 32; ++j) EXPECT_EQ(out[j], (std::array{10u, 20u, 30u, 20u})[j % 4]);
}

// f(n) = n < 2 ? n : f(n - 1) + f(n - 2), by each thread with its own n.
constexpr char kFibonacci[] =
    ".func (.param .b32 result) fib(.param .b32 n);\n"
    ".func (.param .b32 result) fib(.param .b32 n) {\n.reg .b32 %r<5>; .reg .pred %p;\n"
    "ld.param.b32 %r1, [n]; setp.lt.s32 %p, %r1, 2; @%p bra SMALL;\n"
    "{ .param .b32 a; .param .b32 b; sub.s32 %r2, %r1, 1; st.param.b32 [a], %r2;\n"
    "call.uni (b), fib, (a); ld.param.b32 %r3, [b]; }\n"
    "{ .param .b32 a; .param .b32 b; sub.s32 %r2, %r1, 2; st.param.b32 [a], %r2;\n"
    "call.uni (b), fib, (a); ld.param.b32 %r4, [b]; }\n"
    "add.s32 %r1, %r3, %r4;\nSMALL: st.param.b32 [result], %r1; ret;\n}\n";

TEST(ControlTest, FunctionsCallEachOther) {
  std::string text = KernelText(
      "{ .param .b32 x; .param .b32 y; rem.u32 %r3, %r0, 12; st.param.b32 [x], %r3;\n"
      "call (y), fib, (x); ld.param.b32 %r9, [y]; }\nst.global.u32 [%rd3], %r9;",
      {0, 0, 0, 4});
  text.insert(text.find(".visible"), kFibonacci);
  Image image(text);
  std::vector<uint32_t> out(40);
  Launch1(&image, "test", {1}, {40}, Settings{}, out.data(), out.data(), out.data(), out.data());
  const uint32_t expected[] = {0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89};
  for (int j = 0; j < 40; ++j) EXPECT_EQ(out[j], expected[j % 12]) << j;
}

// What a call has put aside is gone with the memory that a larger kernel outgrows.
TEST(ControlTest, AFaultInAFunctionLeavesNothingToTheNextKernel) {
  std::string text = KernelText("call.uni bad, ();\n", {0, 0, 0, 0});
  text.insert(text.find(".visible"),
              ".func bad() {\n.reg .b64 %rd1; .reg .b32 %r1;\n"
              "mov.u64 %rd1, 8; ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd1], %r1; ret;\n}\n");
  Image image(text);
  const std::string message = MessageOf(
      [&] { Launch1(&image, "test", {1}, {32}, Settings{}, nullptr, nullptr, nullptr, nullptr); });
  EXPECT_NE(message.find("called at"), std::string::npos) << message;
  const std::vector<uint32_t> out = RunThreads("mul.lo.u32 %r9, %r0, 3;", 1024);
  for (uint32_t j = 0; j < out.size(); ++j) ASSERT_EQ(out[j], 3 * j);
}

TEST(ControlTest, CallsByPointer) {
  std::string text = KernelText(
      "mov.u64 %rd5, fib;\n{ .param .b32 x; .param .b32 y; st.param.b32 [x], 7;\n"
      "proto: .callprototype (.param .b32 _) _ (.param .b32 _);\n"
      "call (y), %rd5, (x), proto; ld.param.b32 %r9, [y]; }\nst.global.u32 [%rd3], %r9;",
      {0, 0, 0, 4});
  text.insert(text.find(".visible"), kFibonacci);
  Image image(text);
  std::vector<uint32_t> out(4);
  Launch1(&image, "test", {1}, {4}, Settings{}, out.data(), out.data(), out.data(), out.data());
  EXPECT_EQ(out[3], 13u);
}

TEST(ControlTest, PrintsAndFails) {
  const std::string text =
      Header() +
      ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 v);\n"
      ".global .align 1 .b8 format[20] = {120, 61, 37, 100, 32, 37, 46, 50, 102, 32, 37, 115, "
      "10};\n"
      ".global .align 1 .b8 word[4] = {97, 98, 99};\n"
      ".visible .entry test(.param .u32 n) {\n.local .align 8 .b8 v[24]; .reg .b64 %rd<9>; .reg "
      ".b32 %r<4>;\n"
      "ld.param.u32 %r1, [n]; mov.u64 %rd1, v; st.local.u32 [%rd1], %r1; st.local.u64 [%rd1+8], "
      "0d3FF8000000000000;\n"
      "cvta.global.u64 %rd2, word; st.local.u64 [%rd1+16], %rd2; cvta.local.u64 %rd3, %rd1;\n"
      "cvta.global.u64 %rd4, format;\n{ .param .b64 a; .param .b64 b; .param .b32 c;\n"
      "st.param.b64 [a], %rd4; st.param.b64 [b], %rd3; call.uni (c), vprintf, (a, b); }\n"
      "trap; ret;\n}\n";
  testing::internal::CaptureStdout();
  const std::string message = MessageOf([&] {
    Image image(text);
    Launch1(&image, "test", {1}, {1}, Settings{}, 42);
  });
  std::fflush(stdout);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "x=42 1.50 abc\n");
  EXPECT_NE(message.find("the kernel gave up"), std::string::npos) << message;
}

TEST(ControlTest, AssertionsAreReportedWithTheirText) {
  const std::string text =
      Header() +
      ".extern .func __assertfail(.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 n, "
      ".param .b64 s);\n"
      ".global .align 1 .b8 what[6] = {120, 32, 60, 32, 50};\n"
      ".global .align 1 .b8 file[5] = {97, 46, 99, 117};\n"
      ".global .align 1 .b8 name[2] = {75};\n"
      ".visible .entry test() {\n.reg .b64 %rd<5>;\n"
      "cvta.global.u64 %rd1, what; cvta.global.u64 %rd2, file; cvta.global.u64 %rd3, name;\n"
      "{ .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;\n"
      "st.param.b64 [a], %rd1; st.param.b64 [b], %rd2; st.param.b32 [c], 7; st.param.b64 [d], "
      "%rd3; st.param.b64 [e], 1;\n"
      "call.uni __assertfail, (a, b, c, d, e); }\nret;\n}\n";
  const std::string message = MessageOf([&] {
    Image image(text);
    Launch1(&image, "test", {1}, {1}, Settings{});
  });
  EXPECT_NE(message.find("a.cu:7: K: x < 2"), std::string::npos) << message;
}

// A lock that a lane holds while the others of its warp spin, and that warps hold in turn.
constexpr char kLock[] =
    ".shared .b32 lock; .shared .b32 count;\n"
    "setp.ne.u32 %p1, %r0, 0; @%p1 bra START; st.shared.u32 [lock], 0; st.shared.u32 [count], 0;\n"
    "START: bar.sync 0;\n"
    "TRY: atom.shared.cas.b32 %r3, [lock], 0, 1; setp.ne.u32 %p1, %r3, 0; @%p1 bra TRY;\n"
    "ld.volatile.shared.u32 %r4, [count]; add.u32 %r4, %r4, 1; st.volatile.shared.u32 [count], "
    "%r4;\n"
    "membar.cta; atom.shared.exch.b32 %r3, [lock], 0;\nbar.sync 0;\nld.shared.u32 %r9, [count];";

TEST(ControlTest, WarpsThatWaitForOthersGetTheirTurn) {
  Settings settings;
  settings.order = Settings::Order::kRandom;
  for (settings.seed = 1; settings.seed < 4; ++settings.seed) {
    EXPECT_EQ(RunThreads(kLock, 64, settings)[5], 64u);
  }
}

// out[thread] = a counter that all increase without atomics: what comes out depends on the turns.
constexpr char kRace[] =
    ".shared .b32 count;\nsetp.ne.u32 %p1, %r0, 0; @%p1 bra START; st.shared.u32 [count], 0;\n"
    "START: bar.sync 0; mov.u32 %r5, 0;\n"
    "LOOP: ld.volatile.shared.u32 %r4, [count]; add.u32 %r4, %r4, 1; st.volatile.shared.u32 "
    "[count], %r4;\n"
    "add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, 20; @%p1 bra LOOP;\nbar.sync 0;\n"
    "ld.shared.u32 %r9, [count];";

TEST(ControlTest, SeedsDecideTurns) {
  Settings settings;
  settings.order = Settings::Order::kRandom;
  std::vector<uint32_t> counts;
  for (settings.seed = 1; settings.seed < 6; ++settings.seed) {
    counts.push_back(RunThreads(kRace, 256, settings)[0]);
    EXPECT_EQ(counts.back(), RunThreads(kRace, 256, settings)[0])
        << "the same seed, the same turns";
  }
  EXPECT_NE(*std::min_element(counts.begin(), counts.end()),
            *std::max_element(counts.begin(), counts.end()));
}

// Lanes can be a turn of a loop ahead of those that they shuffle with.
TEST(ControlTest, LanesThatAreAheadWaitForTheOthers) {
  Settings settings;
  settings.order = Settings::Order::kRandom;
  for (settings.seed = 1; settings.seed <= 50; ++settings.seed) {
    const std::vector<uint32_t> out = RunThreads(
        "mov.u32 %r9, 0; mov.u32 %r3, 0;\n"
        "LOOP: shfl.sync.bfly.b32 %r4, %r0, 1, 31, -1; add.u32 %r9, %r9, %r4;\n"
        "setp.ge.u32 %p1, %r0, 5; @%p1 bra NEXT;\n"
        "st.global.u32 [%rd3], %r4; st.global.u32 [%rd3], %r4; st.global.u32 [%rd3], %r4;\n"
        "NEXT: st.global.u32 [%rd3], %r4; add.u32 %r3, %r3, 1;\n"
        "setp.lt.u32 %p1, %r3, 9; @%p1 bra LOOP;",
        64, settings);
    for (uint32_t j = 0; j < out.size(); ++j) ASSERT_EQ(out[j], 9 * (j ^ 1));
  }
}

// Each thread writes a word and reads its neighbour's.
std::string Neighbour(const std::string& between, int distance) {
  return ".shared .b32 s[64];\nmov.u32 %r3, s; shl.b32 %r4, %r0, 2; add.u32 %r5, %r3, %r4;\n"
         ".loc 1 5 1\nst.shared.u32 [%r5], %r0;\n" +
         between + "xor.b32 %r4, %r4, " + std::to_string(4 * distance) +
         "; add.u32 %r5, %r3, %r4;\n.loc 1 7 1\nld.shared.u32 %r9, [%r5];";
}

TEST(ControlTest, RacesInSharedMemoryAreFound) {
  Settings settings;
  settings.find_races = true;
  EXPECT_EQ(RunThreads(Neighbour("bar.sync 0;\n", 32), 64, settings)[3], 35u);
  EXPECT_EQ(RunThreads(Neighbour("bar.warp.sync -1;\n", 1), 64, settings)[3], 2u);
  // In the order in which warps run here, the first reads what the second is yet to write.
  const std::string message = MessageOf([&] { RunThreads(Neighbour("", 32), 64, settings); });
  EXPECT_NE(
      message.find("which thread (0,0,0) read, and nothing orders the two;\nthe other at file 1:7"),
      std::string::npos)
      << message;
  EXPECT_NE(message.find("st.shared.u32"), std::string::npos) << message;
  settings.find_races = false;
  EXPECT_EQ(MessageOf([&] { RunThreads(Neighbour("", 32), 64, settings); }), "");
  // Atomics do not race with each other.
  settings.find_races = true;
  EXPECT_EQ(MessageOf([&] {
              RunThreads(
                  ".shared .b32 s;\nsetp.ne.u32 %p1, %r0, 0; @%p1 bra START;\n"
                  "st.shared.u32 [s], 0;\nSTART: bar.sync 0;\n"
                  "atom.shared.add.u32 %r9, [s], 1;",
                  64, settings);
            }),
            "");
}

// What earlier launches have found accessible does not hide accesses from the detector.
TEST(ControlTest, RacesAreFoundAsSoonAsTheyAreSought) {
  std::vector<uint32_t> out(1);
  Image image(KernelText("st.global.u32 [%rd3], %r0;", {0, 0, 0, 0}));
  const std::atomic<uint64_t> changes{1};
  Settings settings;
  settings.changes = &changes;
  const auto run = [&] {
    Launch1(&image, "test", {1}, {64}, settings, out.data(), out.data(), out.data(), out.data());
  };
  EXPECT_EQ(MessageOf(run), "");
  settings.find_races = true;
  EXPECT_NE(MessageOf(run).find("nothing orders the two"), std::string::npos);
}

// bar.arrive tells those who wait at the barrier what its lanes have written, but not each other.
TEST(ControlTest, ArrivingAtABarrierOrdersNoLanes) {
  Settings settings;
  settings.find_races = true;
  const auto meet = [](const std::string& first_warp) {
    return "setp.ge.u32 %p1, %r0, 32; @%p1 bra WAIT;\n" + first_warp +
           "bra GO;\nWAIT: bar.sync 1, 64;\nGO:\n";
  };
  EXPECT_EQ(RunThreads(Neighbour(meet("bar.sync 1, 64;\n"), 1), 64, settings)[3], 2u);
  EXPECT_EQ(
      RunThreads(Neighbour(meet("bar.arrive 1, 64; bar.warp.sync -1;\n"), 1), 64, settings)[3], 2u);
  const std::string message =
      MessageOf([&] { RunThreads(Neighbour(meet("bar.arrive 1, 64;\n"), 1), 64, settings); });
  EXPECT_NE(message.find("which thread (1,0,0) wrote, and nothing orders the two"),
            std::string::npos)
      << message;
}

TEST(ControlTest, BarriersAre16) {
  for (const std::string number : {"16", "-1"}) {
    for (const std::string opcode : {"bar.sync ", "bar.arrive "}) {
      const std::string message =
          MessageOf([&] { RunThreads("mov.u32 %r9, 0;\n" + opcode + number + ", 64;", 64); });
      EXPECT_NE(message.find("there are 16 barriers"), std::string::npos) << opcode << message;
    }
  }
}

TEST(ControlTest, BlocksRunOnThreadsAndTogether) {
  const std::string body =
      "mov.u32 %r5, %ctaid.x; atom.global.add.u32 %r3, [%rd0], 1;\n"
      "mov.u32 %r6, %nctaid.x; mul.lo.u32 %r6, %r6, 64;\n"
      "WAIT: ld.volatile.global.u32 %r7, [%rd0]; setp.lt.u32 %p1, %r7, %r6; @%p1 bra WAIT;\n"
      "add.u32 %r9, %r5, %r7; st.global.u32 [%rd3], %r9;";
  Image image(KernelText(body, {0, 0, 0, 4}));
  std::vector<uint32_t> out(64 * 5);
  uint32_t arrived = 0;
  Launch launch;
  launch.program = image.FindKernel("test");
  launch.grid = {5};
  launch.block = {64};
  launch.cooperative = true;
  const void* pointers[] = {&arrived, nullptr, nullptr, out.data()};
  void* arguments[] = {&pointers[0], &pointers[1], &pointers[2], &pointers[3]};
  launch.parameters = PackParameters(*launch.program, arguments);
  ptx::Run(launch, Settings{});
  for (uint32_t j = 0; j < out.size(); ++j) EXPECT_EQ(out[j], j / 64 + 320);

  Image sums(KernelText("atom.global.add.u32 %r3, [%rd0], %r1;", {0, 0, 0, 0}));
  Settings settings;
  settings.threads = 3;
  uint32_t sum = 0;
  Launch1(&sums, "test", {200, 2, 2}, {96}, settings, &sum, &sum, &sum, &sum);
  EXPECT_EQ(sum, 4u * (200 * 96 * (200 * 96 - 1) / 2));
}

// As cooperative groups do it: four blocks meet at a counter next to the address that the driver
// leaves in %envreg1 and 2, between writing a number and reading that of the next block.
TEST(ControlTest, BlocksMeetInTheMemoryOfACooperativeLaunch) {
  const std::string body =
      "mov.u32 %r5, %envreg1; mov.u32 %r6, %envreg2; cvt.u64.u32 %rd5, %r5; cvt.u64.u32 %rd6, "
      "%r6;\n"
      "shl.b64 %rd5, %rd5, 32; or.b64 %rd6, %rd6, %rd5;\n"
      "add.u32 %r9, %r1, 7; st.global.u32 [%rd0], %r9;\n"
      "bar.sync 0; setp.ne.u32 %p1, %r0, 0; @%p1 bra MET;\n"
      "mov.u32 %r7, %ctaid.x; setp.eq.u32 %p2, %r7, 0; selp.u32 %r8, 0x7ffffffd, 1, %p2;\n"
      "atom.add.release.gpu.u32 %r10, [%rd6+4], %r8;\n"
      "WAIT: ld.acquire.gpu.u32 %r11, [%rd6+4]; xor.b32 %r11, %r11, %r10;\n"
      "setp.ge.s32 %p1, %r11, 0; @%p1 bra WAIT;\nMET: bar.sync 0;\n"
      "add.u32 %r12, %r1, 64; and.b32 %r12, %r12, 255; mul.wide.u32 %rd7, %r12, 4;\n"
      "add.u64 %rd7, %rd1, %rd7; ld.global.u32 %r9, [%rd7]; st.global.u32 [%rd3], %r9;";
  Image image(KernelText(body, {4, 0, 0, 4}));
  std::vector<uint32_t> numbers(256), out(256);
  Launch launch;
  launch.program = image.FindKernel("test");
  launch.grid = {4};
  launch.block = {64};
  launch.cooperative = true;
  const void* pointers[] = {numbers.data(), numbers.data(), nullptr, out.data()};
  void* arguments[] = {&pointers[0], &pointers[1], &pointers[2], &pointers[3]};
  launch.parameters = PackParameters(*launch.program, arguments);
  Settings settings;
  settings.find_races = true;
  settings.accessible = [&](uintptr_t at) {
    for (const std::vector<uint32_t>* const memory : {&numbers, &out}) {
      const auto begin = reinterpret_cast<uintptr_t>(memory->data());
      if (at - begin < 1024) return Extent{begin, begin + 1024};
    }
    return Extent{};
  };
  for (const Settings::Order order :
       {Settings::Order::kForward, Settings::Order::kReverse, Settings::Order::kRandom}) {
    settings.order = order;
    numbers.assign(256, 0);
    ptx::Run(launch, settings);
    for (uint32_t j = 0; j < 256; ++j) EXPECT_EQ(out[j], (j + 64) % 256 + 7);
  }
  // Other launches have no such place.
  launch.cooperative = false;
  EXPECT_NE(MessageOf([&] { ptx::Run(launch, settings); }).find("at address 0x4"),
            std::string::npos);
}

}  // namespace
}  // namespace cudasim::ptx
