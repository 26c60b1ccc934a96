#include "dist/launch/members.h"

#include <algorithm>
#include <tuple>

#include "core/error.h"

namespace lockstep::dist {

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

std::map<int, MemberPlace> Members::Form(bool patient) {
  if (!MayForm(patient)) return {};
  std::vector<std::pair<int, Member*>> order;
  for (auto& [member, m] : members_) {
    if (m.ready) order.emplace_back(member, &m);
  }
  // Those that have come furthest, then those that have been there longest.
  std::ranges::sort(order, {}, [&](const auto& o) {
    const Member& m = *o.second;
    return std::tuple(-m.last.step, m.epoch == epoch_ && m.rank >= 0 ? m.rank : 1 << 30, o.first);
  });
  std::map<int, int> on_node;
  for (const auto& [member, m] : order) ++on_node[m->node];
  const Member& first = *order[0].second;
  std::string news;
  for (const std::string& n : news_) news += StrCat(news.empty() ? "" : "; ", n);
  const auto joining =
      std::ranges::count_if(order, [](auto& o) { return o.second->last.step < 0; });
  if (first.last.step >= 0 && joining > 0) {
    news += StrCat(news.empty() ? "" : "; ", joining,
                   joining == 1 ? " process joins" : " processes join");
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
  const bool waits = std::ranges::any_of(
      members_, [&](auto& m) { return m.second.ready && m.second.epoch != epoch_; });
  if (epoch_ == 0 || !waits) return summoned;
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
