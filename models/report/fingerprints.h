// fingerprints.jsonl: what a run computed at chosen steps, in 64 bits a tensor.
//
// Each process of the run begins with a line that names the tensors, and says what else decides
// bits; each chosen step has a line:
//
//   {"step":0,"ranks":2,"arithmetic":"f32 by ...","data_fingerprint":"...",
//    "names":{"activations":["h.0.attn",...],"parameters":["wte.weight",...]},"weights":"..."}
//   {"step":10,"data":"0f3c...","activations":"91ab...","gradients":"...","weights":"..."}
//
// A string has 16 hexadecimal digits per tensor, in the order of the names
// (dist/fingerprint.h). They are those of the whole tensors, so every plan writes the same, but for
// "ranks" and "arithmetic".
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::models {

inline constexpr char kFingerprintsFile[] = "fingerprints.jsonl";

// "0f3c55aa01234567", and such digits one after the other.
std::string ToHex(uint64_t fingerprint);
std::string ToHex(const std::vector<uint64_t>& fingerprints);

// What a step computes, in this order: the tokens that it reads, with one fingerprint; what its
// modules give, over all micro-batches; the gradients that its update uses, before clipping; the
// weights after the update.
inline constexpr std::array<const char*, 4> kFingerprintKinds = {"data", "activations", "gradients",
                                                                 "weights"};

struct StepFingerprints {
  int64_t step = 0;
  std::array<std::vector<uint64_t>, 4> of_kind;  // in the order of kFingerprintKinds; may be empty

  std::vector<uint64_t>& weights() { return of_kind[3]; }
};

struct FingerprintNames {
  int64_t ranks = 1;
  std::string arithmetic, data_fingerprint;  // as in TrainerState
  std::vector<std::string> activations, parameters;

  // The name of tensor i of a kind: "h.0.mlp".
  std::string NameOf(size_t kind, size_t i) const;
};

// Lines, without their ends. `start`: the step with which the process began, and its weights.
std::string ToJson(const FingerprintNames& names, const StepFingerprints& start);
std::string ToJson(const StepFingerprints& step);

struct FingerprintsOfRun {
  FingerprintNames names;                     // of its last process
  std::map<int64_t, StepFingerprints> steps;  // by step; the first may have only weights
};

// Reads a run's file. InputError if there is none, or a line is not such a one; a last line that
// was cut off is left out.
FingerprintsOfRun ReadFingerprints(const std::string& out_dir);

}  // namespace lockstep::models
