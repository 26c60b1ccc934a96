// Options of runs on several ranks.
#pragma once

#include <cstdint>
#include <string>

#include "models/options/options.h"

namespace lockstep::models {

// option_dist.cc says what each means, for --help.
struct DistOptions {
  std::string backend = "auto";
  std::string reduction = "fast";
  std::string compress = "none";
  double bucket_mib = 0;  // 0: dist::DefaultBucketBytes
  double first_bucket_mib = 1;
  std::string check = "basic";
  int64_t check_every = 100;  // 0: never
  int64_t timeout = 300;      // seconds
  int64_t heartbeat = 20;     // seconds; 0: none
};

// Adds dist.*; plan_rules.h says what goes together.
void AddDistOptions(Options& options, DistOptions& dist);

}  // namespace lockstep::models
