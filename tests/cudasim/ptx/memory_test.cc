// Loads and stores of each space, atomics, copies, and what is reported about wrong ones.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <numeric>

#include "tests/cudasim/ptx/machine.h"
#include "tools/cudasim/ptx/block.h"

namespace cudasim::ptx {
namespace {

template <typename... T>
void RunTest(const std::string& body, std::array<int, 4> strides, uint32_t threads, T... pointers) {
  Image image(KernelText(body, strides));
  Launch1(&image, "test", {1}, {threads}, Settings{}, pointers...);
}

TEST(MemoryTest, VectorsAndSigns) {
  std::vector<int8_t> bytes(4 * 40);
  std::iota(bytes.begin(), bytes.end(), int8_t{-90});
  std::vector<int32_t> out(4 * 40, 0);
  RunTest(
      "ld.global.v4.s8 {%h0, %h1, %h2, %h3}, [%rd0];\n"
      "cvt.s32.s16 %r3, %h0; cvt.s32.s16 %r4, %h1; cvt.s32.s16 %r5, %h2; cvt.s32.s16 %r6, %h3;\n"
      "st.global.v4.u32 [%rd3], {%r3, %r4, %r5, %r6};",
      {4, 0, 0, 16}, 40, bytes.data(), out.data(), out.data(), out.data());
  for (size_t j = 0; j < out.size(); ++j) EXPECT_EQ(out[j], bytes[j]) << j;
}

TEST(MemoryTest, ScatteredAndWithOffsets) {
  std::vector<uint64_t> in(128), out(128, 0);
  std::iota(in.begin(), in.end(), 1);
  // out[n - 1 - i] = in[i + 1], with the last thread idle.
  RunTest(
      "setp.ge.u32 %p1, %r0, 63; @%p1 bra DONE;\n"
      "ld.global.u64 %rd5, [%rd0+8];\n"
      "sub.u32 %r3, 63, %r0; mul.wide.u32 %rd6, %r3, 8; add.u64 %rd7, %rd3, %rd6;\n"
      "st.global.u64 [%rd7+-8], %rd5;\nDONE:",
      {8, 0, 0, 0}, 64, in.data(), in.data(), in.data(), out.data());
  for (size_t i = 0; i < 63; ++i) EXPECT_EQ(out[62 - i], in[i + 1]) << i;
  EXPECT_EQ(out[63], 0u);
}

TEST(MemoryTest, SharedLocalAndGenericAddresses) {
  std::vector<uint32_t> in(64), out(64, 0);
  std::iota(in.begin(), in.end(), 100);
  RunTest(
      ".shared .align 4 .b8 tile[256];\n.local .align 4 .b8 own[8];\n"
      "ld.global.u32 %r3, [%rd0];\n"
      "mov.u32 %r4, tile; shl.b32 %r5, %r0, 2; add.u32 %r4, %r4, %r5;\n"
      "st.shared.u32 [%r4], %r3;\nbar.sync 0;\n"
      "xor.b32 %r5, %r5, 252; cvt.u64.u32 %rd5, %r5; mov.u64 %rd6, tile;\n"
      "cvta.shared.u64 %rd6, %rd6; add.u64 %rd6, %rd6, %rd5;\n"
      "ld.u32 %r6, [%rd6];\n"  // generic, in shared memory
      "mov.u64 %rd7, own; st.local.u32 [%rd7+4], %r6;\n"
      "cvta.local.u64 %rd8, %rd7; ld.u32 %r7, [%rd8+4];\n"  // in local memory
      "isspacep.shared %p1, %rd6; selp.u32 %r8, 1000, 0, %p1; add.u32 %r7, %r7, %r8;\n"
      "isspacep.global %p1, %rd3; selp.u32 %r8, 5000, 0, %p1; add.u32 %r7, %r7, %r8;\n"
      "st.u32 [%rd3], %r7;",  // in global memory
      {4, 0, 0, 4}, 64, in.data(), in.data(), in.data(), out.data());
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(out[i], in[63 - i] + 6000) << i;
}

TEST(MemoryTest, ParametersAreAddressable) {
  const std::string text =
      Header() +
      ".visible .entry test(.param .align 8 .b8 s[24], .param .u64 out) {\n"
      ".reg .b64 %rd<8>; .reg .b32 %r<8>;\n"
      "mov.u32 %r1, %tid.x; mul.wide.u32 %rd1, %r1, 8; mov.b64 %rd2, s; add.s64 %rd3, %rd2, %rd1;\n"
      "ld.param.u64 %rd4, [%rd3]; ld.param.u64 %rd5, [out]; add.s64 %rd5, %rd5, %rd1;\n"
      "st.global.u64 [%rd5], %rd4; ret;\n}\n";
  struct Three {
    uint64_t x[3];
  };
  std::vector<uint64_t> out(3);
  Image image(text);
  Launch1(&image, "test", {1}, {3}, Settings{}, Three{{7, 8, 9}}, out.data());
  EXPECT_EQ(out, (std::vector<uint64_t>{7, 8, 9}));
}

TEST(MemoryTest, ModuleVariables) {
  const std::string text =
      Header() +
      ".global .align 4 .u32 table[4] = {10, 20, 30};\n"
      ".const .align 8 .u64 where[1] = {generic(table)+4};\n"
      ".visible .entry test(.param .u64 out) {\n.reg .b64 %rd<8>; .reg .b32 %r<8>;\n"
      "ld.const.u64 %rd1, [where]; ld.u32 %r1, [%rd1+4]; ld.global.u32 %r2, [table+12];\n"
      "add.u32 %r1, %r1, %r2; ld.param.u64 %rd2, [out]; st.global.u32 [%rd2], %r1;\n"
      "st.global.u32 [table], %r1; ret;\n}\n";
  uint32_t out = 0;
  Image image(text);
  Launch1(&image, "test", {1}, {1}, Settings{}, &out);
  EXPECT_EQ(out, 30u);
  const Image::Memory table = image.FindVariable("table");
  EXPECT_EQ(table.bytes, 16u);
  EXPECT_EQ(*reinterpret_cast<const uint32_t*>(table.data), 30u);
}

TEST(MemoryTest, Atomics) {
  uint32_t counts[8] = {0, 0, 0xffffffff, 0, 5, 0, 100, 0};
  float sum = 0;
  std::vector<uint32_t> old(96);
  RunTest(
      "atom.global.add.u32 %r3, [%rd0], 1;\nst.global.u32 [%rd3], %r3;\n"
      "red.global.max.s32 [%rd0+4], %r0;\nred.global.and.b32 [%rd0+8], 0xff0;\n"
      "atom.global.inc.u32 %r4, [%rd0+12], 9;\n"
      "atom.global.cas.b32 %r5, [%rd0+16], 5, %r0;\n"
      "atom.global.exch.b32 %r5, [%rd0+20], 77;\n"
      "atom.global.min.u32 %r5, [%rd0+24], %r0;\n"
      "mov.f32 %f1, 0f3F000000; red.global.add.f32 [%rd1], %f1;",
      {0, 0, 0, 4}, 96, &counts[0], &sum, &sum, old.data());
  EXPECT_EQ(counts[0], 96u);
  EXPECT_EQ(counts[1], 95u);
  EXPECT_EQ(counts[2], 0xff0u);
  EXPECT_EQ(counts[3], 96u % 10);
  EXPECT_EQ(counts[4], 0u);
  EXPECT_EQ(counts[5], 77u);
  EXPECT_EQ(counts[6], 0u);
  EXPECT_EQ(sum, 48.0f);
  std::sort(old.begin(), old.end());
  for (uint32_t j = 0; j < 96; ++j) EXPECT_EQ(old[j], j);
}

// Each thread copies 16 bytes, and reads its neighbour's after `wait`.
std::string CopyKernel(const std::string& wait) {
  return ".shared .align 16 .b8 tile[1024];\n"
         "mov.u32 %r3, tile; shl.b32 %r4, %r0, 4; add.u32 %r3, %r3, %r4;\n"
         "cp.async.cg.shared.global [%r3], [%rd0], 16;\ncp.async.commit_group;\n"
         "mov.u32 %r6, 8; cp.async.ca.shared.global [%r3+512], [%rd0], 16, %r6;\n"
         "cp.async.commit_group;\n" +
         wait +
         "bar.sync 0;\n"
         "ld.shared.u32 %r5, [%r3+4]; st.global.u32 [%rd3], %r5;\n"
         "ld.shared.u32 %r5, [%r3+524]; st.global.u32 [%rd2], %r5;";
}

TEST(MemoryTest, CopiesArriveWhenTheyAreWaitedFor) {
  std::vector<uint32_t> in(4 * 32), first(32), second(32);
  std::iota(in.begin(), in.end(), 1);
  const auto run = [&](const std::string& wait) {
    RunTest(CopyKernel(wait), {16, 0, 4, 4}, 32, in.data(), in.data(), second.data(), first.data());
  };
  run("cp.async.wait_group 0;\n");
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(first[i], in[4 * i + 1]);
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(second[i], 0u) << "not copied: zero";
  run("cp.async.wait_group 1;\n");
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(first[i], in[4 * i + 1]);
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(second[i], 0xffffffffu);
  run("");
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(first[i], 0xffffffffu);
}

std::string Report(const std::string& body, uint32_t threads, const Settings& settings,
                   void* data) {
  return MessageOf([&] {
    Image image(KernelText(body, {4, 0, 0, 4}) + ".file 1 \"x.cu\"\n.file 2 \"y.cuh\"\n");
    Launch1(&image, "test", {1}, {threads}, settings, data, data, data, data);
  });
}

// ThreadSanitizer takes all that follows for a part of the handler that is left.
#if !defined(__SANITIZE_THREAD__)
// The copy is made at the wait, when its lane's registers hold something else.
TEST(MemoryTest, AFaultInACopyIsReportedOfTheInstructionThatBeganIt) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const memory =
      mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* const end = static_cast<std::byte*>(memory) + page;
  ASSERT_EQ(mprotect(end, page, PROT_NONE), 0);
  struct sigaction action = {}, previous;
  action.sa_sigaction = [](int, siginfo_t* info, void*) {
    if (Block::Running() == nullptr) std::abort();
    Block::Running()->Leave(reinterpret_cast<uintptr_t>(info->si_addr), Bug::kOutOfBounds, "freed");
  };
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, &previous);
  std::vector<uint32_t> out(32);
  Image image(KernelText(
      ".shared .align 16 .b8 tile[512];\nmov.u32 %r3, tile; shl.b32 %r4, %r0, 4; add.u32 %r3, %r3, "
      "%r4;\ncp.async.cg.shared.global [%r3], [%rd0], 16;\n"
      "mov.u64 %rd0, %rd3; st.global.u32 [%rd3], %r0; cp.async.wait_all;",
      {16, 0, 0, 4}));
  const std::string message = MessageOf([&] {
    Launch1(&image, "test", {1}, {32}, Settings{}, end - 5 * 16, out.data(), out.data(),
            out.data());
  });
  sigaction(SIGSEGV, &previous, nullptr);
  munmap(memory, 2 * page);
  EXPECT_NE(message.find("thread (5,0,0) of (32,1,1)\nfreed"), std::string::npos) << message;
  EXPECT_NE(message.find(": cp.async.cg"), std::string::npos) << message;
}
#endif

// The first warp's lanes have begun to copy what the second's then write.
TEST(MemoryTest, WritingTheSourceOfACopyThatIsNotWaitedForIsARace) {
  const auto message = [](const std::string& between) {
    std::vector<uint32_t> in(4 * 64);
    Image image(
        KernelText(".shared .align 16 .b8 tile[512];\nsetp.ge.u32 %p1, %r0, 32; @%p1 bra SECOND;\n"
                   "mov.u32 %r3, tile; shl.b32 %r4, %r0, 4; add.u32 %r3, %r3, %r4;\n"
                   "cp.async.cg.shared.global [%r3], [%rd0], 16;\n" +
                       between + "cp.async.wait_all;\nbra END;\n" +
                       "SECOND: bar.sync 0; st.global.u32 [%rd0+-508], %r0;\nEND:",
                   {16, 0, 0, 0}));
    Settings settings;
    settings.find_races = true;
    return MessageOf([&] {
      Launch1(&image, "test", {1}, {64}, settings, in.data(), in.data(), in.data(), in.data());
    });
  };
  EXPECT_EQ(message("cp.async.wait_all;\nbar.sync 0;\n"), "");
  EXPECT_NE(message("bar.sync 0;\n").find("which thread (0,0,0) read, and nothing orders the two"),
            std::string::npos);
}

TEST(MemoryTest, WrongAccessesAreReportedWithTheirPlace) {
  uint32_t data[64] = {};
  Settings settings;
  const auto begin = reinterpret_cast<uintptr_t>(data);
  settings.accessible = [=](uintptr_t) { return Extent{begin, begin + 64 * 4}; };
  settings.describe = [](uintptr_t) { return std::string("beside the data"); };
  EXPECT_EQ(Report("ld.global.u32 %r3, [%rd0];", 64, settings, data), "");
  std::string message = Report(
      ".loc 1 7 3\n.loc 2 9 1, function_name $x, inlined_at 1 7 3\nld.global.u32 %r3, [%rd0];", 65,
      settings, data);
  EXPECT_NE(message.find("beside the data"), std::string::npos) << message;
  EXPECT_NE(message.find("thread (64,0,0) of (65,1,1)"), std::string::npos) << message;
  EXPECT_NE(message.find("y.cuh:9, inlined at x.cu:7"), std::string::npos) << message;
  EXPECT_NE(message.find("ld.global.u32"), std::string::npos) << message;
  message = Report("st.global.u64 [%rd0+4], %rd1;", 1, settings, data);
  EXPECT_NE(message.find(begin % 8 == 0 ? "no multiple of 8" : ""), std::string::npos) << message;
  message =
      Report(".shared .b32 s[4];\nmov.u32 %r3, s; ld.shared.u32 %r4, [%r3+16];", 1, settings, data);
  EXPECT_NE(message.find("shared memory, which has 16 bytes"), std::string::npos) << message;
  message = Report("ld.shared.u32 %r4, [%r1+2];", 1, settings, data);
  EXPECT_NE(message.find("no multiple of 4"), std::string::npos) << message;
  // A generic address whose upper bits are no window's.
  message = Report("or.b64 %rd5, %rd0, 0x8000000000000000; ld.u32 %r4, [%rd5];", 1, settings, data);
  EXPECT_NE(message.find("at address 0x8"), std::string::npos) << message;
  EXPECT_NE(message.find("no global memory of this kernel"), std::string::npos) << message;
}

}  // namespace
}  // namespace cudasim::ptx
