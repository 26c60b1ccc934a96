// What waits in the host's memory until a GPU needs it.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::models {

struct OffloadChoice {
  bool activations = false;  // of the blocks (nn/offload.h)
  bool optimizer = false;    // its state (optim::StateOffload)
  bool weights = false;      // of the blocks (nn/offload_weights.h)

  bool any() const { return activations || optimizer || weights; }
  bool operator==(const OffloadChoice&) const = default;
};

// Parses none, or words as in "activations,optimizer". Throws InputError; the message does not say
// where the text came from.
OffloadChoice ParseOffload(std::string_view text);

// "activations, optimizer state, weights of blocks"; for none "nothing".
std::string Describe(const OffloadChoice& choice);

}  // namespace lockstep::models
