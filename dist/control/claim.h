// What a rank says about itself when ranks meet.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::dist {

struct Claim {
  int size = 0;       // of the world
  std::string host;   // this machine's name
  std::string build;  // a hash of the program's file; empty if unknown
  // Names the meeting if this is rank 0: never used twice.
  std::string meeting;
  int64_t process = 0;
  // Where other ranks reach this one.
  std::string address = {};
  int port = 0;

  // The claim of this process.
  static Claim Of(int size);
  // nullopt for text that no rank writes.
  static std::optional<Claim> Parse(const std::string& text);
  std::string ToText() const;
  // "process 4711 on node0"
  std::string Who() const;
};

// Why the two ranks cannot be of one world; empty if they can.
std::string Contradiction(int rank, const Claim& claim, int other_rank, const Claim& other);

}  // namespace lockstep::dist
