#include "dist/groups/agreement.h"

#include <algorithm>

#include "dist/content_hash.h"
#include "dist/user_call.h"

namespace lockstep::dist {
namespace {

template <class T>
std::vector<std::vector<T>> Gather(ProcessGroup& group, std::span<const T> values) {
  const auto n = static_cast<int64_t>(values.size());
  if (group.device().is_meta()) {  // ranks that are only planned
    return std::vector(static_cast<size_t>(group.size()),
                       std::vector<T>(values.begin(), values.end()));
  }
  const Tensor mine = Tensor::FromSpan<T>(values, {n}, group.device());
  const Tensor all = Tensor::Empty({group.size(), n}, DTypeOf<T>, group.device());
  group.AllGather(mine, all)->Synchronize();
  const std::vector<T> flat = all.ToVector<T>();
  std::vector<std::vector<T>> rows;
  for (int r = 0; r < group.size(); ++r) {
    rows.emplace_back(flat.begin() + r * n, flat.begin() + (r + 1) * n);
  }
  return rows;
}

// Groups the world's ranks by value, the most common value first; ties go to the value of the
// lowest rank. Every `step`-th of the group's ranks, from `first` on.
template <class T>
std::vector<std::pair<T, std::vector<int>>> Parties(const ProcessGroup& group,
                                                    const std::vector<T>& values, size_t first = 0,
                                                    size_t step = 1) {
  std::vector<std::pair<T, std::vector<int>>> parties;
  for (size_t r = first; r < values.size(); r += step) {
    const auto same = std::find_if(parties.begin(), parties.end(),
                                   [&](const auto& party) { return party.first == values[r]; });
    if (same == parties.end()) {
      parties.emplace_back(values[r], std::vector<int>{group.members()[r]});
    } else {
      same->second.push_back(group.members()[r]);
    }
  }
  std::stable_sort(parties.begin(), parties.end(),
                   [](const auto& a, const auto& b) { return a.second.size() > b.second.size(); });
  return parties;
}

// "is A on ranks 0 and 2, B on rank 1"
template <class T>
std::string DescribeByRank(const ProcessGroup& group, const std::vector<T>& values) {
  std::string text;
  for (const auto& [value, ranks] : Parties(group, values)) {
    text += StrCat(text.empty() ? "" : ", ", value, " on ", ListRanks(ranks));
  }
  return text;
}

// Whether ranks that are a multiple of `step` apart have equal values.
template <class T>
bool AllEqual(const std::vector<T>& values, size_t step = 1) {
  for (size_t r = step; r < values.size(); ++r) {
    if (values[r] != values[r - step]) return false;
  }
  return true;
}

// Each rank's i-th value.
std::vector<int64_t> At(const std::vector<std::vector<int64_t>>& rows, int64_t i) {
  std::vector<int64_t> values;
  for (const auto& row : rows) values.push_back(row[static_cast<size_t>(i)]);
  return values;
}

// The first position at which the lists of hashes of ranks that are a multiple of `step` apart
// differ; the end of the shortest list if they agree up to there; -1 if all are the same.
struct Difference {
  int64_t at = -1;
  bool same_length = true;
};
Difference FirstDifference(ProcessGroup& group, const std::vector<int64_t>& hashes,
                           size_t step = 1) {
  // Compare a digest of fixed size first: gathering lists of different lengths would be a mismatch.
  uint64_t total = 0;
  for (const int64_t h : hashes) total = HashCombine(total, static_cast<uint64_t>(h));
  const int64_t digest[] = {static_cast<int64_t>(hashes.size()), static_cast<int64_t>(total)};
  const auto digests = GatherValues(group, digest);
  if (AllEqual(digests, step)) return {};
  int64_t shortest = digests[0][0], longest = shortest;
  for (const auto& d : digests) {
    shortest = std::min(shortest, d[0]);
    longest = std::max(longest, d[0]);
  }
  const auto all = GatherValues(group, std::span(hashes).subspan(0, static_cast<size_t>(shortest)));
  for (int64_t i = 0; i < shortest; ++i) {
    if (!AllEqual(At(all, i), step)) return {i, shortest == longest};
  }
  return {shortest, shortest == longest};
}

int64_t HashText(const std::string& text) {
  return static_cast<int64_t>(HashBytes(std::as_bytes(std::span(text.data(), text.size()))));
}

}  // namespace

void MeetBeforeThrowing(ProcessGroup& group) {
  try {
    group.Barrier()->Synchronize();
  } catch (const Error&) {
  }
}

void ThrowReplicaError(ProcessGroup& group, const std::string& message) {
  MeetBeforeThrowing(group);
  throw ReplicaError(message);
}

std::vector<std::vector<int64_t>> GatherValues(ProcessGroup& group,
                                               std::span<const int64_t> values) {
  return Gather(group, values);
}

std::vector<std::vector<double>> GatherValues(ProcessGroup& group, std::span<const double> values) {
  return Gather(group, values);
}

Tensor GatherTensors(ProcessGroup& group, const Tensor& mine, const std::string& purpose) {
  Shape shape = {group.size()};
  for (const int64_t size : mine.shape()) shape.push_back(size);
  const Tensor all = Tensor::Empty(shape, mine.dtype(), mine.device());
  group.AllGather(mine.Detach().Contiguous(), all, purpose)->Wait();
  return all;
}

std::vector<std::string> GatherTexts(ProcessGroup& group, const std::string& text, int64_t limit) {
  if (limit == 0) {
    const int64_t size = std::ssize(text);
    for (const auto& row : GatherValues(group, std::span(&size, 1))) {
      limit = std::max({limit, row[0], int64_t{1}});
    }
  }
  std::vector<uint8_t> bytes(static_cast<size_t>(limit));
  std::copy_n(text.begin(), std::min(text.size(), bytes.size()), bytes.begin());
  std::vector<std::string> texts;
  for (const auto& row : Gather<uint8_t>(group, bytes)) {
    texts.emplace_back(row.begin(), std::find(row.begin(), row.end(), 0));
  }
  return texts;
}

void CheckEqual(ProcessGroup& group, const std::string& what, int64_t value) {
  const UserCall call("CheckEqual");
  std::vector<int64_t> values;
  for (const auto& row : GatherValues(group, std::span(&value, 1))) values.push_back(row[0]);
  if (AllEqual(values)) return;
  ThrowReplicaError(group, StrCat(what, " is ", DescribeByRank(group, values),
                                  ": it must be the same on every rank"));
}

void CheckSameShape(ProcessGroup& group, const Module& module) {
  const UserCall call("CheckSameShape");
  std::vector<std::string> texts;
  for (const auto& [name, p] : module.NamedParameters()) {
    const Shape& shape = p->layout().range ? p->logical_shape() : p->value().shape();
    texts.push_back(StrCat("parameter '", name, "' ", p->value().dtype(), shape,
                           p->trainable() ? "" : " (not trained)"));
  }
  for (const auto& [name, b] : module.NamedBuffers()) {
    texts.push_back(StrCat("buffer '", name, "' ", b.dtype(), b.shape()));
  }
  std::vector<int64_t> hashes;
  for (const std::string& text : texts) hashes.push_back(HashText(text));
  const int64_t at = FirstDifference(group, hashes).at;
  if (at < 0) return;
  const auto have =
      GatherTexts(group, at < std::ssize(texts) ? texts[static_cast<size_t>(at)] : "nothing more");
  ThrowReplicaError(
      group, StrCat("the ranks' models differ: ", DescribeByRank(group, have), " (entry ", at,
                    " of the model); all ranks must build the same model"));
}

void BroadcastTensors(ProcessGroup& group, std::span<const Tensor> tensors, int root) {
  // All in flight at once; those that are not contiguous are sent as copies, and so are tensors on
  // another device, but these one by one: together they may be larger than the device.
  std::vector<std::pair<Tensor, WorkPtr>> sent;
  for (const Tensor& t : tensors) {
    const Tensor whole = t.Detach().To(group.device()).Contiguous();
    sent.emplace_back(whole, group.Broadcast(whole, root));
    if (t.device() == group.device()) continue;
    sent.back().second->Synchronize();
    t.Detach().CopyFrom(whole);
    sent.back().first = t;
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    sent[i].second->Synchronize();
    const Tensor to = tensors[i].Detach();
    if (sent[i].first.storage().SameBlock(to.storage())) {
      to.storage().BumpVersion();
    } else {
      to.CopyFrom(sent[i].first);
    }
  }
}

void CheckSameBits(ProcessGroup& group, const std::string& what,
                   std::span<const std::pair<std::string, Tensor>> tensors, int64_t step) {
  std::vector<int64_t> hashes;
  for (const auto& [name, tensor] : tensors) {
    hashes.push_back(static_cast<int64_t>(HashTensor(tensor)));
  }
  const auto apart = static_cast<size_t>(step);
  const auto [at, same_length] = FirstDifference(group, hashes, apart);
  if (at < 0) return;
  if (!same_length) {
    ThrowReplicaError(
        group, StrCat(what, " differ in number between ranks; this one has ", hashes.size()));
  }
  int64_t differing = 0;
  const auto all = GatherValues(group, hashes);
  for (int64_t i = 0; i < std::ssize(hashes); ++i) differing += AllEqual(At(all, i), apart) ? 0 : 1;
  const std::vector<int64_t> values = At(all, at);
  size_t first = 0;  // of those that differ
  while (Parties(group, values, first, apart).size() == 1) ++first;
  const auto parties = Parties(group, values, first, apart);
  std::vector<int> odd;
  for (size_t p = 1; p < parties.size(); ++p) {
    odd.insert(odd.end(), parties[p].second.begin(), parties[p].second.end());
  }
  std::sort(odd.begin(), odd.end());
  ThrowReplicaError(
      group,
      StrCat(what, " are not the same on all ranks: '", tensors[static_cast<size_t>(at)].first,
             "' of ", ListRanks(odd), " differs from that of ", ListRanks(parties[0].second),
             parties[0].second.size() == odd.size() ? " (which is right is unknown)" : "",
             differing > 1 ? StrCat("; so do ", differing - 1, " more") : "",
             ". The replicas are out of step: a memory fault, or something that only some "
             "ranks did; go back to the last good checkpoint"));
}

void CheckGradients(ProcessGroup& group, const Module& module) {
  std::vector<std::pair<std::string, Tensor>> gradients;
  for (const auto& [name, p] : module.NamedParameters()) gradients.emplace_back(name, p->grad());
  CheckSameBits(group, "the gradients", gradients);
}

}  // namespace lockstep::dist
