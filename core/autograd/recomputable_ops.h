// The names of operations that can be recomputed by themselves.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace lockstep {

// Makes the name of an operation that calls OfferRecompute (core/autograd/recompute.h) one that a
// RecomputeScope takes. For a static initialiser:
//   const bool registered = RegisterRecomputable("gelu");
bool RegisterRecomputable(std::string_view op);

// Throws ArgumentError, which lists the names there are, unless all of these are registered.
void CheckRecomputable(std::span<const std::string> ops);

}  // namespace lockstep
