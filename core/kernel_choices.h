// Which kernel each problem got of an op that has several, and why not a faster one: nothing is
// slow in silence.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace lockstep {

struct KernelChoice {
  std::string op;        // "matmul", "attention_backward"
  std::string problem;   // its sizes and dtypes, as people write them
  std::string kernel;    // what runs it: a library's algorithm with its numbers, or one of ours
  std::string why_slow;  // why a faster one does not; empty: there is none
};

// Notes what `make` says of a problem of the op, unless that is noted already: `problem` is the
// numbers that tell it from others. A slow one goes to stderr, too, once for each op and reason,
// which therefore has no numbers of the problem. Any thread. A process that meets ever new sizes
// notes the first kMostKernelChoices; of later ones it only tells the slow.
inline constexpr size_t kMostKernelChoices = 4096;
void NoteKernelChoice(const std::string& op, const std::vector<int64_t>& problem,
                      const std::function<KernelChoice()>& make);

// What was noted in this process, in the order of first use.
std::vector<KernelChoice> KernelChoices();

// How many of these are slow.
int64_t SlowKernelChoices();

// The files of the shared libraries of this process whose names begin with one of `prefixes`, such
// as "libcudnn": of several that a machine has, those that run.
std::vector<std::string> LoadedLibraries(const std::vector<std::string>& prefixes);

// {"libraries": [file], "choices": [{"op", "problem", "kernel", "why_slow"}]}: the libraries of
// CUDA and NCCL, and all choices.
std::string KernelChoicesJson();

}  // namespace lockstep
