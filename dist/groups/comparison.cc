#include "dist/groups/comparison.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

namespace lockstep::dist {
namespace {

// Ranks as runs of consecutive ones, [first, last].
struct Run {
  int32_t first, last;
};
struct Text {
  std::string text;
  std::vector<Run> runs;
};

// Before each text.
struct Header {
  uint32_t text_bytes, runs;
};

std::string Pack(const std::vector<Text>& texts) {
  std::string bytes;
  for (const auto& [text, runs] : texts) {
    const Header header{static_cast<uint32_t>(text.size()), static_cast<uint32_t>(runs.size())};
    bytes.append(reinterpret_cast<const char*>(&header), sizeof(header));
    bytes.append(text);
    bytes.append(reinterpret_cast<const char*>(runs.data()), runs.size() * sizeof(Run));
  }
  return bytes;
}

// Ends where the bytes are such as no rank writes.
std::vector<Text> Unpack(std::string_view bytes) {
  std::vector<Text> texts;
  Header header;
  while (bytes.size() >= sizeof(header)) {
    std::memcpy(&header, bytes.data(), sizeof(header));
    bytes.remove_prefix(sizeof(header));
    const size_t run_bytes = size_t{header.runs} * sizeof(Run);
    if (header.text_bytes > bytes.size() || run_bytes > bytes.size() - header.text_bytes) break;
    Text& text = texts.emplace_back(
        Text{std::string(bytes.substr(0, header.text_bytes)), std::vector<Run>(header.runs)});
    bytes.remove_prefix(header.text_bytes);
    if (run_bytes > 0) std::memcpy(text.runs.data(), bytes.data(), run_bytes);
    bytes.remove_prefix(run_bytes);
  }
  return texts;
}

// At most this many different texts: the result must fit a message, and a reader.
constexpr size_t kMostTexts = 16;

}  // namespace

std::string MergeTexts(const std::string& first, const std::string& second) {
  std::vector<Text> all = Unpack(first);
  for (Text& more : Unpack(second)) {
    const auto same = std::find_if(all.begin(), all.end(),
                                   [&](const Text& text) { return text.text == more.text; });
    if (same == all.end()) {
      if (all.size() < kMostTexts) all.push_back(std::move(more));
      continue;
    }
    std::vector<Run>& runs = same->runs;
    auto next = more.runs.begin();
    if (!runs.empty() && next != more.runs.end() && int64_t{runs.back().last} + 1 == next->first) {
      runs.back().last = next++->last;
    }
    runs.insert(runs.end(), next, more.runs.end());
  }
  return Pack(all);
}

Comparison::Comparison(std::shared_ptr<ControlPlane> control, const std::string& name,
                       std::vector<int> members)
    : control_(std::move(control)),
      members_(std::move(members)),
      rank_(IndexOf(members_, control_->rank())),
      fold_(*control_, name, members_, MergeTexts) {}

std::optional<std::vector<Party>> Comparison::Run(const std::string& text,
                                                  const std::function<bool()>& wait) {
  const auto merged = fold_.Run(Pack({{text, {{rank_, rank_}}}}), wait);
  if (!merged) return std::nullopt;
  std::vector<Party> parties;
  for (auto& [what, runs] : Unpack(*merged)) {
    Party& party = parties.emplace_back(Party{std::move(what), {}});
    for (const auto& [first, last] : runs) {
      for (int r = std::max(first, 0); r <= last && r < std::ssize(members_); ++r) {
        party.ranks.push_back(members_[static_cast<size_t>(r)]);
      }
    }
  }
  return parties;
}

void Comparison::Bring(const std::string& text, std::function<void()> done) {
  fold_.Bring(Pack({{text, {{rank_, rank_}}}}),
              [done = std::move(done)](const std::string&) { done(); });
}

}  // namespace lockstep::dist
