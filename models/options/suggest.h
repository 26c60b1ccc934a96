// "Did you mean ...?"
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::models {

// Insertions, deletions, substitutions and swaps of neighbours that turn a into b.
int64_t EditDistance(std::string_view a, std::string_view b);

// A key that may be meant, and its other names.
struct Candidate {
  std::string key;  // "optim.lr"
  std::vector<std::string> aliases{};
};

// The candidates nearest to a mistyped key, at most three, all equally near; empty if none is near
// enough to be a likely typo. The last part of the key counts most: "lr", "--train.lr" and
// "optim.lrr" all mean "optim.lr".
std::vector<std::string> Nearest(std::string_view key, const std::vector<Candidate>& candidates);

}  // namespace lockstep::models
