#include "dist/preflight/judgement.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <set>

#include "core/error.h"
#include "dist/collective.h"

namespace lockstep::dist {
namespace {

// A bandwidth below the usual one by this factor, or a latency above it by the other, is slow.
// Latencies vary more: a machine's other processes add to them.
constexpr double kSlowBandwidth = 2, kSlowLatency = 3;
// Seconds by which clocks may differ: logs of machines are still in order for a reader.
constexpr double kClocksDiffer = 1;
constexpr size_t kMostLinks = 8;  // that are named one by one

// What is compared of pairs: more is better.
struct Metric {
  double (*speed)(const PairFacts&);
  std::string (*text)(double speed);
  double factor;
};
constexpr Metric kMetrics[] = {
    {[](const PairFacts& p) { return p.bandwidth / 1e9; },
     [](double speed) { return Short(speed) + " GB/s"; }, kSlowBandwidth},
    {[](const PairFacts& p) { return 1 / p.latency; },
     [](double speed) { return Short(1e6 / speed) + " us of latency"; }, kSlowLatency},
};

class FactsJudge {
 public:
  explicit FactsJudge(const PreflightFacts& facts)
      : facts_(facts),
        machines_(MachinesOf(facts.ranks)),
        machine_of_(MachineOfRanks(machines_)),
        names_(MachineNames(facts.ranks, machines_)) {}

  Judgement Run() {
    Versions();
    Interfaces();
    Answers();
    Sum();
    for (const bool within : {true, false}) Speeds(within);
    Peers();
    Clocks();
    if (!facts_.failure.empty()) Stop(facts_.failure);
    return std::move(judgement_);
  }

 private:
  void Stop(std::string text) { judgement_.stops.push_back(std::move(text)); }
  void Warn(std::string text) { judgement_.warnings.push_back(std::move(text)); }
  const RankFacts& Of(int rank) const { return facts_.ranks[static_cast<size_t>(rank)]; }
  int Machine(int rank) const { return machine_of_[static_cast<size_t>(rank)]; }
  const std::string& Name(int machine) const { return names_[static_cast<size_t>(machine)]; }
  bool IsWithin(const PairFacts& p) const { return Machine(p.a) == Machine(p.b); }

  // "ranks 2 and 3 on node1", "rank 0 on node0 and rank 2 on node1"
  std::string Where(const std::vector<int>& ranks) const {
    std::map<int, std::vector<int>> by_machine;
    for (const int r : ranks) by_machine[Machine(r)].push_back(r);
    std::string text;
    for (const auto& [machine, list] : by_machine) {
      text += StrCat(text.empty() ? "" : " and ", ListRanks(list), " on ", Name(machine));
    }
    return text;
  }

  std::string Describe(const std::string& name, const std::vector<Party>& parties) const {
    std::string text;
    for (const Party& party : parties) {
      text += StrCat(text.empty() ? name + " is " : ", and ", party.text, " on ",
                     // All but the largest are few.
                     text.empty() ? ListRanks(party.ranks) : Where(party.ranks));
    }
    return text;
  }

  void Versions() {
    static const std::set<std::string> kMustAgree = {"build", "NCCL"};
    for (const auto& [name, parties] : PartiesOf(facts_.ranks, &RankFacts::versions, "missing")) {
      if (parties.size() == 1) continue;
      const std::string text = Describe(name, parties);
      if (kMustAgree.contains(name)) {
        Stop(StrCat(text, ": install the same everywhere"));
      } else {
        Warn(text);
      }
    }
    for (const auto& [name, parties] : PartiesOf(facts_.ranks, &RankFacts::settings, "not set")) {
      if (parties.size() > 1) Warn(Describe(name, parties));
    }
  }

  // Ranks of a machine choose alike.
  void Interfaces() {
    for (const auto& ranks : machines_) {
      const RankFacts& r = Of(ranks.front());
      const auto own = r.mbits.find(r.interface);
      if (machines_.size() == 1 || own == r.mbits.end()) continue;
      const auto best = std::ranges::max_element(r.mbits, {}, [](auto& i) { return i.second; });
      if (best->second <= own->second) continue;
      Warn(StrCat(Name(Machine(ranks.front())), " uses ", r.interface, " with ", own->second,
                  " Mbit/s, but ", best->first, " has ", best->second, ": LOCKSTEP_INTERFACE=",
                  best->first, ", and for NCCL NCCL_SOCKET_IFNAME=", best->first, ", select it"));
    }
  }

  std::string Advice(const PairFacts& p) const {
    const bool gpus = !Of(p.a).gpu.bus.empty() && !Of(p.b).gpu.bus.empty();
    if (gpus && IsWithin(p)) {
      return "if they answer with NCCL_P2P_DISABLE=1, P2P between these GPUs fails: "
             "look at ACS (`lspci -vvv | grep ACSCtl` should show SrcValid-: switch it off in the "
             "BIOS, or by setpci), at the IOMMU (`cat /proc/cmdline`: iommu=pt, or off), and at "
             "`nvidia-smi topo -p2p r`";
    }
    if (gpus) {
      return StrCat(
          "look at the network that NCCL chooses (NCCL_DEBUG=INFO says it): "
          "NCCL_SOCKET_IFNAME=",
          Of(p.a).interface,
          " names an interface, NCCL_IB_DISABLE=1 leaves InfiniBand out; firewalls must "
          "let all ports pass between ",
          Of(p.a).address, " and ", Of(p.b).address);
    }
    return StrCat("firewalls must let all ports pass between ", Of(p.a).address, " and ",
                  Of(p.b).address, "; LOCKSTEP_INTERFACE=NAME selects another interface");
  }

  // Whether the network takes messages of the size that the interface takes.
  std::string MtuAdvice(const PairFacts& p) const {
    const std::string& interface = Of(p.a).interface;
    if (IsWithin(p) || interface.empty()) return "";
    constexpr int kHeaders = 28;  // of IPv4 and ICMP, which count towards the MTU
    return StrCat(" (look at the MTU of the network: on ", Name(Machine(p.a)),
                  " `ping -c 3 -M do -s $(($(cat /sys/class/net/", interface, "/mtu) - ", kHeaders,
                  ")) ", Of(p.b).address, "` should be answered)");
  }

  void Answers() {
    for (const PairFacts& p : facts_.pairs) {
      if (!p.answered && p.swaps > 0) {
        Stop(StrCat(Where({p.a, p.b}), " made only ", p.swaps, " of ", PairFacts::kSwaps,
                    " swaps of data within ", Short(facts_.patience),
                    " s: they reach each other, but slowly, or not with large messages",
                    MtuAdvice(p), "; ", Advice(p)));
      } else if (!p.answered) {
        Stop(StrCat(Where({p.a, p.b}), " did not answer each other within ", Short(facts_.patience),
                    " s: ", Advice(p)));
      } else if (!p.right) {
        Stop(StrCat(Where({p.a, p.b}), " received other data than were sent: ", Advice(p)));
      }
    }
  }

  void Sum() {
    if (!facts_.sum) return;
    if (!facts_.sum->answered) {
      Stop(StrCat("the all-reduce over all ranks did not end within ", Short(facts_.patience),
                  " s, though all pairs of ranks answer each other: NCCL_DEBUG=INFO says which "
                  "algorithm and network NCCL chooses"));
    } else if (!facts_.sum->right) {
      Stop(
          "the all-reduce over all ranks gave wrong sums, though all pairs of ranks exchange data: "
          "look at the memory and the links of the machines");
    }
  }

  // Names slow ranks, and then slow links between the others.
  void Speeds(bool within) {
    std::vector<const PairFacts*> pairs;
    for (const PairFacts& p : facts_.pairs) {
      if (p.answered && IsWithin(p) == within) pairs.push_back(&p);
    }
    const std::string kind = within ? "within a machine" : "between machines";
    std::set<int> slow;
    for (const Metric& metric : kMetrics) {
      Ranks(pairs, kind, metric, &slow);
      Links(pairs, kind, metric, slow);
    }
  }

  void Ranks(const std::vector<const PairFacts*>& pairs, const std::string& kind,
             const Metric& metric, std::set<int>* slow) {
    std::map<int, double> best;
    for (const PairFacts* p : pairs) {
      for (const int r : {p->a, p->b}) best[r] = std::max(best[r], metric.speed(*p));
    }
    std::vector<double> all;
    for (const auto& [rank, speed] : best) all.push_back(speed);
    const double usual = Median(all);
    std::map<int, std::vector<int>> found;  // by machine
    for (const auto& [rank, speed] : best) {
      const bool is_slow = speed < usual / metric.factor;
      if (is_slow && slow->insert(rank).second) found[Machine(rank)].push_back(rank);
    }
    for (const auto& [machine, ranks] : found) {
      double most = 0;
      for (const int r : ranks) most = std::max(most, best[r]);
      Warn(StrCat(ListRanks(ranks), " on ", Name(machine), ranks.size() > 1 ? " are" : " is",
                  " slow ", kind, ": at best ", metric.text(most), ", while the median rank has ",
                  metric.text(usual)));
    }
  }

  void Links(const std::vector<const PairFacts*>& pairs, const std::string& kind,
             const Metric& metric, const std::set<int>& slow) {
    std::vector<const PairFacts*> others;
    std::vector<double> all;
    for (const PairFacts* p : pairs) {
      if (slow.contains(p->a) || slow.contains(p->b)) continue;
      others.push_back(p);
      all.push_back(metric.speed(*p));
    }
    const double usual = Median(all);
    std::erase_if(others,
                  [&](const PairFacts* p) { return metric.speed(*p) >= usual / metric.factor; });
    std::ranges::sort(others, {}, [&](const PairFacts* p) { return metric.speed(*p); });
    for (size_t i = 0; i < std::min(others.size(), kMostLinks); ++i) {
      const PairFacts& p = *others[i];
      Warn(StrCat("the link of ", Where({p.a, p.b}), " is slow: ", metric.text(metric.speed(p)),
                  ", while the median link ", kind, " has ", metric.text(usual)));
    }
    if (others.size() > kMostLinks) {
      Warn(StrCat(others.size() - kMostLinks, " more links are as slow, ", kind));
    }
  }

  void Peers() {
    std::map<int, int> without;  // pairs of GPUs, by machine
    for (const auto& ranks : machines_) {
      for (const int a : ranks) {
        for (const int b : ranks) {
          const auto peer = Of(a).gpu.peers.find(Of(b).gpu.bus);
          if (a < b && peer != Of(a).gpu.peers.end() && !peer->second) ++without[Machine(a)];
        }
      }
    }
    for (const auto& [machine, pairs] : without) {
      Warn(StrCat(pairs, pairs == 1 ? " pair" : " pairs", " of GPUs on ", Name(machine),
                  " cannot reach each other's memory (P2P), and exchange data through the host's: "
                  "`nvidia-smi topo -m` shows how they are connected"));
    }
  }

  void Clocks() {
    for (const ClockFacts& c : facts_.clocks) {
      if (std::abs(c.ahead) - c.error <= kClocksDiffer) continue;
      Warn(StrCat("the clock of ", Name(Machine(c.rank)), " is ", Short(std::abs(c.ahead)), " s ",
                  c.ahead > 0 ? "ahead of" : "behind", " that of ", Name(Machine(0)),
                  ": times in logs and records cannot be compared; is chronyd or ntpd running?"));
    }
    for (const auto& [rank, clocks] : facts_.gpu_clocks) {
      std::string why;
      for (const std::string& reason : clocks.slowed_by) {
        why += StrCat(why.empty() ? "" : ", ", reason);
      }
      if (why.empty()) continue;
      Warn(StrCat("the GPU of ", Where({rank}), " is held at ", clocks.mhz, " of ", clocks.most_mhz,
                  " MHz: ", why, "; `nvidia-smi -q -d PERFORMANCE` says more"));
    }
  }

  const PreflightFacts& facts_;
  const std::vector<std::vector<int>> machines_;
  const std::vector<int> machine_of_;
  const std::vector<std::string> names_;
  Judgement judgement_;
};

}  // namespace

Judgement Judge(const PreflightFacts& facts) { return FactsJudge(facts).Run(); }

std::map<std::string, std::vector<Party>> PartiesOf(
    const std::vector<RankFacts>& ranks, std::map<std::string, std::string> RankFacts::*member,
    const std::string& missing) {
  std::map<std::string, std::vector<Party>> parties;
  for (const RankFacts& r : ranks) {
    for (const auto& [name, value] : r.*member) parties[name];
  }
  for (auto& [name, list] : parties) {
    for (size_t r = 0; r < ranks.size(); ++r) {
      const auto found = (ranks[r].*member).find(name);
      const std::string& value = found == (ranks[r].*member).end() ? missing : found->second;
      auto party = std::ranges::find(list, value, &Party::text);
      if (party == list.end()) party = list.insert(list.end(), {value, {}});
      party->ranks.push_back(static_cast<int>(r));
    }
    std::ranges::stable_sort(list, std::greater(), [](const Party& p) { return p.ranks.size(); });
  }
  return parties;
}

std::vector<std::string> MachineNames(const std::vector<RankFacts>& ranks,
                                      const std::vector<std::vector<int>>& machines) {
  std::vector<std::string> names;
  std::map<std::string, int> seen;
  for (const auto& list : machines) {
    const std::string& host = ranks[static_cast<size_t>(list.front())].host;
    const int number = ++seen[host];
    names.push_back(number == 1 ? host : StrCat(host, " (", number, ")"));
  }
  return names;
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string Short(double value) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), value >= 99.95 ? "%.0f" : "%.3g", value);
  return text.data();
}

}  // namespace lockstep::dist
