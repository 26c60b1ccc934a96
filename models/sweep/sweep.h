// The runs that differ in some options: train_gpt --sweep optim.lr=1e-3,2e-3 --sweep seed=1,2.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "dist/launch/launch.h"
#include "models/options/config.h"

namespace lockstep::models {

// One run of a sweep.
struct SweepPoint {
  std::string name;  // of its folder: "lr=1e-3,seed=1"
  std::vector<std::pair<std::string, std::string>>
      settings;  // keys, and values as they are written
};

struct Sweep {
  // What varies: "optim.lr=1e-3,2e-3", values, or "optim.lr=1e-4..1e-2", a range from which runs
  // draw: evenly by the logarithm if both ends are positive, and whole numbers if both ends are.
  std::vector<std::string> axes;
  // Without draws, there is a run for each combination of values. Else as many runs as this, each
  // with a value of every axis at random: the same ones each time, of which more draws keep the
  // first. What is drawn twice is run once.
  int64_t draws = 0;
  bool empty() const { return axes.empty() && draws == 0; }
};

// Takes --sweep=KEY=VALUES (also --sweep KEY=VALUES), and --sweep_draws=N, out of the arguments of
// a program, which are without argv[0]. Throws InputError.
Sweep TakeSweep(std::vector<std::string>* arguments);

// At least one, in the order in which they run: the last axis varies fastest. Throws InputError for
// what cannot be read: the keys are checked by the program's options.
std::vector<SweepPoint> PointsOf(const Sweep& sweep);

// --KEY=VALUE of each of the point's settings.
std::vector<std::string> ArgumentsOf(const SweepPoint& point);

// Reads a command line of train_gpt, without argv[0]. Throws InputError.
using ReadArguments = std::function<RunConfig(const std::vector<std::string>&)>;

// Trains each point of the sweep in a folder of its own below `out_dir`, by the command of `launch`
// and the point's settings, and writes out_dir/runs.html after each. Runs that are finished are
// left alone and others continue, so that the same command goes on after an interruption. A run
// that fails does not keep the next from starting. Prints a table at the end, and returns the exit
// code: 0, 1 if a run failed, or that of a run that a signal ended, which is the last one then.
//
// Nothing is trained if any of the command lines is wrong. Throws InputError.
int TrainSweep(const Sweep& sweep, const std::string& out_dir, const dist::LaunchOptions& launch,
               const ReadArguments& read);

}  // namespace lockstep::models
