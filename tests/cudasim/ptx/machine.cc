#include "tests/cudasim/ptx/machine.h"

#include <algorithm>

#include "tools/cudasim/ptx/types.h"

namespace cudasim::ptx {
namespace {

// The type of memory and registers for an operand, by its size.
std::string Bits(const std::string& type) {
  return "b" + std::to_string(std::max(16, 8 * BytesOf(TypeNamed(type))));
}

}  // namespace

std::string KernelText(const std::string& body, std::array<int, 4> strides) {
  std::string text = Header() +
                     ".visible .entry test(.param .u64 pa, .param .u64 pb, .param .u64 pc, "
                     ".param .u64 pd) {\n"
                     ".reg .pred %p<16>; .reg .b16 %h<16>; .reg .b32 %r<32>; .reg .f32 %f<32>;\n"
                     ".reg .b64 %rd<32>; .reg .f64 %fd<16>;\n"
                     "mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x;\n"
                     "mad.lo.u32 %r1, %r1, %r2, %r0;\n";
  const char* const names[] = {"pa", "pb", "pc", "pd"};
  for (int j = 0; j < 4; ++j) {
    const std::string reg = "%rd" + std::to_string(j);
    text += "ld.param.u64 " + reg + ", [" + names[j] + "];\n";
    text += "mul.wide.u32 %rd4, %r1, " + std::to_string(strides[j]) + ";\n";
    text += "add.u64 " + reg + ", " + reg + ", %rd4;\n";
  }
  return text + body + "\nret;\n}\n";
}

std::vector<uint64_t> RunOperation(const OperationCase& operation,
                                   const std::vector<std::array<uint64_t, 3>>& arguments) {
  // Each value in 8 bytes.
  std::string body, operands;
  for (size_t j = 0; j < operation.arguments.size(); ++j) {
    const std::string bits = Bits(operation.arguments[j]), name = "%x" + std::to_string(j);
    const bool predicate = operation.arguments[j] == "pred";
    if (predicate) {
      body += ".reg .pred " + name + ";\nld.global.u32 %r5, [%rd" + std::to_string(j) +
              "];\nsetp.ne.u32 " + name + ", %r5, 0;\n";
    } else {
      body += ".reg ." + bits + " " + name + ";\nld.global." + bits + " " + name + ", [%rd" +
              std::to_string(j) + "];\n";
    }
    operands += ", " + name;
  }
  if (operation.result == "pred") {
    body += operation.opcode + " %p1" + operands + ";\nselp.u64 %rd5, 1, 0, %p1;\n" +
            "st.global.u64 [%rd3], %rd5;";
  } else {
    const std::string bits = Bits(operation.result);
    body += ".reg ." + bits + " %y;\n" + operation.opcode + " %y" + operands + ";\n" +
            "st.global." + bits + " [%rd3], %y;";
  }
  const size_t count = arguments.size();
  std::vector<uint64_t> columns[3];
  for (const auto& each : arguments) {
    for (int j = 0; j < 3; ++j) columns[j].push_back(each[j]);
  }
  std::vector<uint64_t> results(count, 0);
  Image image(KernelText(body, {8, 8, 8, 8}));
  // Whole warps, and the rest by one that lacks lanes.
  EXPECT_LE(count, size_t{1024} * 1024);
  const auto launch = [&](size_t first, uint32_t blocks, uint32_t threads) {
    if (blocks == 0 || threads == 0) return;
    Launch1(&image, "test", {blocks}, {threads}, Settings{}, columns[0].data() + first,
            columns[1].data() + first, columns[2].data() + first, results.data() + first);
  };
  const size_t whole = count / 128 * 128;
  launch(0, static_cast<uint32_t>(whole / 128), 128);
  launch(whole, 1, static_cast<uint32_t>(count - whole));
  return results;
}

}  // namespace cudasim::ptx
