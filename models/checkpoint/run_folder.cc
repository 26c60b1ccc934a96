#include "models/checkpoint/run_folder.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "core/io/file.h"
#include "core/system/environment.h"
#include "core/system/shell_word.h"
#include "dist/control/socket.h"
#include "models/checkpoint/fetched_checkpoint.h"
#include "models/options/option_text.h"

namespace lockstep::models {
namespace {

constexpr const char* kEndMark = "DONE";

// Whether the clock has settled the steps of a run that has more time now.
bool HasMoreTime(const RunConfig& before, const RunConfig& now) {
  return now.train.is_open() && before.train.steps > 0 && !before.train.time_budget.empty() &&
         ParseDuration(now.train.time_budget) > ParseDuration(before.train.time_budget);
}

// The configuration that the run in `folder` is stored with; none without a run.
std::optional<RunConfig> StoredRun(const std::string& folder) {
  const std::string file = JoinPath(folder, "config.toml");
  if (!PathExists(file)) return {};
  return RunConfigFromToml(ReadFile(file), file);
}

// Of a run as it is stored and one that would go on from it, which takes over what it leaves open.
std::vector<OptionDifference> RealDifferences(RunConfig a, RunConfig b) {
  const bool settles_again = HasMoreTime(a, b);
  // If nobody asks for another, it is the checkpoint's; earlier versions wrote that of a preset.
  const auto asks = [](const RunConfig& c) { return c.written.contains("data.tokenizer"); };
  if (!asks(a) && !asks(b)) a.data.tokenizer = b.data.tokenizer;
  TakeOverSettled(a, &b);
  a.optim.warmup = WarmupOf(a);
  std::vector<OptionDifference> all = Difference(a, b);
  std::erase_if(all, [&](const OptionDifference& d) {
    const bool settled = d.key == "train.steps" || d.key == "optim.decay_start";
    return d.operational || (settles_again && settled);
  });
  return all;
}

// Where sums are made in other parts, a run would continue with other bits than it promises.
void CheckParts(const RunConfig& before, const RunConfig& now, const std::string& of) {
  if (now.dist.reduction != "ordered") return;
  const auto check = [&](const char* key, int64_t parts, int64_t wanted, const char* ranks_key,
                         int64_t ranks) {
    if (parts == wanted) return;
    const std::string advice = parts % ranks == 0
                                   ? StrCat("use --", key, "=", parts)
                                   : StrCat("use --", ranks_key, "=", parts, " or a divisor of it");
    throw InputError(StrCat(of, " was trained with ", key, " = ", parts, ", and this run has ", key,
                            " = ", wanted,
                            ", with which dist.reduction = \"ordered\" gives other bits: ", advice,
                            ", or begin from only its weights with --init_from"));
  };
  const ParallelOptions &was = before.parallel, &is = now.parallel;
  check("virtual.tp", was.tensor_parts(), is.tensor_parts(), "parallel.tp", is.tp);
  check("virtual.cp", was.context_pairs(), is.context_pairs(), "parallel.cp", is.cp);
}

// A checkpoint, a run folder, or a link to a checkpoint.
HeldCheckpoint Locate(const std::string& path) {
  if (IsRemote(path)) return HeldCheckpoint(FetchCheckpoint(path, /*best=*/false));
  const std::string latest = JoinPath(path, "latest");
  if (IsDirectory(latest)) return HeldCheckpoint(latest);
  if (const auto newest = CheckpointStore(path).FindNewest()) return HeldCheckpoint(newest->path);
  if (PathExists(JoinPath(path, "config.toml"))) {
    throw InputError(StrCat("checkpoint.resume=", path,
                            ": this is the folder of a run, and no checkpoint is left in it"));
  }
  return HeldCheckpoint(path);
}

// Why a run after `step` updates, `before`, cannot go on as `now`; "": it can, with the same
// options or with only another length that leaves its past as it was.
std::string WhyOther(const RunConfig& before, const RunConfig& now, int64_t step,
                     const ChangedPast& changed_past) {
  const auto differences = RealDifferences(before, now);
  if (differences.empty()) return "";
  std::string past;
  if (differences.size() == 1 && differences[0].key == "train.steps") {
    past = changed_past(before, now, step);
    if (past.empty()) return "";
    past.insert(0, "\n");
  }
  return "its configuration differs (there -> now):\n" + ToString(differences) + past;
}

[[noreturn]] void RefuseOther(const RunConfig& config, const std::string& why) {
  throw InputError(
      StrCat(config.out_dir, " holds another run: ", why,
             "\nChoose another folder with --out_dir=, or remove ", config.out_dir,
             ", or continue from it anyway with --checkpoint.resume=", ShellWord(config.out_dir)));
}

bool LiesIn(const std::string& folder, const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path relative =
      fs::weakly_canonical(path).lexically_relative(fs::weakly_canonical(folder));
  return !relative.empty() && *relative.begin() != "..";
}

bool BeginsElsewhere(const RunConfig& config) {
  return config.checkpoint.resume != "auto" && config.checkpoint.resume != "none";
}

// From before the decay of the run in `folder`, which began after `begin` steps.
Checkpoint BeforeDecay(const std::string& folder, int64_t begin) {
  const auto all = CheckpointStore(folder).List();
  const auto before = std::ranges::find_if(all, [&](const auto& c) { return c.step <= begin; });
  if (before != all.end()) return CheckpointStore::Verify(before->path);
  throw InputError(StrCat(folder, " has no checkpoint of step ", begin, ", where its decay began, ",
                          "and with more train.time_budget the run would go on from that: restore ",
                          "it, or choose another folder with --out_dir="));
}

RunStart ResumeFrom(const std::string& path, const TrainerState& state,
                    const std::string& note = ")") {
  return {.checkpoint = path,
          .step = state.step,
          .note = StrCat("resuming from ", path, " (step ", state.step, note),
          .seconds = state.seconds};
}

// `newest` is a state in the decay of the run that goes on from before it, with `state`.
void ThrowAwayDecay(const TrainerState& state, const TrainerState& newest, RunStart* start) {
  start->seconds = newest.seconds;
  if (newest.step <= state.step) return;
  start->note += fmt::format(
      ": {} steps of decay in {:.0f} s are thrown away, which a run that had known its time from "
      "the start would not have made",
      newest.step - state.step, newest.seconds - state.seconds);
}

RunStart FromCheckpoint(const RunConfig& config, const std::string& path,
                        const ChangedPast& changed_past) {
  HeldCheckpoint held = Locate(path);
  Checkpoint checkpoint = CheckpointStore::Verify(held.path());
  TrainerState state = ReadTrainerState(checkpoint.path);
  const RunConfig previous = RunConfigFromToml(state.config_toml, checkpoint.path);
  if (HasMoreTime(previous, config) && PathExists(JoinPath(path, "config.toml"))) {
    held = HeldCheckpoint(BeforeDecay(path, previous.optim.decay_start).path);
    checkpoint = CheckpointStore::Verify(held.path());
    state = ReadTrainerState(checkpoint.path);
  }
  const auto there = CheckpointStore(config.out_dir).List();
  const bool is_own = LiesIn(config.out_dir, checkpoint.path);
  const TrainerState newest = is_own && !there.empty() ? ReadTrainerState(there[0].path) : state;
  const RunConfig saved = RunConfigFromToml(newest.config_toml, config.out_dir);
  const bool decays_again = is_own && HasMoreTime(saved, config);
  for (const Checkpoint& c : there) {
    if (c.step <= state.step || (decays_again && c.step > saved.optim.decay_start)) continue;
    throw InputError(StrCat("checkpoint.resume=", path, " is at step ", state.step, ", but ",
                            config.out_dir, " has a checkpoint of step ", c.step,
                            ", which the run would overwrite: choose another out_dir, or remove ",
                            c.path));
  }
  // The same command may have been killed there before it saved.
  const auto run = StoredRun(config.out_dir);
  const bool other_run = run && !RealDifferences(*run, config).empty();
  if (!is_own && (other_run || !there.empty())) {
    const std::string has = there.empty() ? JoinPath(config.out_dir, "config.toml") : there[0].path;
    RefuseOther(config, StrCat("it has ", has, ", and ", checkpoint.path, " is not of that run"));
  }
  CheckParts(previous, config, checkpoint.path);
  const auto differences = RealDifferences(previous, config);
  RunStart start = ResumeFrom(checkpoint.path, state);
  start.accepts_differences = true;
  start.is_own = is_own;
  start.held = held;
  if (decays_again) ThrowAwayDecay(state, newest, &start);
  if (!differences.empty()) {
    start.note += ", with a different configuration:\n" + ToString(differences);
    const std::string past = changed_past(previous, config, state.step);
    if (!past.empty()) start.note += "\n" + past;
  }
  return start;
}

RunStart Continue(const RunConfig& previous, const RunConfig& config, const CheckpointStore& store,
                  const CheckpointStore::Warn& warn, const ChangedPast& changed_past) {
  CheckParts(previous, config, config.out_dir);
  const auto newest = store.FindNewest(warn);
  const std::string why = WhyOther(previous, config, newest ? newest->step : 0, changed_past);
  if (!why.empty()) RefuseOther(config, why);
  if (!newest && (IsFinished(config.out_dir) ||
                  std::filesystem::is_symlink(JoinPath(config.out_dir, "latest")))) {
    throw InputError(
        StrCat(config.out_dir, " has the records of a run, but no whole checkpoint is ",
               "left there, and the run would begin again: restore its checkpoints, ",
               "or choose another folder with --out_dir=, or remove ", config.out_dir));
  }
  if (!newest)
    return {.note = StrCat("starting over in ", config.out_dir,
                           ": the run there has no checkpoint yet")};
  const TrainerState state = ReadTrainerState(newest->path);
  const RunConfig saved = RunConfigFromToml(state.config_toml, newest->path);
  if (saved.seed != config.seed) {
    throw InputError(StrCat(
        newest->path, " is of another run, with seed = ", saved.seed, " where this one has ",
        config.seed,
        ": move it away, or continue from it with --checkpoint.resume=", ShellWord(newest->path)));
  }
  if (HasMoreTime(saved, config)) {
    const Checkpoint before = BeforeDecay(config.out_dir, saved.optim.decay_start);
    const TrainerState earlier = ReadTrainerState(before.path);
    RunStart start = ResumeFrom(
        before.path, earlier,
        StrCat("), from before the decay, with train.time_budget = ", config.train.time_budget,
               " instead of ", saved.train.time_budget));
    ThrowAwayDecay(earlier, state, &start);
    return start;
  }
  // A launcher that restarts this run is told that it is finished: its end is only written again.
  const bool restarted = EnvironmentVariable("LOCKSTEP_RESTARTS").value_or("0") != "0";
  const bool has_ended = state.finished && RealDifferences(previous, config).empty();
  if (has_ended && !restarted && IsFinished(config.out_dir)) {
    const std::string& time = saved.train.time_budget;
    throw InputError(StrCat(
        config.out_dir, " holds a finished run of this configuration (", state.step,
        " steps). Choose another folder with --out_dir=, or remove ", config.out_dir,
        ". To train it further: ",
        time.empty() ? "--train.steps=N" : "the same command with more --train.time_budget than ",
        time));
  }
  RunStart start =
      ResumeFrom(newest->path, state,
                 has_ended ? ", the last one): what should have followed it is done now" : ")");
  // The folder's file may have been edited, or other settings accepted, since it was saved.
  if (const auto since = RealDifferences(saved, config); !since.empty()) {
    start.note += ", with a different configuration:\n" + ToString(since);
  }
  return start;
}

// A run would write over files that no run has made.
void CheckNoRecords(const RunConfig& config) {
  for (const char* file : {"metrics.jsonl", "samples.jsonl", "report.html", "latest", "best"}) {
    const std::string path = JoinPath(config.out_dir, file);
    if (!std::filesystem::is_regular_file(path) && !std::filesystem::is_symlink(path)) continue;
    throw InputError(StrCat(config.out_dir, " has ", file, ", which this run would overwrite, and ",
                            "no config.toml of a run: choose another folder with --out_dir=, or ",
                            "move the file away"));
  }
}

// From what is in the folder now.
RunStart StartFromFolder(const RunConfig& config, const CheckpointStore::Warn& warn,
                         const ChangedPast& changed_past) {
  CheckpointStore store(config.out_dir, {.keep = 0, .warn = warn});
  try {
    store.CleanUp();
  } catch (const IoError& e) {  // a process of the run before may still be writing
    warn(StrCat("the rest of an interrupted save could not be removed: ", e.what()));
  }
  const auto there = StoredRun(config.out_dir);
  if (there) store.RestoreLinks();
  const std::string& resume = config.checkpoint.resume;
  if (BeginsElsewhere(config)) {
    // Unless a run that began so has come further.
    const bool goes_on = there && there->checkpoint.resume == resume && !store.List().empty();
    if (!goes_on) return FromCheckpoint(config, resume, changed_past);
  } else if (!there) {
    if (!store.List().empty()) RefuseOther(config, "there are checkpoints, but no config.toml");
    CheckNoRecords(config);
    return {};
  } else if (resume == "none") {
    RefuseOther(config, "checkpoint.resume=none only starts in a folder without a run");
  }
  return Continue(*there, config, store, warn, changed_past);
}

// Whether a run with `config` goes on from the newest checkpoint at its mirror, which has `state`;
// then the run folder is made one of that run. A run's place must not get another's checkpoints.
bool GoesOnFrom(const TrainerState& state, bool is_newer, const RunConfig& config,
                const ChangedPast& changed_past) {
  const std::string& place = config.checkpoint.mirror;
  const RunConfig there = RunConfigFromToml(state.config_toml, place);
  const auto refuse = [&](const std::string& why) {
    throw InputError(StrCat("checkpoint.mirror=", place, " has the checkpoints of another run, up ",
                            "to step ", state.step, ": ", why,
                            "\nName another place, or remove what is there."));
  };
  const std::string& resume = config.checkpoint.resume;
  if (BeginsElsewhere(config)) {
    if (!is_newer) return false;
    if (there.checkpoint.resume != resume) refuse("they are newer than those of this one");
  } else {
    const std::string why = WhyOther(there, config, state.step, changed_past);
    if (!why.empty()) refuse(why);
    if (resume == "none") refuse("checkpoint.resume=none begins a new one");
  }
  // A folder that will be refused stays as it is.
  if (const auto here = StoredRun(config.out_dir)) {
    return is_newer && WhyOther(*here, config, state.step, changed_past).empty();
  }
  CheckNoRecords(config);
  if (is_newer) WriteFileAtomically(JoinPath(config.out_dir, "config.toml"), state.config_toml);
  return is_newer;
}

// What it says for the user; "" if there is nothing to say.
std::string BeginMirror(const RunConfig& config, const CheckpointStore::Warn& warn,
                        const ChangedPast& changed_past) {
  if (config.checkpoint.mirror.empty()) return "";
  const auto step = CopyFromMirror({.place = config.checkpoint.mirror,
                                    .out_dir = config.out_dir,
                                    .keeps = {.keep = config.checkpoint.keep,
                                              .keep_best = config.checkpoint.keep_best,
                                              .warn = warn},
                                    .check = [&](const TrainerState& state, bool is_newer) {
                                      return GoesOnFrom(state, is_newer, config, changed_past);
                                    }});
  if (!step) return "";
  return StrCat("copied the checkpoint of step ", *step, " from ", config.checkpoint.mirror,
                " into ", config.out_dir, "\n");
}

}  // namespace

void TakeOverSettled(const RunConfig& before, RunConfig* config) {
  if (config->train.loss_chunk < 0) config->train.loss_chunk = before.train.loss_chunk;
  if (config->optim.warmup < 0) config->optim.warmup = WarmupOf(before);
  if (!config->train.is_open() || before.train.time_budget.empty()) return;
  if (before.train.is_open() || HasMoreTime(before, *config)) return;
  SettleSteps(before.optim.decay_start, before.train.steps, config);
}

std::unique_ptr<FileLock> LockRunFolder(const std::string& out_dir,
                                        const CheckpointStore::Warn& warn,
                                        std::chrono::seconds patience) {
  for (const char* file : {"config.json", "model.safetensors", "adapter_config.json"}) {
    if (!PathExists(JoinPath(out_dir, file))) continue;
    throw InputError(StrCat("out_dir=", out_dir, " is the folder of a model (it has ", file,
                            "), in which nobody would look for the files of a run: choose another "
                            "folder with --out_dir="));
  }
  MakeDirectories(out_dir);
  const std::string path = JoinPath(out_dir, "run.lock");
  const std::string process =
      fmt::format("process {} on {}, since {:%Y-%m-%d %H:%M:%S} UTC", getpid(), dist::HostName(),
                  fmt::gmtime(std::time(nullptr)));
  auto lock = std::make_unique<FileLock>(path, process, patience);
  if (lock->state() == FileLock::State::kBusy) {
    throw InputError(
        StrCat(out_dir, " is in use by another run: ",
               lock->why().empty() ? "a process that holds " + path : lock->why(),
               ". Wait until it has ended, or stop it, or choose another folder with --out_dir="));
  }
  if (lock->state() == FileLock::State::kUnsupported) {
    warn(StrCat("cannot lock ", path, " (", lock->why(),
                "): make sure that no other run writes to ", out_dir, " at the same time"));
  }
  return lock;
}

RunStart PrepareRunFolder(const RunConfig& config, const CheckpointStore::Warn& warn,
                          const ChangedPast& changed_past) {
  RequireWritableDirectory(config.out_dir);
  const std::string copied = BeginMirror(config, warn, changed_past);
  RunStart start = StartFromFolder(config, warn, changed_past);
  start.note.insert(0, copied);
  return start;
}

void BeginRun(const RunConfig& config, const RunConfig& settled) {
  RunConfig stored = config;
  if (BeginsElsewhere(config) && LiesIn(config.out_dir, config.checkpoint.resume)) {
    // A choice that was made once: what follows from it is in the folder.
    stored.checkpoint.resume = "auto";
    stored.written.erase("checkpoint.resume");
  }
  std::string toml = ToToml(stored);
  const std::vector<OptionDifference> differences = Difference(config, settled);
  if (!differences.empty()) toml += "\n# Settled by weights, data, memory and the other options:\n";
  for (const OptionDifference& d : differences) toml += StrCat("#   ", d.key, " = ", d.b, "\n");
  RemoveTree(JoinPath(config.out_dir, kEndMark));
  WriteFileAtomically(JoinPath(config.out_dir, "config.toml"), toml);
}

void MarkEnd(const std::string& out_dir, int64_t step) {
  WriteFileAtomically(JoinPath(out_dir, kEndMark), StrCat("step ", step, "\n"));
}

bool IsFinished(const std::string& out_dir) { return PathExists(JoinPath(out_dir, kEndMark)); }

bool HoldsFinishedRun(const RunConfig& config) {
  if (!IsFinished(config.out_dir)) return false;
  const auto there = StoredRun(config.out_dir);
  return there && RealDifferences(*there, config).empty();
}

}  // namespace lockstep::models
