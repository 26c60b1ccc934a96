#include "tools/cudasim/ptx/flow.h"

#include <algorithm>
#include <queue>

namespace cudasim {
namespace ptx {
namespace {

bool OneOf(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool EndsBlock(std::string_view opcode) { return OneOf(opcode, {"bra", "brx", "ret", "exit"}); }

template <typename F>
void ForEachRegister(const Operand& operand, F f) {
  if (operand.reg >= 0) f(operand.reg);
  if (operand.second >= 0) f(operand.second);
  for (const Operand& element : operand.elements) ForEachRegister(element, f);
}

// Calls defines(r) and uses(r). What a guarded instruction defines, it also uses: the registers of
// lanes that do not run it keep their values.
template <typename D, typename U>
void ForEachAccess(const Statement& statement, D defines, U uses) {
  if (statement.guard >= 0) uses(statement.guard);
  const bool result = HasResult(statement);
  for (size_t i = 0; i < statement.operands.size(); ++i) {
    const bool is_result = i == 0 && result;
    ForEachRegister(statement.operands[i], [&](int reg) {
      if (is_result) defines(reg);
      if (!is_result || statement.guard >= 0) uses(reg);
    });
  }
}

struct Block {
  int begin, end;  // statements
  std::vector<int> successors;
};

std::vector<Block> FindBlocks(const Body& body) {
  const std::vector<bool> leaders = FindLeaders(body);
  const auto count = static_cast<int>(body.statements.size());
  std::vector<Block> blocks;
  std::vector<int> block_of(count + 1);
  for (int i = 0; i < count; ++i) {
    if (leaders[i]) blocks.push_back({i, i, {}});
    blocks.back().end = i + 1;
    block_of[i] = static_cast<int>(blocks.size()) - 1;
  }
  block_of[count] = static_cast<int>(blocks.size());
  for (Block& block : blocks) {
    const Statement& last = body.statements[block.end - 1];
    const std::string_view opcode = BaseOpcode(last);
    std::vector<std::string_view> targets;
    if (opcode == "bra") targets.push_back(last.operands.at(0).symbol);
    if (opcode == "brx") targets = body.branch_targets.at(last.operands.at(1).symbol);
    for (const std::string_view target : targets) {
      block.successors.push_back(block_of[body.labels.at(target)]);
    }
    if (!EndsBlock(opcode) || last.guard >= 0) block.successors.push_back(block_of[block.end]);
    std::erase(block.successors, static_cast<int>(blocks.size()));
  }
  return blocks;
}

// Sets of registers, one per block.
class RegisterSets {
 public:
  RegisterSets(size_t sets, size_t registers)
      : words_((registers + 63) / 64), bits_(sets * words_) {}
  void Add(size_t set, int reg) { Word(set, reg) |= uint64_t{1} << (reg & 63); }
  void Remove(size_t set, int reg) { Word(set, reg) &= ~(uint64_t{1} << (reg & 63)); }
  uint64_t* operator[](size_t set) { return bits_.data() + set * words_; }
  size_t words() const { return words_; }

  template <typename F>
  void ForEach(size_t set, F f) {
    for (size_t w = 0; w < words_; ++w) {
      for (uint64_t bits = (*this)[set][w]; bits != 0; bits &= bits - 1) {
        f(static_cast<int>(64 * w) + __builtin_ctzll(bits));
      }
    }
  }

 private:
  uint64_t& Word(size_t set, int reg) { return (*this)[set][static_cast<size_t>(reg) / 64]; }

  size_t words_;
  std::vector<uint64_t> bits_;
};

// From the first statement to the last at which a register's value matters. Those of a register
// that is never used are empty.
struct Interval {
  int begin = 1 << 30, end = -1;
  void Include(int at) {
    begin = std::min(begin, at);
    end = std::max(end, at);
  }
};

std::vector<Interval> FindIntervals(const Body& body) {
  const std::vector<Block> blocks = FindBlocks(body);
  const size_t registers = body.registers.size();
  RegisterSets in(blocks.size(), registers), out(blocks.size(), registers),
      defined(blocks.size(), registers);
  for (size_t b = 0; b < blocks.size(); ++b) {
    for (int i = blocks[b].end - 1; i >= blocks[b].begin; --i) {
      const Statement& statement = body.statements[i];
      ForEachAccess(
          statement,
          [&](int reg) {
            in.Remove(b, reg);
            defined.Add(b, reg);
          },
          [](int) {});
      ForEachAccess(
          statement, [](int) {}, [&](int reg) { in.Add(b, reg); });
    }
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t b = blocks.size(); b-- > 0;) {
      for (size_t w = 0; w < in.words(); ++w) {
        uint64_t live = 0;
        for (int successor : blocks[b].successors) live |= in[successor][w];
        out[b][w] = live;
        const uint64_t before = in[b][w];
        in[b][w] |= live & ~defined[b][w];
        changed |= in[b][w] != before;
      }
    }
  }
  std::vector<Interval> intervals(registers);
  for (size_t b = 0; b < blocks.size(); ++b) {
    in.ForEach(b, [&](int reg) { intervals[reg].Include(blocks[b].begin); });
    out.ForEach(b, [&](int reg) { intervals[reg].Include(blocks[b].end - 1); });
    for (int i = blocks[b].begin; i < blocks[b].end; ++i) {
      const auto include = [&](int reg) { intervals[reg].Include(i); };
      ForEachAccess(body.statements[i], include, include);
    }
  }
  return intervals;
}

}  // namespace

std::string_view BaseOpcode(const Statement& statement) {
  return statement.opcode.substr(0, statement.opcode.find('.'));
}

bool HasResult(const Statement& statement) {
  const std::string_view opcode = BaseOpcode(statement);
  if (opcode == "bar" || opcode == "barrier") {
    return statement.opcode.find(".red.") != std::string_view::npos;
  }
  return !OneOf(opcode, {"st",
                         "bra",
                         "brx",
                         "ret",
                         "exit",
                         "call",
                         "cp",
                         "red",
                         "membar",
                         "fence",
                         "trap",
                         "brkpt",
                         "nanosleep",
                         "prefetch",
                         "prefetchu",
                         "discard",
                         "applypriority",
                         "stmatrix",
                         "griddepcontrol",
                         "pmevent"});
}

std::vector<bool> FindLeaders(const Body& body) {
  std::vector<bool> leaders(body.statements.size() + 1, false);
  leaders[0] = true;
  for (const auto& [label, statement] : body.labels) leaders[statement] = true;
  for (size_t i = 0; i < body.statements.size(); ++i) {
    const Statement& statement = body.statements[i];
    const std::string_view opcode = BaseOpcode(statement);
    const bool jumped_over =
        statement.guard >= 0 && OneOf(opcode, {"call", "bar", "barrier", "nanosleep"});
    if (EndsBlock(opcode) || jumped_over) leaders[i + 1] = true;
  }
  return leaders;
}

std::vector<int> SoleDefinitions(const Body& body) {
  constexpr int kNone = -1, kSeveral = -2;
  std::vector<int> definitions(body.registers.size(), kNone);
  for (size_t i = 0; i < body.statements.size(); ++i) {
    const Statement& statement = body.statements[i];
    ForEachAccess(
        statement,
        [&](int reg) {
          const bool first = definitions[reg] == kNone && statement.guard < 0;
          definitions[reg] = first ? static_cast<int>(i) : kSeveral;
        },
        [](int) {});
  }
  std::replace(definitions.begin(), definitions.end(), kSeveral, kNone);
  return definitions;
}

Layout PlaceRegisters(const Body& body) {
  constexpr int kWidths = 4;
  const std::vector<Interval> intervals = FindIntervals(body);
  std::vector<int> order;
  for (size_t reg = 0; reg < intervals.size(); ++reg) {
    if (intervals[reg].end >= 0) order.push_back(static_cast<int>(reg));
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return intervals[a].begin < intervals[b].begin; });

  std::vector<uint32_t> index(intervals.size());  // among the places of its width
  uint32_t counts[kWidths] = {};
  std::vector<uint32_t> free[kWidths];
  using Ending = std::pair<int, int>;  // an interval's end, and its register
  std::priority_queue<Ending, std::vector<Ending>, std::greater<>> active;
  for (int reg : order) {
    for (; !active.empty() && active.top().first < intervals[reg].begin; active.pop()) {
      const int ended = active.top().second;
      free[static_cast<int>(body.registers[ended])].push_back(index[ended]);
    }
    const auto width = static_cast<int>(body.registers[reg]);
    if (free[width].empty()) {
      index[reg] = counts[width]++;
    } else {
      index[reg] = free[width].back();
      free[width].pop_back();
    }
    active.push({intervals[reg].end, reg});
  }

  Layout layout;
  uint32_t begin[kWidths];
  for (int width = 0; width < kWidths; ++width) {
    begin[width] = layout.bytes;
    layout.bytes += counts[width] * LaneBytes(static_cast<Width>(width));
    layout.bytes = (layout.bytes + 63) / 64 * 64;
  }
  layout.slots.resize(intervals.size());
  for (size_t reg = 0; reg < intervals.size(); ++reg) {
    const Width width = body.registers[reg];
    layout.slots[reg] =
        MakeSlot(kRegisters, begin[static_cast<int>(width)] + index[reg] * LaneBytes(width));
  }
  return layout;
}

}  // namespace ptx
}  // namespace cudasim
