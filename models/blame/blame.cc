#include "models/blame/blame.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/safetensors.h"
#include "models/blame/compared_fingerprints.h"
#include "models/blame/compared_ops.h"
#include "models/blame/compared_tensors.h"
#include "models/blame/replay.h"
#include "models/options/config.h"

namespace lockstep::models {
namespace {

using Say = std::function<void(const std::string&)>;

// A folder of its own, or the user's, which is kept.
class Workplace {
 public:
  explicit Workplace(std::string folder) : folder_(std::move(folder)), keeps_(!folder_.empty()) {
    if (keeps_) return;
    folder_ = (std::filesystem::temp_directory_path() / "blame-XXXXXX").string();
    if (mkdtemp(folder_.data()) == nullptr) throw IoError(StrCat("cannot make ", folder_));
  }
  ~Workplace() {
    std::error_code ignored;
    if (!keeps_) std::filesystem::remove_all(folder_, ignored);
  }
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;
  std::string Of(const char* run) const { return JoinPath(folder_, run); }

 private:
  std::string folder_;
  const bool keeps_;
};

std::string List(const std::vector<std::string>& names) {
  constexpr size_t kMost = 4;
  std::string text;
  for (size_t i = 0; i < std::min(kMost, names.size()); ++i) {
    text += (i > 0 ? ", " : "") + names[i];
  }
  return names.size() <= kMost ? text : StrCat(text, " and ", names.size() - kMost, " more");
}

RunConfig ConfigOf(const std::string& out_dir) {
  const std::string path = JoinPath(out_dir, "config.toml");
  if (!PathExists(path)) throw InputError(StrCat(out_dir, " is no run's folder: no config.toml"));
  return RunConfigFromToml(ReadFile(path), path);
}

// What may explain everything, before anything is played.
void SayDifferences(const BlameOptions& o, const FingerprintNames& a, const FingerprintNames& b,
                    const Say& say) {
  std::vector<std::string> lines;
  for (const OptionDifference& d : Difference(ConfigOf(o.a), ConfigOf(o.b))) {
    if (!d.operational && !d.of_machine && d.key != "out_dir") {
      lines.push_back(StrCat("  ", d.key, ": ", d.a, " -> ", d.b));
    }
  }
  const auto add = [&](const char* what, const auto& of_a, const auto& of_b) {
    if (of_a != of_b) lines.push_back(StrCat("  ", what, ": ", of_a, " -> ", of_b));
  };
  add("computed by", a.arithmetic, b.arithmetic);
  add("the data's hash", a.data_fingerprint, b.data_fingerprint);
  add("ranks", a.ranks, b.ranks);
  say(lines.empty() ? "options, data and arithmetic are the same" : "A and B differ in");
  for (const std::string& line : lines) say(line);
}

std::string Steps(const std::vector<int64_t>& steps) {
  if (steps.empty()) return "no step";
  if (steps.size() == 1) return StrCat("step ", steps[0]);
  return StrCat(steps.size(), " steps from ", steps.front(), " to ", steps.back());
}

// "data (1), gradients (30) and weights (30)": the kinds of tensors that were compared.
std::string Kinds(const ComparedFingerprints& compared) {
  std::vector<std::string> kinds;
  for (size_t kind = 0; kind < kFingerprintKinds.size(); ++kind) {
    if (compared.tensors[kind] == 0) continue;
    kinds.push_back(StrCat(kFingerprintKinds[kind], " (", compared.tensors[kind], ")"));
  }
  std::string text = kinds[0];
  for (size_t i = 1; i < kinds.size(); ++i) {
    text += (i + 1 < kinds.size() ? ", " : " and ") + kinds[i];
  }
  return text;
}

// Equal weights say little if they are those that both runs began with.
void CheckStepsWereCompared(const ComparedFingerprints& compared) {
  if (compared.tensors[0] > 0 || compared.tensors[2] > 0) return;
  throw InputError(StrCat("of the fingerprints that both runs have, in ",
                          Steps(compared.equal_steps),
                          ", only the weights with which they began are equal, and of no step that "
                          "they made can anything be compared: give both the same "
                          "log.fingerprints, or one a multiple of the other's, at most their "
                          "train.steps"));
}

// The runs played again to the step in which they part.
class Replays {
 public:
  // The runs are equal up to step `last`.
  Replays(const BlameOptions& o, int64_t ranks_a, int64_t ranks_b, int64_t last)
      : place_(o.folder),
        runs_{ReplayedRun{o.a, o.train_gpt_a, ranks_a}, ReplayedRun{o.b, o.train_gpt_b, ranks_b}} {
    for (size_t i = 0; i < 2; ++i) {
      if (!PathExists(Folder(i))) continue;
      throw InputError(StrCat(Folder(i), " exists already, and runs are only played again in new ",
                              "folders: name another one by --folder"));
    }
    StartTogether(runs_[0], runs_[1], last);
  }

  void Play(int64_t step, const std::string& event = "") {
    for (size_t i = 0; i < 2; ++i) {
      RemoveTree(Folder(i));  // what an earlier call left
      Replay(runs_[i], Folder(i), step, event);
    }
  }
  FingerprintsOfRun Fingerprints(size_t i) const {
    return ReadFingerprints(JoinPath(Folder(i), "run"));
  }
  std::vector<std::vector<OpEvent>> Events(size_t i, int64_t step) const {
    return EventsOf(Folder(i), step, runs_[i].ranks);
  }
  // Tensor "in.0" or "out.0" of the event that was kept.
  Tensor Kept(size_t i, int64_t step, int64_t rank, const std::string& name) const {
    const std::string path = JoinPath(JoinPath(Folder(i), "run"), OpTensorsFile(step, rank));
    return SafetensorsFile::Open(path).Get(name).ToTensor();
  }
  std::string Folder(size_t i) const { return place_.Of(i == 0 ? "a" : "b"); }

 private:
  const Workplace place_;
  std::array<ReplayedRun, 2> runs_;
};

std::string Name(const OpEvent& e) {
  if (e.kind == "op") return StrCat("'", e.name, "', forward");
  if (e.kind == "backward") return StrCat("'", e.name, "', backward");
  if (e.kind == "gradient") {
    return StrCat("the sum of the gradient of ", e.name, " over micro-batches and ranks");
  }
  return e.name;
}

// The largest difference, of a tensor's largest element, that rounding explains: much more than an
// operation in f32 loses in its sums, and of shorter dtypes one unit in the last place of a result.
double RoundingOf(DType dtype) {
  constexpr double kSums = 1e-4;
  switch (dtype) {
    case DType::kF64:
      return 1e-12;
    case DType::kF16:
      return kSums + 0x1p-10;
    case DType::kBF16:
      return kSums + 0x1p-7;
    case DType::kF8E4M3:
      return kSums + 0x1p-3;
    case DType::kF8E5M2:
      return kSums + 0x1p-2;
    default:
      return kSums;
  }
}

// What the two runs have where they part.
void SayValues(Replays& replays, const Parting& p, int64_t step, const Say& say) {
  if (p.cause == PartingCause::kRandom || p.cause == PartingCause::kOtherOps) return;
  replays.Play(step, p.a.key);
  const std::string name = StrCat(p.given ? "in." : "out.", p.tensor);
  const Tensor a = replays.Kept(0, step, p.rank, name), b = replays.Kept(1, step, p.rank, name);
  const auto difference = CompareTensors(a, b);
  if (!difference) {
    say("  (played once more, they are equal there: one of them does not repeat its own results)");
    return;
  }
  say(fmt::format("  {} {}, element {}: A {:.9g}, B {:.9g}; {} of {} elements differ",
                  p.given ? "given" : "result", a.Describe(), difference->index, difference->a,
                  difference->b, difference->differing, a.numel()));
  if (p.cause != PartingCause::kKernel) return;
  const double relative = difference->largest / std::max(difference->scale, 1e-30);
  say(fmt::format("  at most by {:.2g} of the largest element: {}", relative,
                  relative <= RoundingOf(a.dtype())
                      ? "rounding"
                      : StrCat("more than ", a.dtype(),
                               " rounds. What the operation is given besides tensors may differ: "
                               "a mask, the key of random numbers, a constant")));
}

void SayParting(Replays& replays, int64_t step, const Say& say) {
  const auto a = replays.Events(0, step), b = replays.Events(1, step);
  if (a.size() != b.size()) {
    say("operations are not compared, since the runs have different numbers of ranks");
    return;
  }
  const auto p = FindParting(a, b);
  if (!p) {
    say("all operations of the step are equal");
    return;
  }
  say(StrCat("what differs first: ", Describe(p->cause)));
  const std::string where =
      StrCat("  on rank ", p->rank, p->a.module.empty() ? "" : ", in " + p->a.module, ": ");
  say(where + Name(p->a));
  if (p->cause == PartingCause::kOtherOps) {
    say(StrCat("  where B has ", p->b.kind.empty() ? "nothing" : Name(p->b),
               p->b.module.empty() ? "" : " in " + p->b.module,
               ": the two have other plans, options or programs, and only what their modules give "
               "can be compared"));
  }
  SayValues(replays, *p, step, say);
}

// Which run does not give what it gave when it was recorded; empty: both do.
std::string NotRepeated(const Replays& replays, const FingerprintsOfRun (&recorded)[2]) {
  std::string names;
  for (size_t i = 0; i < 2; ++i) {
    if (CompareFingerprints(recorded[i], replays.Fingerprints(i)).differs) {
      names += StrCat(names.empty() ? "" : " and ", i == 0 ? "A" : "B");
    }
  }
  return names;
}

}  // namespace

bool Blame(const BlameOptions& o, const Say& say) {
  const FingerprintsOfRun runs[2] = {ReadFingerprints(o.a), ReadFingerprints(o.b)};
  SayDifferences(o, runs[0].names, runs[1].names, say);
  const ComparedFingerprints compared = CompareFingerprints(runs[0], runs[1]);
  if (!compared.differs) {
    CheckStepsWereCompared(compared);
    say(StrCat("equal: the fingerprints of ", Steps(compared.equal_steps), ", of ",
               Kinds(compared)));
    return true;
  }
  say(StrCat("equal in ", Steps(compared.equal_steps)));
  say(StrCat("step ", *compared.differs, " differs first in the ", kFingerprintKinds[compared.kind],
             " of ", List(compared.names)));
  if (!o.replays) return false;
  int64_t step = std::max<int64_t>(*compared.differs, 1);
  Replays replays(o, runs[0].names.ranks, runs[1].names.ranks,
                  compared.equal_steps.empty() ? 0 : compared.equal_steps.back());
  say(StrCat("both are played again to step ", step));
  replays.Play(step);
  if (const std::string names = NotRepeated(replays, runs); !names.empty()) {
    say(StrCat("played again, ", names,
               " does not give what it gave when it was recorded: its "
               "program or data have changed since, or its machine made an error"));
  }
  const ComparedFingerprints again =
      CompareFingerprints(replays.Fingerprints(0), replays.Fingerprints(1));
  if (!again.differs) {
    say("played again, the two are equal");
    return false;
  }
  // The weights of step 0 are those before step 1.
  if (const int64_t parts = std::max<int64_t>(*again.differs, 1); parts != step) {
    step = parts;
    replays.Play(step);
  }
  say(StrCat("they part in step ", step, ": first in the ", kFingerprintKinds[again.kind], " of ",
             List(again.names)));
  SayParting(replays, step, say);
  return false;
}

}  // namespace lockstep::models
