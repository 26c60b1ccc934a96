// Which parameters a kernel reads and writes through.
#include "tools/cudasim/ptx/pointers.h"

#include "tests/cudasim/ptx/machine.h"

namespace cudasim::ptx {
namespace {

// "a read, out written".
std::string PointersOf(const std::string& body) {
  Image image(KernelText(body, {4, 4, 4, 4}));
  std::string text;
  for (const PointerParameter& pointer : image.FindKernel("test")->pointers) {
    if (!text.empty()) text += ", ";
    text += std::array{"a", "b", "c", "out"}.at(pointer.offset / 8);
    text += pointer.written ? " written" : " read";
  }
  return text;
}

TEST(PointersTest, LoadsAndStores) {
  EXPECT_EQ(PointersOf("ld.global.u32 %r3, [%rd0]; st.global.u32 [%rd3+64], %r3;"),
            "a read, out written");
  EXPECT_EQ(PointersOf("ld.u32 %r3, [%rd0]; st.u32 [%rd0], %r3;"), "a written");
  EXPECT_EQ(PointersOf("red.global.add.u32 [%rd1], 1; atom.global.add.u32 %r3, [%rd2], 1;"),
            "b written, c written");
  EXPECT_EQ(PointersOf(".shared .align 16 .b8 tile[16];\nmov.u32 %r3, tile;\n"
                       "cp.async.ca.shared.global [%r3], [%rd1], 4; cp.async.wait_all;"),
            "b read");
}

TEST(PointersTest, NotWhatPassesThroughOtherMemory) {
  EXPECT_EQ(PointersOf(".shared .align 16 .b8 tile[16];\n"
                       "mov.u64 %rd5, tile; st.shared.u64 [%rd5], %rd0; ld.shared.u64 %rd6, [%rd5];"
                       "ld.global.u32 %r3, [%rd6];"),
            "");
  // A pointer that lies in global memory.
  EXPECT_EQ(PointersOf("ld.global.u64 %rd5, [%rd0]; st.global.u32 [%rd5], %r0;"), "a read");
}

TEST(PointersTest, ComputedAddresses) {
  // Around a loop, where the address is computed after its use.
  EXPECT_EQ(PointersOf("mov.u64 %rd5, %rd3;\nLOOP:\nld.global.u32 %r3, [%rd5];\n"
                       "mov.u64 %rd5, %rd6; add.u64 %rd6, %rd1, 8;\n"
                       "setp.lt.u32 %p1, %r3, 9; @%p1 bra LOOP;"),
            "b read, out read");
  EXPECT_EQ(PointersOf("setp.lt.u32 %p1, %r0, 9; selp.b64 %rd5, %rd0, %rd1, %p1;\n"
                       "st.global.u32 [%rd5], %r0;"),
            "a written, b written");
}

}  // namespace
}  // namespace cudasim::ptx
