#include "tools/cudasim/ptx/pointers.h"

#include <bitset>
#include <string_view>

#include "tools/cudasim/ptx/flow.h"

namespace cudasim {
namespace ptx {
namespace {

// A set of 8-byte words among the 4 KiB that parameters can have.
using Words = std::bitset<512>;

bool Has(const Statement& statement, std::string_view part) {
  return statement.opcode.find(part) != std::string_view::npos;
}

class PointerFinder {
 public:
  explicit PointerFinder(const Program& program)
      : program_(program), from_(program.body.registers.size()) {}

  std::vector<PointerParameter> Find() {
    // A loop can carry an address to statements before the one that computes it.
    while (Propagate()) {
    }
    Words read, written;
    for (const Statement& statement : program_.body.statements) {
      const std::string_view opcode = BaseOpcode(statement);
      const bool elsewhere = Has(statement, ".shared") && opcode != "cp";
      if (elsewhere || Has(statement, ".local") || Has(statement, ".param")) continue;
      if (opcode == "ld" || opcode == "ldu") read |= Address(statement, 1);
      if (opcode == "st" || opcode == "red") written |= Address(statement, 0);
      if (opcode == "atom") written |= Address(statement, 1);
      if (opcode == "cp" && statement.operands.size() > 2) read |= Address(statement, 1);
    }
    std::vector<PointerParameter> found;
    for (size_t word = 0; word < read.size(); ++word) {
      if (!read[word] && !written[word]) continue;
      found.push_back({static_cast<uint32_t>(8 * word), written[word]});
    }
    return found;
  }

 private:
  bool IsWide(const Operand& operand) const {
    return operand.reg >= 0 && program_.body.registers[operand.reg] == Width::k64;
  }

  Words Address(const Statement& statement, size_t operand) const {
    const Operand& address = statement.operands.at(operand);
    return IsWide(address) ? from_[address.reg] : Words();
  }

  bool Add(const Operand& result, const Words& words) {
    if (!IsWide(result)) return false;
    const Words before = from_[result.reg];
    from_[result.reg] |= words;
    return from_[result.reg] != before;
  }

  bool Propagate() {
    bool changed = false;
    for (const Statement& statement : program_.body.statements) {
      if (!HasResult(statement) || statement.operands.size() < 2) continue;
      const std::string_view opcode = BaseOpcode(statement);
      if (opcode == "ld") {
        changed |= Has(statement, ".param") && AddLoaded(statement);
      } else if (opcode != "atom" && opcode != "ldu" && IsWide(statement.operands[0])) {
        Words sources;
        for (size_t j = 1; j < statement.operands.size(); ++j) {
          if (IsWide(statement.operands[j])) sources |= from_[statement.operands[j].reg];
        }
        changed |= Add(statement.operands[0], sources);
      }
    }
    return changed;
  }

  // ld.param.u64 %rd1, [kernel_param_0+8], or a vector of results. A wide register may also take a
  // narrow value, ld.param.s32 %rd1, which is no address.
  bool AddLoaded(const Statement& statement) {
    if (!Has(statement, "64")) return false;
    const Operand &result = statement.operands[0], &address = statement.operands[1];
    bool changed = false;
    for (size_t j = 0; j < program_.parameters.size(); ++j) {
      if (program_.parameters[j].name != address.symbol) continue;
      uint64_t word = (program_.parameter_offsets[j] + address.value) / 8;
      const auto add = [&](const Operand& one) {
        if (word < Words().size()) changed |= Add(one, Words().set(word));
        ++word;
      };
      if (result.elements.empty()) add(result);
      for (const Operand& element : result.elements) add(element);
    }
    return changed;
  }

  const Program& program_;
  std::vector<Words> from_;  // by register: the words that its value was computed from
};

}  // namespace

std::vector<PointerParameter> FindPointers(const Program& program) {
  return PointerFinder(program).Find();
}

}  // namespace ptx
}  // namespace cudasim
