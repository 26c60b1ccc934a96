#include "models/train/train_gpt.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "core/io/file.h"
#include "core/philox.h"
#include "core/system/environment.h"
#include "core/system/processors.h"
#include "core/thread_pool.h"
#include "data/conversations/conversation_mixture.h"
#include "data/conversations/preference_dataset.h"
#include "data/shared_datasets.h"
#include "data/token_shards.h"
#include "dist/flight/flight_recorder.h"
#include "dist/groups/agreement.h"
#include "dist/launch/rank_device.h"
#include "kernels/cpu/gemm.h"
#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/checkpoint_saver.h"
#include "models/checkpoint/hf_model.h"
#include "models/gpt/peft/adapter.h"
#include "models/memory/auto_recompute.h"
#include "models/memory/machine_memory.h"
#include "models/memory/memory_advice.h"
#include "models/memory/memory_plan.h"
#include "models/report/run_progress.h"
#include "models/report/run_summary.h"
#include "models/train/elastic/elastic_run.h"
#include "models/train/parallel_plan.h"
#include "models/train/run_checks.h"
#include "models/train/run_data.h"
#include "models/train/run_notes.h"
#include "models/train/run_ranks.h"
#include "models/train/run_setup.h"
#include "models/train/training_loop.h"

namespace lockstep::models {
namespace {

// A line for each source of a mixture.
void PrintMixture(const RunSetup& setup) {
  const data::Dataset& dataset = setup.dataset;
  if (dataset.mixture.empty()) return;
  const bool open = setup.config.train.is_open();
  const int64_t samples = open ? 0 : setup.steps() * setup.samples_per_step();
  const std::vector<double> epochs =
      data::MakeSampler(dataset, data::Order::kSequential, 0, setup.window()).EpochsOf(samples);
  double all = 0;
  for (const data::MixtureStream& stream : dataset.mixture)
    all += static_cast<double>(stream.weight);
  for (size_t i = 0; i < epochs.size(); ++i) {
    const std::string passes = open ? "" : fmt::format("{:.3g} epochs in this run, ", epochs[i]);
    Print(fmt::format("{}: weight {}, {} tokens, {}{:.3g}% of its samples",
                      dataset.mixture_paths[i], dataset.mixture[i].weight,
                      dataset.mixture[i].num_tokens, passes,
                      100.0 * static_cast<double>(dataset.mixture[i].weight) / all));
  }
}

// The first row of conversations as text.
void PrintRow(const RunSetup& setup) {
  if (!setup.conversations && !setup.prefers()) return;
  const data::Dataset& d = setup.dataset;
  const bool pairs = setup.prefers();
  Print(d.note);
  Print(
      StrCat("the first ", pairs ? "pair" : "row", "; what is learnt stands between >>> and <<<:"));
  Print(pairs ? data::ShowPair(*d.train, *d.tokenizer, 0, setup.window(), ">>>", "<<<")
              : data::ShowRow(*data::ConversationRows(d), *d.tokenizer, 0, setup.window(), ">>>",
                              "<<<"));
}

void PrintRun(const Options& options, const RunSetup& setup, const MemoryPlan& memory) {
  if (setup.config.depth > 0) Print(options.DescribeDial());
  PrintSetup(setup, Gpt(setup.model), memory);
  if (setup.start.evaluates) return;
  for (const std::string& note : NotesOn(options, setup)) Warn(note);
}

// While this exists, this process also has the threads of the machine's other ranks, which wait.
class AllProcessors {
 public:
  explicit AllProcessors(const dist::Rendezvous& rendezvous) {
    const int all = own_ * std::max(1, rendezvous.local_world_size);
    SetNumThreads(std::max(own_, std::min(all, UsableProcessors())));
  }
  ~AllProcessors() { SetNumThreads(own_); }
  AllProcessors(const AllProcessors&) = delete;
  AllProcessors& operator=(const AllProcessors&) = delete;

 private:
  const int own_ = NumThreads();
};

// Of what the run starts from. 0: random weights.
uint64_t HashOfStart(const RunSetup& setup) {
  uint64_t hash = setup.weights.empty() ? 0 : HashOfContent(setup.weights);
  if (const std::string adapters = AdaptersOf(setup); !adapters.empty()) {
    hash ^= HashOfContent(CheckpointOf(adapters));
  }
  return hash;
}

// The folders of which that is the hash.
std::string FoldersOfStart(const RunSetup& setup) {
  namespace fs = std::filesystem;
  std::string folders;
  for (const std::string& path : {setup.weights, AdaptersOf(setup)}) {
    if (!path.empty()) folders += fs::weakly_canonical(path).string();
    folders += ' ';
  }
  return folders;
}

struct ReadOnce {
  std::vector<data::FileContent> data_files;
  std::vector<std::string> links;                // of SharedDatasets
  std::map<std::string, uint64_t> start_hashes;  // HashOfStart by FoldersOfStart
};

// Collective. The first rank of each machine prepares the run, reads what the run trains on and
// starts from, and encodes texts; returns what it found, so that the machine's other ranks need do
// neither.
ReadOnce PrepareFirst(const RunRanks& ranks, const dist::Rendezvous& rendezvous,
                      const std::function<RunSetup()>& prepare, RunSetup* setup) {
  ReadOnce result;
  const std::vector<std::string> found = ranks.OnEveryRank([&] {
    if (rendezvous.local_rank > 0) return std::string();
    const AllProcessors all(rendezvous);
    *setup = prepare();
    const uint64_t hash = ranks.control() ? HashOfStart(*setup) : 0;
    std::string lines = StrCat(hash, " ", FoldersOfStart(*setup), "\n");
    // Other machines may have others at the same paths: all of the first ranks compare theirs.
    result.start_hashes[FoldersOfStart(*setup)] = hash;
    for (const data::FileContent& file : setup->dataset.files) lines += ToLine(file) + "\n";
    for (const std::string& link : setup->start.shared->links) lines += link + "\n";
    return lines;
  });
  for (const std::string& of_rank : found) {
    std::istringstream lines(of_rank);
    uint64_t hash = 0;
    std::string line;
    lines >> hash;
    lines.get();
    if (std::getline(lines, line)) result.start_hashes.emplace(line, hash);
    while (std::getline(lines, line)) {
      if (line.starts_with('/')) {
        result.links.push_back(line);
      } else {
        result.data_files.push_back(data::ParseFileContent(line, "another rank"));
      }
    }
  }
  return result;
}

// The run will replace or remove out_dir/model at its end.
std::string CheckOldModel(const RunSetup& setup) {
  const std::string& folder = setup.config.out_dir;
  const auto step = SavesParts(setup) ? CheckHfModel(folder) : StepOfHfModel(folder);
  if (!step || setup.start.step >= setup.steps()) return "";
  return StrCat(folder, "/model has the weights of step ", *step, " until this run ends");
}

// Settles what is recomputed. Called before anything is allocated.
MemoryPlan SettleMemory(RunSetup& setup, const dist::Rendezvous& rendezvous) {
  const DeviceMemory memory = MemoryOf(setup.device);
  return SettleRecompute(setup, [&](const MemoryPlan& plan) {
    return FitOf(plan, setup.device, memory, rendezvous.local_world_size) == MemoryFit::Kind::kFits;
  });
}

// Too little memory is an error on GPUs, which can't swap, and on a CPU for a run that would not
// fit with all of the machine's swap space, either.
void CheckMemory(const MemoryPlan& plan, const RunSetup& setup, const dist::Rendezvous& rendezvous,
                 bool dry_run = false) {
  using enum MemoryFit::Kind;
  const DeviceMemory memory = MemoryOf(setup.device);
  const DeviceMemory host = setup.device.is_cpu() ? DeviceMemory() : MemoryOf(kCpu);
  const int64_t processes = rendezvous.local_world_size;
  const auto kind = std::max(FitOf(plan, setup.device, memory, processes),
                             HostFitOf(plan, setup.device, host, processes));
  const bool fits_swapped = plan.needed(kCpu, processes) <= memory.total + SwapBytes();
  const bool refuses = kind == kTooLarge && (setup.device.is_cuda() || (!fits_swapped && !dry_run));
  if (kind == kFits || (!refuses && rendezvous.local_rank > 0)) return;
  const std::string text = JudgeMemory(plan, setup, memory, processes, host).text;
  if (refuses) throw InputError(text);
  Warn(text);
}

// Collective. The recorder is null for a single process, and `elastic` unless the run is.
int TrainRanks(const Options& options, const RunConfig& config, const dist::Rendezvous& rendezvous,
               Device device, const std::shared_ptr<dist::FlightRecorder>& recorder,
               bool only_evaluate, ElasticRun* elastic = nullptr) {
  cpu::AllowBF16Products(config.train.numerics == "units");
  std::function<bool()> gives_up;
  if (elastic != nullptr) gives_up = [elastic] { return elastic->is_broken(); };
  RunRanks ranks(config, rendezvous, device, recorder, gives_up);
  ranks.CheckSameOptions(config);
  const bool goes_on = elastic != nullptr && elastic->GoesOn(ranks);
  std::unique_ptr<FileLock> lock;  // the main rank's, until the run has ended
  // The main rank's, until all have read it: another run may be saving there.
  std::optional<HeldCheckpoint> held;
  RunStart start = ranks.FromMain([&] {
    const AllProcessors all(rendezvous);
    RunStart from;
    // Before what the run folder may have to say.
    const std::string& path = config.data.path;
    if (!path.empty() && path != "-") data::ExpandPattern(path);
    if (goes_on) {
      // The process that had the lock may just have ended, perhaps on another machine.
      lock = LockRunFolder(config.out_dir, Warn, std::chrono::seconds(60));
      return elastic->Start();
    }
    if (!only_evaluate) {
      CheckOwnFile(options, config);
      lock = LockRunFolder(config.out_dir, Warn);
      from = PrepareRunFolder(SettleTokenizer(options, config), Warn, ChangesOfPast);
    }
    if (from.checkpoint) {  // verified
      held = std::exchange(from.held, {});
      return from;
    }
    if (!config.init_from.empty()) {
      held = HoldCheckpoint(config.init_from);
      from.init_from = config.init_from;
      from.weights = held->path();
      VerifyModelAndBase(from.weights);
    }
    const std::string& adapters = config.lora.init_from;
    if (!adapters.empty() && adapters != config.init_from) VerifyModel(CheckpointOf(adapters));
    return from;
  });
  if (elastic != nullptr) elastic->Begin(start);
  // The folder is locked now, so this run may write its flight records there.
  if (recorder && !only_evaluate) recorder->SetFolder(JoinPath(config.out_dir, "flight"));
  RunSetup setup;
  MemoryPlan memory;
  uint64_t start_hash = 0;
  std::string old_model;  // a note on the main rank; may be empty
  const auto prepare = [&] { return PrepareRun(options, config, start, device, ranks.size()); };
  start.evaluates = only_evaluate;
  start.shared = std::make_shared<data::SharedDatasets>();
  if (start.going_on) {
    setup = PrepareToGoOn(ranks, start, *elastic, prepare);
    memory = AgreeOnRecompute(setup, SettleMemory(setup, rendezvous), ranks.control().get());
    Utilization utilization{.flops_per_token = Gpt(setup.model).FlopsPerToken(setup.window())};
    if (elastic->kept() != nullptr) utilization = elastic->kept()->utilization;
    utilization.ranks = ranks.size();
    TrainingLoop loop(setup, memory, utilization, ranks, elastic);
    return loop.Train();
  }
  start.shared->shares = rendezvous.local_world_size > 1 && elastic == nullptr;
  const ReadOnce read = PrepareFirst(ranks, rendezvous, prepare, &setup);
  start.known_files = read.data_files;
  if (rendezvous.local_rank > 0) *start.shared = {.shares = false, .links = read.links};
  ranks.OnEveryRank([&] {
    if (rendezvous.local_rank > 0) setup = prepare();
    CheckContinues(setup);
    CheckHasSteps(setup);
    if (!only_evaluate) CheckTrainsOn(setup);
    if (ranks.is_main() && !only_evaluate) old_model = CheckOldModel(setup);
    if (ranks.control()) {
      const auto known = read.start_hashes.find(FoldersOfStart(setup));
      start_hash = known == read.start_hashes.end() ? HashOfStart(setup) : known->second;
    }
    memory = SettleMemory(setup, rendezvous);
    return "";
  });
  if (ranks.control()) {
    const std::string data = setup.dataset.fingerprint + setup.dataset.val_fingerprint;
    dist::CheckEqual(*ranks.control(), "the hash of the data",
                     static_cast<int64_t>(HashName(data.data(), data.size())));
    dist::CheckEqual(*ranks.control(), "the hash of the checkpoint or folder to start from",
                     static_cast<int64_t>(start_hash));
  }
  memory = AgreeOnRecompute(setup, memory, ranks.control().get());
  ranks.OnEveryRank([&] {
    CheckMemory(memory, setup, rendezvous);
    return "";
  });
  try {
    Utilization utilization{.flops_per_token = Gpt(setup.model).FlopsPerToken(setup.window())};
    ranks.OnMain("printing", [&] {
      PrintRun(options, setup, memory);
      if (!start.note.empty()) Print(start.note);
      if (!setup.dataset.note.empty()) Print(setup.dataset.note);
      if (!old_model.empty()) Print(old_model);
      if (only_evaluate) return;
      PrintMixture(setup);
      utilization = MeasureUtilization(device, config.train.precision, ranks.size(),
                                       utilization.flops_per_token);
    });
    TrainingLoop loop(setup, memory, utilization, ranks, elastic);
    held.reset();
    return only_evaluate ? loop.EvaluateOnly() : loop.Train();
  } catch (const OutOfMemoryError& e) {
    // The plan fitted, so something else takes memory: what would leave a tenth more of it.
    const auto enough = static_cast<int64_t>(0.9 * static_cast<double>(memory.needed(device)));
    const auto fits = [&](const MemoryPlan& plan) { return plan.needed(device) <= enough; };
    throw OutOfMemoryError(StrCat(e.what(), ". ", MemoryAdvice(setup, {{fits}})));
  }
}

// Trains in one world after the other, until the run is over.
int TrainElastically(const Options& options, const RunConfig& config, Device device,
                     std::unique_ptr<dist::Membership> membership) {
  ElasticRun run(config, device, std::move(membership));
  const auto restarts = EnvironmentVariable("LOCKSTEP_RESTARTS");
  if (restarts && *restarts != "0") {
    run.PrepareToJoin([&] {
      return PrepareRun(options, config, {.shared = std::make_shared<data::SharedDatasets>()},
                        device, dist::ReadRendezvous().world_size);
    });
  }
  std::unique_ptr<Error> failure;  // of the last world
  while (const auto place = run.Join(failure.get())) {
    const dist::Rendezvous& r = place->rendezvous;
    if ((place->epoch > 1 || !place->news.empty()) && r.rank == 0) {
      const std::string why = !place->news.empty() || !failure ? place->news : failure->what();
      Print(StrCat("world ", place->epoch, " of ", r.world_size,
                   r.world_size == 1 ? " rank" : " ranks",
                   run.step() >= 0 ? StrCat(", going on from step ", run.step()) : "",
                   why.empty() ? "" : ": ", why));
    }
    failure.reset();
    const auto recorder = std::make_shared<dist::FlightRecorder>("", r.rank, r.world_size);
    try {
      const int code = TrainRanks(options, config, r, device, recorder, false, &run);
      if (!run.leaves()) return code;
    } catch (const dist::CollectiveError& e) {
      recorder->Write(e.what());
      failure = std::make_unique<dist::CollectiveError>(e);
    } catch (const dist::ConnectionError& e) {
      failure = std::make_unique<dist::ConnectionError>(e);
    }
    if (CheckpointSaver::has_left_thread()) {
      throw Error(
          "the disk of out_dir does not answer, and a checkpoint may still be written there: "
          "another process takes the place of this one");
    }
  }
  const int signal = InterruptGuard::signal();
  return signal == 0 ? 0 : 128 + signal;
}

}  // namespace

int TrainGpt(const Options& options, const RunConfig& given, RunMode mode) {
  RunConfig config = given;
  const dist::Rendezvous rendezvous = dist::ReadRendezvous();
  const Device device = dist::DeviceOfRank(config.device, rendezvous);
  SetNumThreads(ThreadsOf(config, rendezvous));
  if (mode.evaluates) {
    CheckEvaluation(options, config);
    // Weights with adapters are evaluated with those, whatever adapters the run began from.
    std::string& adapters = config.lora.init_from;
    if (!adapters.empty() && PeftAdapter::Exists(CheckpointOf(config.init_from))) {
      adapters = config.init_from;
    }
  }
  if (mode.dry_run) {
    if (rendezvous.rank > 0) return 0;  // it would print the same again
    RunSetup setup =
        PrepareRun(options, config, {.evaluates = mode.evaluates}, device, rendezvous.world_size);
    const MemoryPlan memory = SettleMemory(setup, rendezvous);
    PrintRun(options, setup, memory);
    Print(Table(memory, setup.device));
    Print(Describe(MemoryOf(setup.device)));
    CheckMemory(memory, setup, rendezvous, /*dry_run=*/true);
    if (!mode.evaluates) PrintRow(setup);
    Print(StrCat("dry run: nothing was written or ", mode.evaluates ? "evaluated" : "trained"));
    return 0;
  }
  if (config.dist.elastic && !mode.evaluates) {
    if (auto membership = dist::Membership::Find()) {
      return TrainElastically(options, config, device, std::move(membership));
    }
    if (rendezvous.rank == 0) {
      Warn(
          "dist.elastic = true, but what started the ranks does not start single ones again: if "
          "one ends, all do. launch --elastic, or train_gpt --nproc=N, can");
    }
  }
  if (rendezvous.world_size == 1) {
    return TrainRanks(options, config, rendezvous, device, nullptr, mode.evaluates);
  }
  const auto recorder =
      std::make_shared<dist::FlightRecorder>("", rendezvous.rank, rendezvous.world_size);
  try {
    return TrainRanks(options, config, rendezvous, device, recorder, mode.evaluates);
  } catch (const std::exception& e) {
    recorder->Write(e.what());
    throw;
  }
}

}  // namespace lockstep::models
