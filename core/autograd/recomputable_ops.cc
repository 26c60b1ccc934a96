#include "core/autograd/recomputable_ops.h"

#include <functional>
#include <set>

#include "core/error.h"

namespace lockstep {
namespace {

std::set<std::string, std::less<>>& Registered() {
  static auto& ops = *new std::set<std::string, std::less<>>();
  return ops;
}

}  // namespace

bool RegisterRecomputable(std::string_view op) {
  Registered().emplace(op);
  return true;
}

void CheckRecomputable(std::span<const std::string> ops) {
  for (const std::string& op : ops) {
    if (Registered().contains(op)) continue;
    std::string known;
    for (const std::string& name : Registered()) known += (known.empty() ? "" : ", ") + name;
    throw ArgumentError(
        StrCat("no operation named '", op, "' can be recomputed by itself: use names of ", known));
  }
}

}  // namespace lockstep
