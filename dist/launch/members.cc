#include "dist/launch/members.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>

#include "core/error.h"

namespace lockstep::dist {

std::optional<StateVersion> NewestWhole(std::span<const std::vector<HeldParts>> held) {
  std::map<StateVersion, std::set<int>> parts;
  std::optional<StateVersion> newest;
  for (const auto& of_process : held) {
    for (const HeldParts& h : of_process) {
      const StateVersion version(h.step, h.epoch);
      std::set<int>& known = parts[version];
      known.insert(h.parts.begin(), h.parts.end());
      if (std::ssize(known) == h.of && (!newest || *newest < version)) newest = version;
    }
  }
  return newest;
}

void Members::Start(int member, int node, const std::string& address) {
  members_[member] = {.node = node, .address = address};
}

bool Members::End(int member, const std::string& how) {
  const auto found = members_.find(member);
  if (found == members_.end()) return false;
  const Member& m = found->second;
  const bool of_world = m.rank >= 0 && m.epoch == epoch_;
  if (of_world) news_.push_back(StrCat("rank ", m.rank, " ", how));
  members_.erase(found);
  return of_world;
}

void Members::BeReady(int member, const MemberReady& ready) {
  const auto found = members_.find(member);
  if (found == members_.end()) return;
  found->second.ready = true;
  found->second.last = ready;
  sizes_ = ready.sizes;
  if (ready.epoch != epoch_) return;
  for (auto& [other, m] : members_) {
    const bool lost = std::ranges::find(ready.lost, m.rank) != ready.lost.end();
    // One that is ready answers.
    if (m.epoch == epoch_ && lost && other != member && !m.ready) m.condemned = true;
  }
}

bool Members::MayForm(bool patient) const {
  int ready = 0;
  bool goes_on = false;
  for (const auto& [member, m] : members_) {
    if (epoch_ > 0 && m.epoch == epoch_ && !m.ready) return false;
    ready += m.ready;
    goes_on |= m.ready && m.last.step >= 0;
  }
  if (ready < least_) return false;
  // Where nobody has the run in its memory, all begin together, from the newest checkpoint.
  return goes_on || !patient || (ready == living() && ready >= first_);
}

int Members::LargestWorld(int processes) const {
  if (sizes_.empty()) return processes;
  const auto above = std::ranges::upper_bound(sizes_, processes);
  return above == sizes_.begin() ? 0 : *std::prev(above);
}

// Those that form the next world. One after the other, the process is taken that has most of what
// those before it lack of the state.
std::vector<int> Members::Choose(bool patient) const {
  std::vector<int> ready, chosen;
  std::vector<std::vector<HeldParts>> held;
  for (const auto& [member, m] : members_) {
    if (!m.ready) continue;
    ready.push_back(member);
    held.push_back(m.last.held);
  }
  const int size = LargestWorld(static_cast<int>(ready.size()));
  if (size == std::ssize(ready)) return ready;
  const auto version = NewestWhole(held);
  std::set<int> parts;
  const auto lacking = [&](int member) {
    std::vector<int> more;
    for (const HeldParts& h : members_.at(member).last.held) {
      if (StateVersion(h.step, h.epoch) != version) continue;
      std::ranges::copy_if(h.parts, std::back_inserter(more),
                           [&](int part) { return !parts.contains(part); });
    }
    return more;
  };
  held.clear();
  while (std::ssize(chosen) < size) {
    const auto next = std::ranges::max_element(ready, {}, [&](int m) { return lacking(m).size(); });
    const std::vector<int> more = lacking(*next);
    parts.insert(more.begin(), more.end());
    held.push_back(members_.at(*next).last.held);
    chosen.push_back(*next);
    ready.erase(next);
  }
  // If the state is lost, they find out; if another process may complete it, it is waited for.
  const bool waits = version && NewestWhole(held) != version && patient;
  return waits ? std::vector<int>() : chosen;
}

std::map<int, MemberPlace> Members::Form(bool patient) {
  if (!MayForm(patient)) return {};
  std::vector<std::pair<int, Member*>> order;
  for (const int member : Choose(patient)) order.emplace_back(member, &members_.at(member));
  if (order.empty()) return {};
  // Those that have come furthest, then those that have been there longest.
  std::ranges::sort(order, {}, [&](const auto& o) {
    const Member& m = *o.second;
    return std::tuple(-m.last.step, m.epoch == epoch_ && m.rank >= 0 ? m.rank : 1 << 30, o.first);
  });
  const Member& first = *order[0].second;
  if (!sizes_.empty()) {  // ranks that share layers are neighbours, and best on one machine
    std::ranges::stable_sort(order.begin() + 1, order.end(), {}, [&](const auto& o) {
      return std::pair(o.second->node != first.node, o.second->node);
    });
  }
  std::map<int, int> on_node;
  for (const auto& [member, m] : order) ++on_node[m->node];
  std::string news;
  for (const std::string& n : news_) news += StrCat(news.empty() ? "" : "; ", n);
  const auto joining =
      std::ranges::count_if(order, [](auto& o) { return o.second->last.step < 0; });
  if (first.last.step >= 0 && joining > 0) {
    news += StrCat(news.empty() ? "" : "; ", joining,
                   joining == 1 ? " process joins" : " processes join");
  }
  const auto waiting =
      std::ranges::count_if(members_, [](auto& m) { return m.second.ready; }) - std::ssize(order);
  if (waiting > 0) {
    news += StrCat(news.empty() ? "" : "; ", waiting, waiting == 1 ? " waits" : " wait",
                   ", since the run cannot be divided among all");
  }
  ++epoch_;
  std::map<int, MemberPlace> places;
  std::map<int, int> next_local;
  for (const auto& [member, m] : order) {
    m->rank = static_cast<int>(places.size());
    m->epoch = epoch_;
    m->ready = m->summoned = false;
    places[member] = {.epoch = epoch_,
                      .rank = m->rank,
                      .size = static_cast<int>(order.size()),
                      .local_rank = next_local[m->node]++,
                      .local_size = on_node[m->node],
                      .address = first.address,
                      .port = first.last.port,
                      .news = news};
  }
  news_.clear();
  return places;
}

bool Members::is_being_left() const {
  bool left = false, remain = false;
  for (const auto& [member, m] : members_) {
    if (epoch_ == 0 || m.epoch != epoch_) continue;
    (m.ready ? left : remain) = true;
  }
  return left && remain;
}

void Members::CondemnRemaining() {
  for (auto& [member, m] : members_) {
    m.condemned |= m.epoch == epoch_ && !m.ready;
  }
}

std::vector<int> Members::Summon() {
  std::vector<int> summoned;
  int here = 0, waiting = 0;
  for (const auto& [member, m] : members_) {
    (m.epoch == epoch_ ? here : waiting) += m.epoch == epoch_ || m.ready;
  }
  if (epoch_ == 0 || LargestWorld(here + waiting) <= here) return summoned;
  for (auto& [member, m] : members_) {
    if (m.epoch != epoch_ || m.ready || m.summoned) continue;
    m.summoned = true;
    summoned.push_back(member);
  }
  return summoned;
}

std::vector<int> Members::Condemn() {
  std::vector<int> condemned;
  for (auto& [member, m] : members_) {
    if (!m.condemned) continue;
    m.condemned = false;
    condemned.push_back(member);
  }
  return condemned;
}

}  // namespace lockstep::dist
