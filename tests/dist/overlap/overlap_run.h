// Runs the overlap benchmark, for its tests.
#pragma once

#include <iostream>
#include <optional>
#include <stdexcept>

#include "core/io/json.h"
#include "tests/subprocess.h"

namespace lockstep::dist {

// The figures of two ranks on a link of 200 Mbit/s; nullopt if the machine cannot make one. 25 MiB
// of gradients take about a second on it, longer than the backward.
inline std::optional<Json> RunOverlap() {
  const Result result =
      RunProgram({"tests/dist/overlap/link.sh", "200", "tests/dist/overlap/overlap", "25", "512",
                  "512", "5", "1", "4"});
  if (result.exit_code == 77) {
    std::cout << result.err;
    return std::nullopt;
  }
  if (result.exit_code != 0) throw std::runtime_error("the benchmark failed: " + result.err);
  const auto figures = Json::parse(result.out);
  std::cout << figures.dump(1) << "\n";
  return figures;
}

inline double Figure(const Json& figures, const char* name) {
  return figures.at(name).get<double>();
}

}  // namespace lockstep::dist
