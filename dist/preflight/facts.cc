#include "dist/preflight/facts.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"

namespace lockstep::dist {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GpuFacts, name, bus, peers)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankFacts, local_rank, host, device, address, interface, why,
                                   mbits, versions, settings, gpu)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GpuClocks, mhz, most_mhz, slowed_by)

namespace {

template <class T>
T Parse(const std::string& text) {
  try {
    return nlohmann::json::parse(text).get<T>();
  } catch (const nlohmann::json::exception& e) {
    throw InputError(StrCat("a rank's facts: ", e.what()));
  }
}

std::string TextOf(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::string ToText(const RankFacts& facts) { return TextOf(facts); }

RankFacts ParseRankFacts(const std::string& text) { return Parse<RankFacts>(text); }

std::string ToText(const std::optional<GpuClocks>& clocks) { return clocks ? TextOf(*clocks) : ""; }

std::optional<GpuClocks> ParseGpuClocks(const std::string& text) {
  if (text.empty()) return std::nullopt;
  return Parse<GpuClocks>(text);
}

std::vector<std::vector<int>> MachinesOf(const std::vector<RankFacts>& ranks) {
  // A machine's ranks have different local ranks.
  std::map<std::pair<std::string, int>, int> seen;           // host and local rank
  std::map<std::pair<std::string, int>, size_t> machine_of;  // host and how often that was seen
  std::vector<std::vector<int>> machines;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const int launcher = seen[{ranks[r].host, ranks[r].local_rank}]++;
    const auto [at, is_new] = machine_of.try_emplace({ranks[r].host, launcher}, machines.size());
    if (is_new) machines.emplace_back();
    machines[at->second].push_back(static_cast<int>(r));
  }
  return machines;
}

std::vector<int> MachineOfRanks(const std::vector<std::vector<int>>& machines) {
  std::map<int, int> of;
  for (size_t m = 0; m < machines.size(); ++m) {
    for (const int rank : machines[m]) of[rank] = static_cast<int>(m);
  }
  std::vector<int> list;
  for (const auto& [rank, machine] : of) list.push_back(machine);
  return list;
}

}  // namespace lockstep::dist
