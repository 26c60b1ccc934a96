#include "dist/preflight/report.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "dist/collective.h"
#include "dist/preflight/pair_schedule.h"

namespace lockstep::dist {
namespace {

using Row = std::vector<std::string>;

// Columns of equal width, the first `left` of them aligned to the left.
std::string Table(const std::vector<Row>& rows, size_t left) {
  std::vector<size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - row[i].size(), ' ');
      line += StrCat("  ", i < left ? row[i] + space : space + row[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

class Writer {
 public:
  explicit Writer(const PreflightFacts& facts)
      : facts_(facts),
        machines_(MachinesOf(facts.ranks)),
        machine_of_(MachineOfRanks(machines_)),
        names_(MachineNames(facts.ranks, machines_)) {}

  std::string Run(const Judgement& judgement) {
    Machines();
    Network();
    Versions();
    Pairs();
    Sum();
    Clocks();
    List("slow, or worth a look:", judgement.warnings);
    List("would stop a run:", judgement.stops);
    if (judgement.stops.empty()) text_ += "nothing found that would stop a run\n";
    return std::move(text_);
  }

 private:
  const RankFacts& Of(int rank) const { return facts_.ranks[static_cast<size_t>(rank)]; }

  void Machines() {
    text_ += StrCat(facts_.ranks.size(), facts_.ranks.size() == 1 ? " rank on " : " ranks on ",
                    machines_.size(), machines_.size() == 1 ? " machine\n" : " machines\n");
    std::vector<Row> rows = {{"machine", "ranks", "device", "address", "interface"}};
    for (size_t m = 0; m < machines_.size(); ++m) {
      const auto& ranks = machines_[m];
      // Ranks of a machine have devices of one kind, "cuda:0", "cuda:1", ...
      const RankFacts &first = Of(ranks.front()), &last = Of(ranks.back());
      std::string device = first.device;
      if (last.device != first.device) device += " to " + last.device;
      if (!first.gpu.name.empty()) device += StrCat(" (", first.gpu.name, ")");
      const bool is_run = ranks.back() - ranks.front() + 1 == std::ssize(ranks);
      const std::string list = ranks.size() == 1 ? StrCat(ranks.front())
                               : is_run          ? StrCat(ranks.front(), "-", ranks.back())
                                                 : ListRanks(ranks);
      const auto mbits = first.mbits.find(first.interface);
      const std::string speed =
          mbits == first.mbits.end() ? "" : StrCat(" (", mbits->second, " Mbit/s)");
      rows.push_back({names_[m], list, device, first.address, first.interface + speed});
    }
    text_ += Table(rows, 5);
  }

  void Network() {
    std::map<std::string, std::vector<std::string>> why;  // machines
    for (size_t m = 0; m < machines_.size(); ++m) {
      why[Of(machines_[m].front()).why].push_back(names_[m]);
    }
    text_ += "why this interface:\n";
    for (const auto& [reason, machines] : why) {
      text_ += StrCat("  ", reason);
      if (why.size() > 1) {
        text_ += StrCat(" (", machines.front());
        if (machines.size() > 1) text_ += StrCat(" and ", machines.size() - 1, " more");
        text_ += ")";
      }
      text_ += "\n";
    }
    if (Of(0).gpu.bus.empty() || machines_.size() == 1) return;
    const auto set = Of(0).settings.find("NCCL_SOCKET_IFNAME");
    text_ += set == Of(0).settings.end()
                 ? StrCat(
                       "  NCCL chooses its network itself, perhaps another one: "
                       "NCCL_SOCKET_IFNAME=",
                       Of(0).interface, " would name it\n")
                 : StrCat("  NCCL uses NCCL_SOCKET_IFNAME=", set->second, "\n");
  }

  void Versions() {
    text_ += "versions:\n";
    std::vector<Row> rows;
    for (const auto& [name, parties] : PartiesOf(facts_.ranks, &RankFacts::versions, "missing")) {
      for (const Party& party : parties) {
        rows.push_back({name, party.text, parties.size() > 1 ? ListRanks(party.ranks) : ""});
      }
    }
    text_ += Table(rows, 3);
  }

  void Pairs() {
    if (facts_.pairs.empty()) return;
    const bool each = std::ssize(facts_.ranks) <= PairSchedule::kMostOfAllPairs;
    // The pairs of a cell, by its row and column.
    std::map<std::pair<int, int>, std::vector<const PairFacts*>> cells;
    for (const PairFacts& p : facts_.pairs) {
      const int a = each ? p.a : machine_of_[static_cast<size_t>(p.a)];
      const int b = each ? p.b : machine_of_[static_cast<size_t>(p.b)];
      cells[std::minmax(a, b)].push_back(&p);
    }
    text_ += StrCat("pairs of ", each ? "ranks" : "machines (medians)",
                    ": below the diagonal GB/s in each direction, both at once; above it the "
                    "latency in us\n");
    const auto size = static_cast<int>(each ? facts_.ranks.size() : machines_.size());
    std::vector<Row> rows(1, {each ? "rank" : "machine"});
    for (int i = 0; i < size; ++i) {
      rows.front().push_back(each ? StrCat(i) : names_[static_cast<size_t>(i)]);
      Row& row = rows.emplace_back(1, rows.front().back());
      for (int j = 0; j < size; ++j) {
        const auto cell = cells.find(std::minmax(i, j));
        row.push_back(cell == cells.end() ? (i == j ? "." : "-") : Cell(cell->second, i < j));
      }
    }
    text_ += Table(rows, 1);
  }

  static std::string Cell(const std::vector<const PairFacts*>& pairs, bool latency) {
    std::vector<double> values;
    for (const PairFacts* p : pairs) {
      if (!p->answered) return "none";
      values.push_back(latency ? p->latency * 1e6 : p->bandwidth / 1e9);
    }
    return Short(Median(values));
  }

  void Sum() {
    if (!facts_.sum || !facts_.sum->answered) return;
    const SumFacts& s = *facts_.sum;
    const auto n = static_cast<double>(facts_.ranks.size());
    // As NCCL's tests count: what each rank must send and receive, whatever the algorithm.
    const double bus = 2 * (n - 1) / n * static_cast<double>(s.bytes) / s.seconds;
    text_ += StrCat("all-reduce of ", Short(static_cast<double>(s.bytes) / (1 << 20)),
                    " MiB over all ranks: ", Short(s.seconds * 1e3), " ms, ", Short(bus / 1e9),
                    " GB/s of bus bandwidth, ", s.right ? "with the right sums\n" : "WRONG SUMS\n");
  }

  void Clocks() {
    if (!facts_.clocks.empty()) text_ += StrCat("clocks, compared with ", names_.front(), "'s:\n");
    for (const ClockFacts& c : facts_.clocks) {
      const auto machine = static_cast<size_t>(machine_of_[static_cast<size_t>(c.rank)]);
      text_ += StrCat("  ", names_[machine], ": ", Short(std::abs(c.ahead) * 1e3), " ms ",
                      c.ahead > 0 ? "ahead" : "behind", ", within ", Short(c.error * 1e3), " ms\n");
    }
    if (!facts_.gpu_clocks.empty()) text_ += "clocks of GPUs, in MHz, of at most:\n";
    std::vector<Row> rows;
    for (const auto& [rank, clocks] : facts_.gpu_clocks) {
      rows.push_back({StrCat("rank ", rank), StrCat(clocks.mhz), StrCat(clocks.most_mhz)});
    }
    text_ += Table(rows, 1);
  }

  void List(const std::string& title, const std::vector<std::string>& sentences) {
    if (sentences.empty()) return;
    text_ += title + "\n";
    for (const std::string& sentence : sentences) text_ += StrCat("  - ", sentence, "\n");
  }

  const PreflightFacts& facts_;
  const std::vector<std::vector<int>> machines_;
  const std::vector<int> machine_of_;
  const std::vector<std::string> names_;
  std::string text_;
};

}  // namespace

std::string MakeReport(const PreflightFacts& facts, const Judgement& judgement) {
  return Writer(facts).Run(judgement);
}

}  // namespace lockstep::dist
