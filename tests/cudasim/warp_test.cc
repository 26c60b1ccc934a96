// The warp functions as the programming guide defines them.
#include "tests/cudasim/device_buffer.h"
#include "tests/cudasim/kernels.h"

namespace lockstep {
namespace {

std::vector<unsigned> Expected(unsigned thread) {
  const unsigned lane = thread % 32, warp = thread - lane, base = 100 + warp;
  auto other = [&](unsigned from) { return base + from; };
  unsigned ballot = 0, sum = 0, exclusive = 0, same = 0;
  for (unsigned l = 0; l < 32; ++l) {
    if (l % 3 == 0) ballot |= 1u << l;
    if (l / 10 == lane / 10) same |= 1u << l;
    sum += base + l;
    exclusive ^= base + l;
  }
  unsigned conjunction = ~0u;
  for (unsigned l = 0; l < 32; ++l) conjunction &= (base + l) | 3;
  return {
      other(5),
      other(lane / 8 * 8 + 13 % 8),
      other(lane < 3 ? lane : lane - 3),
      other(lane % 16 < 3 ? lane : lane - 3),
      other(lane + 7 > 31 ? lane : lane + 7),
      other(lane % 4 == 3 ? lane : lane + 1),
      other(lane ^ 17),
      // Groups above a lane's own cannot be read; those below can.
      other((lane ^ 12) > (lane | 7) ? lane : lane ^ 12),
      ballot,
      (warp == 32 ? 2u : 0u) + (warp == 0 ? 1u : 0u),
      sum,
      static_cast<unsigned>(7 - 31),
      (base + 31) << 16 | 0xff,
      same,
      other(lane ^ 1),
      lane >= 24 ? 8u + 4u : 0u,
      exclusive << 16 | (conjunction & 0xffff),
      1u,
      lane + 2 > 31 ? lane : lane + 2,
  };
}

TEST(WarpTest, EveryFunction) {
  const auto got = InAllOrders([] {
    DeviceBuffer<unsigned> out(kWarpFunctions * 64);
    EXPECT_EQ(RunWarpFunctions(out.data()), cudaSuccess);
    return out.Read();
  });
  for (unsigned thread = 0; thread < 64; ++thread) {
    const auto expected = Expected(thread);
    ASSERT_EQ(expected.size(), size_t{kWarpFunctions});
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(got[kWarpFunctions * thread + i], expected[i])
          << "thread " << thread << " value " << i;
    }
  }
}

}  // namespace
}  // namespace lockstep
