#include "dist/flight/flight_verdict.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <limits>
#include <set>
#include <tuple>

#include "core/io/file.h"

namespace lockstep::dist {
namespace {

using State = FlightCall::State;

constexpr size_t kShownCalls = 5;  // of each rank and group

std::string TimeOfDay(double unix_time) {
  const auto seconds = static_cast<time_t>(unix_time);
  std::tm parts = {};
  gmtime_r(&seconds, &parts);
  std::array<char, 16> text;
  std::strftime(text.data(), text.size(), "%H:%M:%S", &parts);
  const auto ms = static_cast<int>((unix_time - std::floor(unix_time)) * 1e3);
  return StrCat(text.data(), ".", ms / 100, ms / 10 % 10, ms % 10);
}

int RanksOf(const std::map<int, FlightRecord>& records) {
  return records.empty() ? 0 : records.begin()->second.ranks;
}

std::vector<int> Missing(const std::map<int, FlightRecord>& records) {
  std::vector<int> missing;
  for (int r = 0; r < RanksOf(records); ++r) {
    if (!records.contains(r)) missing.push_back(r);
  }
  return missing;
}

struct ReportedFailure {
  std::string group;
  Failure failure;
  std::vector<int> reported_by;  // ranks with this failure in their records
};

bool Same(const Failure& a, const Failure& b) {
  return a.rank == b.rank && a.reason == b.reason && a.operation == b.operation;
}

// How close a failure is to the cause, closest first: an error that ranks saw themselves; a rank
// that died or stalled; a failure of another rank; a group destroyed by an exception, whose reason
// it does not know; a failure with no known culprit.
int Order(const ReportedFailure& b) {
  const Failure& f = b.failure;
  if (f.cause == CollectiveError::Cause::kMismatch || f.cause == CollectiveError::Cause::kCorrupt)
    return 0;
  if (f.culprits.empty()) return 4;
  if (f.culprits != std::vector<int>{f.rank}) return 2;
  const bool aftermath = f.reason.find(" gave up: its group ") != std::string::npos;
  return aftermath ? 3 : 1;
}

// The call of the group that was running according to the record; null: none.
const FlightCall* Running(const FlightRecord& record, const std::string& group) {
  const auto at = record.groups.find(group);
  if (at == record.groups.end()) return nullptr;
  for (const FlightCall& c : at->second.calls) {
    if (c.state == State::kRunning) return &c;
  }
  return nullptr;
}

// The call that the failure hit. A killed rank names none, but the others were waiting in it.
std::string PlaceOf(const ReportedFailure& reported, const std::map<int, FlightRecord>& records) {
  if (reported.failure.operation.sequence > 0) {
    return Describe(reported.failure.operation, reported.failure.purpose);
  }
  for (const int rank : reported.reported_by) {
    const FlightCall* const c = Running(records.at(rank), reported.group);
    if (c != nullptr) return Describe(c->call, c->purpose);
  }
  return "";
}

std::vector<ReportedFailure> ReportedFailures(const std::map<int, FlightRecord>& records) {
  std::vector<ReportedFailure> reported;
  for (const auto& [rank, record] : records) {
    for (const auto& [name, group] : record.groups) {
      if (!group.failure) continue;
      const auto known = std::find_if(reported.begin(), reported.end(),
                                      [&, &name = name, &group = group](const ReportedFailure& b) {
                                        return b.group == name && Same(b.failure, *group.failure);
                                      });
      if (known == reported.end()) {
        reported.push_back({name, *group.failure, {rank}});
      } else {
        known->reported_by.push_back(rank);
      }
    }
  }
  // Among groups with the same kind of failure, prefer the one with a running call.
  const auto key = [&](const ReportedFailure& b) {
    return std::tuple(Order(b), PlaceOf(b, records).empty(), -std::ssize(b.reported_by));
  };
  std::stable_sort(
      reported.begin(), reported.end(),
      [&](const ReportedFailure& a, const ReportedFailure& b) { return key(a) < key(b); });
  return reported;
}

// Each rank's call at the first sequence number at which the group's records differ or some rank
// has no call.
std::map<int, FlightCall> FirstDifference(const std::map<int, FlightRecord>& records,
                                          const std::string& group) {
  std::map<int64_t, std::map<int, FlightCall>> by_number;
  int64_t begin = 0;  // all ranks' records reach back to this number
  for (const auto& [rank, record] : records) {
    const auto at = record.groups.find(group);
    if (at == record.groups.end()) continue;
    int64_t oldest = std::numeric_limits<int64_t>::max();
    for (const FlightCall& c : at->second.calls) {
      if (c.call.kind == CollectiveKind::kExchange) continue;
      by_number[c.call.sequence][rank] = c;
      oldest = std::min(oldest, c.call.sequence);
    }
    if (oldest != std::numeric_limits<int64_t>::max()) begin = std::max(begin, oldest);
  }
  for (const auto& [number, calls] : by_number) {
    if (number < begin) continue;
    const bool same = std::all_of(calls.begin(), calls.end(), [&calls = calls](const auto& entry) {
      return entry.second.call == calls.begin()->second.call;
    });
    if (!same || calls.size() < records.size()) return calls;
  }
  return {};
}

std::map<int, Collective> CallsOf(const std::map<int, FlightCall>& calls) {
  std::map<int, Collective> all;
  for (const auto& [rank, c] : calls) all[rank] = c.call;
  return all;
}

void AddDetails(const std::map<int, FlightRecord>& records, const ReportedFailure& first,
                std::vector<std::string>* details) {
  const auto difference = FirstDifference(records, first.group);
  if (!difference.empty()) {
    std::vector<int> without;
    for (const auto& [rank, record] : records) {
      const auto at = difference.find(rank);
      if (at == difference.end()) {
        without.push_back(rank);
      } else {
        details->push_back(StrCat("rank ", rank, " called ",
                                  Describe(at->second.call, at->second.purpose), ", which is ",
                                  Name(at->second.state)));
      }
    }
    if (!without.empty()) {
      details->push_back(StrCat(ListRanks(without), " did not call #",
                                difference.begin()->second.call.sequence, " of group '",
                                first.group, "'"));
    }
    const std::string mistake = LikelyMistake(CallsOf(difference));
    if (!mistake.empty()) details->push_back("a common mistake: " + mistake);
    if (mistake.empty() && !without.empty() && without.size() < records.size() &&
        first.failure.cause == CollectiveError::Cause::kTimeout) {
      details->push_back(StrCat("common mistakes: a collective inside an `if` on the rank, which ",
                                ListRanks(without),
                                " did not enter; less data there; or a loop "
                                "that does not end"));
    }
  }
  const std::vector<int> missing = Missing(records);
  if (!missing.empty()) {
    details->push_back(StrCat(
        ListRanks(missing, "has", "have"),
        " left no record: killed (kill -9, out of memory), stopped, or on a machine out of reach"));
  }
}

}  // namespace

FlightVerdict FindVerdict(const std::map<int, FlightRecord>& records) {
  FlightVerdict verdict;
  const bool all_the_same =
      !records.empty() && Missing(records).empty() &&
      std::all_of(records.begin(), records.end(), [&](const auto& entry) {
        return !entry.second.error.empty() && entry.second.error == records.begin()->second.error;
      });
  if (all_the_same) return {true, {}, "all ranks ended by: " + records.begin()->second.error, {}};
  const std::vector<ReportedFailure> reported = ReportedFailures(records);
  if (!reported.empty()) {
    const ReportedFailure& cause = reported.front();
    const Failure& f = cause.failure;
    verdict.culprits = f.culprits;
    const std::string place = PlaceOf(cause, records);
    verdict.summary = StrCat(
        f.culprits.empty() ? "nobody is known to be at fault" : ListRanks(f.culprits) + " at fault",
        place.empty() ? "" : ", in " + place, ", group '", cause.group, "': ", f.reason);
    AddDetails(records, cause, &verdict.details);
    // If the network was cut, each side reports its own view.
    for (const ReportedFailure& b : reported) {
      if (&b == &cause || b.group != cause.group || b.failure.culprits == f.culprits) continue;
      verdict.details.push_back(
          StrCat("but ", ListRanks(b.reported_by, "says", "say"), ": ", b.failure.reason));
    }
  }
  // Errors that began outside of the groups, which the groups only report.
  for (const auto& [rank, record] : records) {
    const bool of_itself =
        std::none_of(record.groups.begin(), record.groups.end(), [&, r = rank](const auto& entry) {
          const auto& failure = entry.second.failure;
          return failure && failure->culprits != std::vector<int>{r};
        });
    // An error thrown by a group repeats the group's failure.
    const bool repeats = std::any_of(
        record.groups.begin(), record.groups.end(), [&, &error = record.error](const auto& entry) {
          const auto& failure = entry.second.failure;
          return failure && error.find(failure->reason) != std::string::npos;
        });
    if (record.error.empty() || !of_itself || repeats) continue;
    const std::string text = StrCat("rank ", rank, " ended by: ", record.error);
    if (verdict.summary.empty() || verdict.culprits == std::vector<int>{rank}) {
      verdict.culprits = {rank};
      if (!verdict.summary.empty())
        verdict.details.insert(verdict.details.begin(), verdict.summary);
      verdict.summary = text;
    } else {
      verdict.details.push_back(text);
    }
  }
  verdict.failed = !verdict.summary.empty();
  if (!verdict.failed) verdict.summary = "the records show no failure";
  return verdict;
}

std::string Explain(const FlightVerdict& verdict, const std::map<int, FlightRecord>& records) {
  std::string text = StrCat("records of ", records.size(), " of ", RanksOf(records), " ranks\n",
                            "verdict: ", verdict.summary, "\n");
  for (const std::string& line : verdict.details) text += StrCat("  ", line, "\n");
  std::set<std::string> groups;
  for (const auto& [rank, record] : records) {
    for (const auto& [name, group] : record.groups) groups.insert(name);
  }
  for (const std::string& name : groups) {
    text += StrCat("\nlast calls of group '", name, "' (UTC):\n");
    for (const auto& [rank, record] : records) {
      const auto at = record.groups.find(name);
      if (at == record.groups.end()) continue;
      const auto& calls = at->second.calls;
      text += StrCat("  rank ", rank, ", process ", record.process, " on ", record.host, "\n");
      for (size_t i = calls.size() - std::min(kShownCalls, calls.size()); i < calls.size(); ++i) {
        const FlightCall& c = calls[i];
        text += StrCat(
            "    ", TimeOfDay(c.submitted), " ", Describe(c.call, c.purpose), ": ",
            c.state == State::kDone ? "done " + TimeOfDay(c.ended) : std::string(Name(c.state)),
            "\n");
      }
    }
  }
  return text;
}

std::map<int, FlightRecord> ReadFlightRecords(const std::string& folder) {
  std::vector<FlightRecord> all;
  if (IsDirectory(folder)) {
    for (const std::string& name : ListDirectory(folder)) {
      if (!name.starts_with("rank-") || !name.ends_with(".json")) continue;
      const std::string path = JoinPath(folder, name);
      all.push_back(ParseFlightRecord(ReadFile(path), path));
    }
  }
  if (all.empty()) {
    throw InputError(StrCat("there are no flight records in ", folder,
                            ": ranks write them on a failure, train_gpt to its out_dir/flight"));
  }
  const FlightRecord& newest = *std::max_element(
      all.begin(), all.end(), [](const auto& a, const auto& b) { return a.written < b.written; });
  std::map<int, FlightRecord> records;
  for (const FlightRecord& r : all) {
    if (r.meeting == newest.meeting) records[r.rank] = r;
  }
  return records;
}

}  // namespace lockstep::dist
