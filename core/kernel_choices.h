// Which of an op's kernels each problem got, and why not a faster one, so that nothing is silently
// slow.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lockstep {

struct KernelChoice {
  std::string op;        // "matmul", "attention_backward"; NoteKernelChoice sets it
  std::string problem;   // its sizes and dtypes, for people to read
  std::string kernel;    // what runs it: a library's algorithm with its numbers, or a kernel of
                         // Lockstep
  std::string why_slow;  // why a faster one does not run it; empty if there is none
};

// Whether nobody has asked about this problem of the op lately; `problem` holds the numbers that
// tell it from others, and `op` is a literal. Takes neither a lock nor memory: a call in a training
// step asks before it describes its problem. Any thread may call it.
bool IsNewProblem(const char* op, std::span<const int64_t> problem);

// Records the choice, unless this problem of the op is recorded already. A slow choice is also
// reported on stderr, once per op and reason, so the reason must not contain numbers of the
// problem. Any thread may call this. In a process that keeps meeting new sizes, only the first
// kMaxKernelChoices are recorded; later ones are only reported if slow.
//   if (IsNewProblem("matmul", sizes)) NoteKernelChoice("matmul", sizes, {...});
inline constexpr size_t kMaxKernelChoices = 4096;
void NoteKernelChoice(const char* op, std::span<const int64_t> problem, KernelChoice choice);

// The choices recorded in this process, in the order of first use.
std::vector<KernelChoice> KernelChoices();

// How many of them are slow.
int64_t SlowKernelChoices();

// The files of the shared libraries loaded in this process whose names begin with one of
// `prefixes`, such as "libcudnn". They tell which of several installed versions is in use.
std::vector<std::string> LoadedLibraries(const std::vector<std::string>& prefixes);

// {"libraries": [file], "choices": [{"op", "problem", "kernel", "why_slow"}]}: the libraries of
// CUDA and NCCL, and all choices.
std::string KernelChoicesJson();

}  // namespace lockstep
