// Instructions of whole warps, barriers, and matrix products.
#include "tools/cudasim/ptx/collectives.h"

#include <bit>
#include <cmath>
#include <numeric>
#include <random>

#include "cudasim/float_formats.h"
#include "tests/cudasim/ptx/machine.h"

namespace cudasim::ptx {
namespace {

// The results of a body that leaves a value for each thread in %r9; %r3 is its value of `in`.
std::vector<uint32_t> RunWarps(const std::string& body, const std::vector<uint32_t>& in) {
  std::vector<uint32_t> out(in.size(), 0);
  Image image(KernelText("ld.global.u32 %r3, [%rd0];\n" + body + "\nst.global.u32 [%rd3], %r9;",
                         {4, 0, 0, 4}));
  Launch1(&image, "test", {1}, {static_cast<uint32_t>(in.size())}, Settings{}, in.data(), in.data(),
          in.data(), out.data());
  return out;
}

std::vector<uint32_t> Values(size_t count) {
  std::vector<uint32_t> values(count);
  for (size_t j = 0; j < count; ++j) values[j] = static_cast<uint32_t>(j * 37 + 5);
  return values;
}

TEST(CollectivesTest, Shuffles) {
  const std::vector<uint32_t> in = Values(64);
  const auto check = [&](const std::string& arguments, auto source) {
    const std::vector<uint32_t> out = RunWarps("shfl.sync." + arguments + ", 0xffffffff;", in);
    for (int j = 0; j < 64; ++j) {
      const int lane = j % 32;
      EXPECT_EQ(out[j], in[j - lane + source(lane)]) << arguments << " in lane " << lane;
    }
  };
  check("bfly.b32 %r9, %r3, 5, 31", [](int k) { return k ^ 5; });
  check("bfly.b32 %r9, %r3, 16, 31", [](int k) { return k ^ 16; });
  check("down.b32 %r9, %r3, 3, 31", [](int k) { return k + 3 < 32 ? k + 3 : k; });
  check("up.b32 %r9, %r3, 3, 0", [](int k) { return k >= 3 ? k - 3 : k; });
  check("idx.b32 %r9, %r3, 7, 31", [](int) { return 7; });
  // Segments of 8 lanes.
  check("down.b32 %r9, %r3, 3, 0x181f", [](int k) { return k % 8 + 3 < 8 ? k + 3 : k; });
  check("up.b32 %r9, %r3, 2, 0x1800", [](int k) { return k % 8 >= 2 ? k - 2 : k; });
  check("idx.b32 %r9, %r3, 2, 0x181f", [](int k) { return k / 8 * 8 + 2; });
  const std::vector<uint32_t> valid =
      RunWarps("shfl.sync.down.b32 %r9|%p1, %r3, 30, 31, -1; selp.u32 %r9, 1, 0, %p1;", in);
  for (int j = 0; j < 64; ++j) EXPECT_EQ(valid[j], j % 32 < 2 ? 1u : 0u);
}

TEST(CollectivesTest, VotesMatchesAndReductions) {
  const std::vector<uint32_t> in = Values(32);
  const std::string odd = "and.b32 %r4, %r0, 1; setp.eq.u32 %p1, %r4, 1;\n";
  EXPECT_EQ(RunWarps(odd + "vote.sync.ballot.b32 %r9, %p1, -1;", in)[3], 0xaaaaaaaau);
  EXPECT_EQ(RunWarps(odd + "vote.sync.ballot.b32 %r9, !%p1, -1;", in)[3], 0x55555555u);
  EXPECT_EQ(RunWarps(odd + "vote.ballot.sync.b32 %r9, %p1, -1;", in)[3], 0xaaaaaaaau);
  const std::string flag = "selp.u32 %r9, 1, 0, %p2;";
  EXPECT_EQ(RunWarps(odd + "vote.sync.any.pred %p2, %p1, -1;" + flag, in)[0], 1u);
  EXPECT_EQ(RunWarps(odd + "vote.sync.all.pred %p2, %p1, -1;" + flag, in)[1], 0u);
  EXPECT_EQ(RunWarps(odd + "vote.sync.uni.pred %p2, %p1, -1;" + flag, in)[1], 0u);
  EXPECT_EQ(RunWarps("shr.u32 %r4, %r0, 3; match.any.sync.b32 %r9, %r4, -1;", in)[9], 0xff00u);
  EXPECT_EQ(RunWarps("match.all.sync.b32 %r9|%p1, %r2, -1;", in)[9], 0xffffffffu);
  EXPECT_EQ(RunWarps("match.all.sync.b32 %r9|%p1, %r0, -1;", in)[9], 0u);
  const uint32_t sum = std::accumulate(in.begin(), in.end(), 0u);
  EXPECT_EQ(RunWarps("redux.sync.add.s32 %r9, %r3, -1;", in)[30], sum);
  EXPECT_EQ(RunWarps("redux.sync.max.u32 %r9, %r3, -1;", in)[30], in.back());
  EXPECT_EQ(RunWarps("redux.sync.min.s32 %r9, %r3, -1;", in)[30], in[0]);
  EXPECT_EQ(RunWarps("activemask.b32 %r9;", in)[30], 0xffffffffu);
  EXPECT_EQ(RunWarps("setp.lt.u32 %p1, %r0, 8; mov.u32 %r9, 0; @%p1 activemask.b32 %r9;", in)[2],
            0xffu);
}

// Tiles and groups of lanes with a mask each, at one instruction.
TEST(CollectivesTest, SeveralMasksAtOnce) {
  const std::vector<uint32_t> in = Values(64);
  const std::string eights = "shr.u32 %r4, %r0, 3; match.any.sync.b32 %r5, %r4, -1;\n";
  const std::string odd = eights + "and.b32 %r4, %r0, 1; setp.eq.u32 %p1, %r4, 1;\n";
  const auto sums = RunWarps(eights + "redux.sync.add.s32 %r9, %r3, %r5;", in);
  const auto ballots = RunWarps(odd + "vote.sync.ballot.b32 %r9, %p1, %r5;", in);
  const auto matches = RunWarps(odd + "match.any.sync.b32 %r9, %r4, %r5;", in);
  const auto all =
      RunWarps(eights + "min.u32 %r4, %r0, 8; match.all.sync.b32 %r9|%p1, %r4, %r5;", in);
  const auto first = RunWarps(eights +
                                  "setp.eq.u32 %p1, %r0, 3; vote.sync.any.pred %p2, %p1, %r5;"
                                  "selp.u32 %r9, 1, 0, %p2;",
                              in);
  const auto shuffled = RunWarps(eights + "shfl.sync.bfly.b32 %r9, %r3, 5, 31, %r5;", in);
  for (uint32_t j = 0; j < 64; ++j) {
    const uint32_t begin = j / 8 * 8, shift = begin % 32;
    EXPECT_EQ(sums[j], std::accumulate(&in[begin], &in[begin] + 8, 0u)) << j;
    EXPECT_EQ(ballots[j], 0xaau << shift) << j;
    EXPECT_EQ(matches[j], (j % 2 == 1 ? 0xaau : 0x55u) << shift) << j;
    EXPECT_EQ(all[j], j < 8 ? 0u : 0xffu << shift) << j;  // only the first eight differ
    EXPECT_EQ(first[j], j < 8 ? 1u : 0u) << j;
    EXPECT_EQ(shuffled[j], in[j ^ 5]) << j;
  }
}

// The first eight lanes are complete when others of the second mask have yet to come.
TEST(CollectivesTest, OneOfTwoMasksIsComplete) {
  const std::string body =
      "setp.lt.u32 %p2, %r0, 8; selp.u32 %r5, 0xff, 0xffffff00, %p2;\n"
      "setp.ge.u32 %p1, %r0, 16; @%p1 bra FAR;\n"
      "GO: redux.sync.add.s32 %r9, %r3, %r5; bra END;\n"
      "FAR: add.u32 %r3, %r3, 1; bra GO;\nEND:";
  const std::vector<uint32_t> in = Values(32);
  const std::vector<uint32_t> out = RunWarps(body, in);
  const uint32_t eight = std::accumulate(&in[0], &in[8], 0u);
  const uint32_t others = std::accumulate(in.begin() + 8, in.end(), 16u);
  for (int j = 0; j < 32; ++j) EXPECT_EQ(out[j], j < 8 ? eight : others) << j;
}

TEST(CollectivesTest, MissingLanesAreReported) {
  const std::string message = MessageOf([] {
    RunWarps(
        "setp.lt.u32 %p1, %r0, 8; @%p1 bra SKIP; shfl.sync.bfly.b32 %r9, %r3, 1, 31, -1;\n"
        "SKIP: mov.u32 %r8, 1;",
        Values(32));
  });
  EXPECT_NE(message.find("lane 0 is in the mask, but does not take part"), std::string::npos)
      << message;
  // Those that have returned are not missed.
  RunWarps("setp.lt.u32 %p1, %r0, 8; @%p1 ret; shfl.sync.bfly.b32 %r9, %r3, 1, 31, -1;",
           Values(32));
}

TEST(CollectivesTest, Barriers) {
  // Each thread writes, and reads what a thread of another warp wrote; in all orders of warps.
  const std::string body =
      ".shared .b32 s[128];\nmov.u32 %r4, s; shl.b32 %r5, %r0, 2; add.u32 %r6, %r4, %r5;\n"
      "st.shared.u32 [%r6], %r3; bar.sync 0; xor.b32 %r5, %r5, 508; add.u32 %r6, %r4, %r5;\n"
      "ld.shared.u32 %r9, [%r6]; bar.sync 1, 128; st.global.u32 [%rd3], %r9;";
  Image image(KernelText("ld.global.u32 %r3, [%rd0];\n" + body, {4, 0, 0, 4}));
  const std::vector<uint32_t> in = Values(128);
  for (const Settings::Order order :
       {Settings::Order::kForward, Settings::Order::kReverse, Settings::Order::kRandom}) {
    std::vector<uint32_t> out(128, 0);
    Settings settings;
    settings.order = order;
    Launch1(&image, "test", {1}, {128}, settings, in.data(), in.data(), in.data(), out.data());
    for (int j = 0; j < 128; ++j) EXPECT_EQ(out[j], in[127 - j]);
  }
  const std::string odd = "and.b32 %r4, %r0, 1; setp.eq.u32 %p1, %r4, 1;\n";
  EXPECT_EQ(RunWarps(odd + "bar.red.popc.u32 %r9, 0, %p1;", Values(96))[70], 48u);
  EXPECT_EQ(
      RunWarps(odd + "bar.red.and.pred %p2, 0, %p1; selp.u32 %r9, 1, 0, %p2;", Values(96))[70], 0u);
  EXPECT_EQ(
      RunWarps(odd + "bar.red.or.pred %p2, 0, !%p1; selp.u32 %r9, 1, 0, %p2;", Values(96))[70], 1u);
}

TEST(CollectivesTest, BarriersThatDoNotMeetAreReported) {
  std::string message = MessageOf([] {
    RunWarps("setp.lt.u32 %p1, %r0, 8; @%p1 bra SKIP; bar.sync 0;\nSKIP: mov.u32 %r9, 1;",
             Values(32));
  });
  EXPECT_NE(message.find("lane 0 of the warp is not at this barrier"), std::string::npos)
      << message;
  message = MessageOf([] {
    RunWarps(
        "setp.lt.u32 %p1, %r0, 32; @%p1 bra A; bar.sync 1; bra B;\nA: bar.sync 2;\nB: mov.u32 %r9, "
        "1;",
        Values(64));
  });
  EXPECT_NE(message.find("warp 0 at barrier 2"), std::string::npos) << message;
  EXPECT_NE(message.find("warp 1 at barrier 1"), std::string::npos) << message;
}

// How mma adds, until the end of the scope.
class MatrixSumsGuard {
 public:
  explicit MatrixSumsGuard(MatrixSums sums) { matrix_sums = sums; }
  ~MatrixSumsGuard() { matrix_sums = MatrixSums::kFused; }
};

// d = a b + c by one warp, of matrices whose fragments the test lays out by itself: a[16][k] and
// b[k][8] in 16 bits, c[16][8] and d in f32 or f16.
std::vector<float> MatrixProduct(const std::string& types, int k, const std::vector<float>& a,
                                 const std::vector<float>& b, const std::vector<float>& c) {
  const bool bfloat = types.find("bf16") != std::string::npos, half_sums = types.starts_with("f16");
  const auto bits = [&](float x) -> uint32_t { return bfloat ? FloatToBf16(x) : FloatToHalf(x); };
  const int registers_a = k / 4, registers_b = k / 8, registers_c = half_sums ? 2 : 4;
  std::vector<uint32_t> fa(32 * registers_a), fb(32 * registers_b), fc(32 * registers_c),
      fd(fc.size());
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int q = 0; q < registers_a; ++q) {
      const int row = g + 8 * (q % 2), column = 2 * t + 8 * (q / 2);
      fa[lane * registers_a + q] = bits(a[row * k + column]) | bits(a[row * k + column + 1]) << 16;
    }
    for (int q = 0; q < registers_b; ++q) {
      fb[lane * registers_b + q] =
          bits(b[(2 * t + 8 * q) * 8 + g]) | bits(b[(2 * t + 1 + 8 * q) * 8 + g]) << 16;
    }
    for (int q = 0; q < registers_c; ++q) {
      if (half_sums) {
        const float* const at = &c[(g + 8 * q) * 8 + 2 * t];
        fc[lane * 2 + q] = bits(at[0]) | bits(at[1]) << 16;
      } else {
        fc[lane * 4 + q] = std::bit_cast<uint32_t>(c[(g + 8 * (q / 2)) * 8 + 2 * t + q % 2]);
      }
    }
  }
  const auto list = [](const char* name, int count) {
    std::string text = "{";
    for (int q = 0; q < count; ++q) text += (q ? ", " : "") + std::string(name) + std::to_string(q);
    return text + "}";
  };
  const auto vector = [](int count) { return count == 1 ? "" : ".v" + std::to_string(count); };
  const auto operand = [&](const char* name, int count) {
    return count == 1 ? std::string(name) + "0" : list(name, count);
  };
  const std::string body =
      ".reg .b32 %a<4>, %b<2>, %c<4>, %d<4>;\n"
      "ld.global" +
      vector(registers_a) + ".b32 " + operand("%a", registers_a) + ", [%rd0];\n" + "ld.global" +
      vector(registers_b) + ".b32 " + operand("%b", registers_b) + ", [%rd1];\n" + "ld.global" +
      vector(registers_c) + ".b32 " + operand("%c", registers_c) + ", [%rd2];\n" +
      "mma.sync.aligned.m16n8k" + std::to_string(k) + ".row.col." + types + " " +
      list("%d", registers_c) + ", " + list("%a", registers_a) + ", " + list("%b", registers_b) +
      ", " + list("%c", registers_c) + ";\nst.global" + vector(registers_c) + ".b32 [%rd3], " +
      list("%d", registers_c) + ";";
  Image image(
      KernelText(body, {4 * registers_a, 4 * registers_b, 4 * registers_c, 4 * registers_c}));
  Launch1(&image, "test", {1}, {32}, Settings{}, fa.data(), fb.data(), fc.data(), fd.data());
  std::vector<float> d(16 * 8);
  for (int lane = 0; lane < 32; ++lane) {
    for (int q = 0; q < 4; ++q) {
      d[(lane / 4 + 8 * (q / 2)) * 8 + 2 * (lane % 4) + q % 2] =
          half_sums ? HalfToFloat(static_cast<uint16_t>(fd[lane * 2 + q / 2] >> (16 * (q % 2))))
                    : std::bit_cast<float>(fd[lane * 4 + q]);
    }
  }
  return d;
}

// Of random numbers whose sums are exact.
void CheckProduct(const std::string& types, int k) {
  std::mt19937 random(6);
  const auto values = [&](int n) {
    std::vector<float> numbers(n);
    for (float& x : numbers) x = static_cast<float>(static_cast<int>(random() % 33) - 16) / 8;
    return numbers;
  };
  const std::vector<float> a = values(16 * k), b = values(k * 8), c = values(16 * 8);
  const std::vector<float> d = MatrixProduct(types, k, a, b, c);
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      float want = c[row * 8 + column];
      for (int j = 0; j < k; ++j) want += a[row * k + j] * b[j * 8 + column];
      if (types.starts_with("f16")) want = HalfToFloat(FloatToHalf(want));
      ASSERT_EQ(d[row * 8 + column], want)
          << types << " k " << k << ", row " << row << ", column " << column;
    }
  }
}

TEST(CollectivesTest, MatrixProducts) {
  for (const MatrixSums sums : {MatrixSums::kFused, MatrixSums::kAmpere, MatrixSums::kHopper}) {
    const MatrixSumsGuard guard(sums);
    CheckProduct("f32.bf16.bf16.f32", 16);
    CheckProduct("f32.f16.f16.f32", 16);
    CheckProduct("f32.bf16.bf16.f32", 8);
    CheckProduct("f32.f16.f16.f32", 8);
    CheckProduct("f16.f16.f16.f16", 16);
  }
}

// 1 plus small products, as each generation adds them.
TEST(CollectivesTest, MatrixProductsAreCutAsTensorCoresCutThem) {
  struct Case {
    std::vector<int> at;  // the products that are not 0, along k = 16
    float each;
    float fused, ampere, hopper;  // in units of 2^-23 above 1
  };
  const Case cases[] = {
      // Half a unit: rounded to even, and lost, one by one; within one sum of both generations two
      // are a unit.
      {{0, 1}, 0x1p-24f, 0, 1, 1},
      // Ampere adds eight at a time, and cuts the half off after each.
      {{0, 8}, 0x1p-24f, 0, 0, 1},
      // Below Ampere's last bit, and not below Hopper's.
      {{0, 1, 2, 3}, 0x1p-25f, 0, 0, 1},
      {{0, 1, 2, 3, 4, 5, 6, 7}, 0x1p-26f, 0, 0, 0},
      // Rounded up to even, or cut.
      {{4}, 0x1.8p-23f, 2, 1, 1},
  };
  for (const Case& each : cases) {
    std::vector<float> a(16 * 16), b(16 * 8, 1.0f), c(16 * 8, 1.0f);
    for (const int k : each.at) a[k] = each.each;
    const auto units = [&](MatrixSums sums) {
      const MatrixSumsGuard guard(sums);
      return (MatrixProduct("f32.bf16.bf16.f32", 16, a, b, c)[0] - 1) * 0x1p23f;
    };
    EXPECT_EQ(units(MatrixSums::kFused), each.fused);
    EXPECT_EQ(units(MatrixSums::kAmpere), each.ampere);
    EXPECT_EQ(units(MatrixSums::kHopper), each.hopper);
  }
}

TEST(CollectivesTest, KernelsSayWhetherTheyApproximate) {
  const auto approximates = [](const std::string& instruction) {
    Image image(KernelText(".reg .f32 %x<2>;\nmov.f32 %x0, 0f3f800000;\n" + instruction, {}));
    return image.FindKernel("test")->approximates;
  };
  EXPECT_TRUE(approximates("ex2.approx.ftz.f32 %x1, %x0;"));
  EXPECT_TRUE(approximates("rsqrt.approx.f32 %x1, %x0;"));
  EXPECT_FALSE(approximates("sqrt.rn.f32 %x1, %x0;"));
  const std::string product =
      ".reg .b32 %y<4>;\nmma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%y0, %y1, %y2, %y3}, "
      "{%y0, %y1}, {%y2}, {%y0, %y1, %y2, %y3};";
  EXPECT_TRUE(approximates(product));
  const MatrixSumsGuard guard(MatrixSums::kHopper);
  EXPECT_FALSE(approximates(product));
}

TEST(CollectivesTest, MatricesFromSharedMemory) {
  const auto run = [](const std::string& trans) {
    std::vector<uint16_t> in(4 * 64), out(4 * 64);
    std::iota(in.begin(), in.end(), uint16_t{1});
    // Each lane stores 16 bytes: a row.
    Image image(
        KernelText(".shared .align 16 .b8 s[512];\nld.global.v4.u32 {%r3, %r4, %r5, %r6}, [%rd0];\n"
                   "mov.u32 %r7, s; shl.b32 %r8, %r0, 4; add.u32 %r7, %r7, %r8;\n"
                   "st.shared.v4.u32 [%r7], {%r3, %r4, %r5, %r6}; bar.warp.sync -1;\n"
                   "ldmatrix.sync.aligned.m8n8.x4" +
                       trans +
                       ".shared.b16 {%r3, %r4, %r5, %r6}, [%r7];\n"
                       "st.global.v4.u32 [%rd3], {%r3, %r4, %r5, %r6};",
                   {16, 0, 0, 16}));
    Launch1(&image, "test", {1}, {32}, Settings{}, in.data(), in.data(), in.data(), out.data());
    return out;
  };
  const std::vector<uint16_t> plain = run(""), transposed = run(".trans");
  for (int lane = 0; lane < 32; ++lane) {
    for (int m = 0; m < 4; ++m) {
      for (int e = 0; e < 2; ++e) {
        const int row = lane / 4, column = 2 * (lane % 4) + e;
        EXPECT_EQ(plain[8 * lane + 2 * m + e], 64 * m + 8 * row + column + 1);
        EXPECT_EQ(transposed[8 * lane + 2 * m + e], 64 * m + 8 * column + row + 1);
      }
    }
  }
}

}  // namespace
}  // namespace cudasim::ptx
