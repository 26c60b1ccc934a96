#include "models/evaluate/evaluate_gpt.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "core/io/file.h"
#include "core/thread_pool.h"
#include "dist/groups/agreement.h"
#include "dist/launch/rank_device.h"
#include "dist/world.h"
#include "models/evaluate/eval_task.h"
#include "models/evaluate/task_results.h"
#include "models/sample/sampled_model.h"
#include "models/train/run_ranks.h"

namespace lockstep::models {
namespace {

// Those that have a model together, and those that divide the questions.
struct EvaluationRanks {
  EvaluationRanks(const dist::Rendezvous& rendezvous, int tp, Device device) {
    if (rendezvous.world_size == 1) return;
    world = std::make_unique<dist::World>(rendezvous);
    const dist::Mesh mesh({.tp = tp}, world->rank(), world->size());
    model = world->Group(mesh, {"tp"}, {.name = "evaluate", .device = device});
    questions = world->Group(mesh, {"dp"}, {.name = "evaluate", .device = device});
  }

  Evaluators evaluators() const {
    if (!questions || questions->size() == 1) return {};
    return {.count = questions->size(), .own = questions->rank(), .sum = [this](auto* values) {
              const auto of_ranks =
                  dist::GatherValues(*questions, std::span<const double>(*values));
              values->assign(values->size(), 0);
              for (const std::vector<double>& of_rank : of_ranks) {
                for (size_t i = 0; i < values->size(); ++i) (*values)[i] += of_rank[i];
              }
            }};
  }

  std::unique_ptr<dist::World> world;
  std::shared_ptr<dist::ProcessGroup> model, questions;
};

// One line on stderr, renewed each second on a terminal and every ten elsewhere.
class ProgressLine {
 public:
  explicit ProgressLine(std::string task) : task_(std::move(task)) {}

  void Show(int64_t done, int64_t all) {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_ && done < all) return;
    next_ = now + std::chrono::seconds(terminal_ ? 1 : 10);
    std::fprintf(stderr, "%s%s: %lld of %lld batches%s", terminal_ ? "\r" : "", task_.c_str(),
                 static_cast<long long>(done), static_cast<long long>(all),
                 terminal_ && done < all ? "" : "\n");
    std::fflush(stderr);
  }

 private:
  const std::string task_;
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  std::chrono::steady_clock::time_point next_ =
      std::chrono::steady_clock::now() + std::chrono::seconds(1);
};

void CheckRanks(const EvaluateConfig& c, int ranks) {
  if (ranks % c.tp != 0) {
    throw InputError(StrCat("--tp=", c.tp, " does not divide the ", ranks,
                            ranks == 1 ? " process: start more with --nproc" : " processes"));
  }
  const int64_t parts = c.virtual_tp > 0 ? c.virtual_tp : c.tp;
  if (parts % c.tp == 0 && ((parts / c.tp) & (parts / c.tp - 1)) == 0) return;
  throw InputError(StrCat("--virtual_tp=", parts, " must be --tp=", c.tp, " times a power of two"));
}

struct NamedTask {
  std::string name;
  std::unique_ptr<EvalTask> task;
};

std::vector<NamedTask> MakeTasks(const EvaluateConfig& c, const RequestEncoder& encoder) {
  std::vector<NamedTask> tasks;
  for (const std::string& name : ParseTasks(c.tasks)) {
    tasks.push_back(
        {name, MakeTask(name, encoder, {.folder = c.data, .shots = c.shots, .limit = c.limit})});
  }
  if (!c.text.empty()) tasks.push_back({"text", MakeTextTask(c.text, encoder)});
  if (tasks.empty()) {
    throw InputError("nothing to evaluate: give --tasks=hellaswag,piqa or --text=FILE");
  }
  return tasks;
}

}  // namespace

void AddEvaluateOptions(Options& options, EvaluateConfig& c) {
  AddSourceOptions(options, c);
  options.Add("tasks", &c.tasks,
              {.aliases = {"task", "eval.tasks"},
               .doc = "names with commas between them: hellaswag, arc_easy, arc_challenge, piqa, "
                      "winogrande, lambada_openai, mmlu, gsm8k, core, core_copa (one of core's), "
                      "hellaswag_llmc"});
  options.Add("data", &c.data,
              {.aliases = {"eval.data", "data_dir"},
               .doc = "the folder with the tasks' files; without a file, the error says how to "
                      "write it"});
  options.Add(
      "text", &c.text,
      {.aliases = {"file", "perplexity"},
       .doc = "text and JSONL files, also .gz or .zst: the perplexity and bits per byte of these "
              "texts; a file, a pattern such as 'c/*.txt', or a folder"});
  options.Add("shots", &c.shots,
              {.min = -1,
               .max = 1000,
               .aliases = {"num_fewshot", "fewshot", "n_shot"},
               .doc = "examples before each question; -1: the task's own number"});
  options.Add("limit", &c.limit,
              {.min = 0, .doc = "only so many questions of each task, or subject; 0: all"});
  options.Add("batch_size", &c.batch_size,
              {.min = 1, .max = 65536, .doc = "sequences at once; more need more memory"});
  options.Add("tp", &c.tp,
              {.min = 1,
               .max = 65536,
               .aliases = {"parallel.tp"},
               .doc = "how many processes have a model together; the others divide the questions"});
  options.Add("virtual_tp", &c.virtual_tp,
              {.min = 0,
               .max = 65536,
               .aliases = {"virtual.tp"},
               .doc = "the parts in which sums are made that tp splits, which decide their last "
                      "bits; 0: tp"});
  options.Add("json", &c.json,
              {.aliases = {"output_path"}, .doc = "a file for the figures as JSON"});
}

namespace {

int Evaluate(const EvaluateConfig& c) {
  const dist::Rendezvous rendezvous = dist::ReadRendezvous();
  const bool is_main = rendezvous.rank == 0;
  SetNumThreads(ThreadsOf({.threads = c.threads}, rendezvous));
  CheckRanks(c, rendezvous.world_size);
  ParseTasks(c.tasks);
  const OpenedModel opened = OpenModel(c, "evaluate", is_main);
  if (opened.adapters.size() > 1) throw InputError("evaluate takes one --adapter");
  const int64_t parts = c.virtual_tp > 0 ? c.virtual_tp : c.tp;
  CheckDivides(opened.shape, static_cast<int>(parts));
  const std::unique_ptr<data::Tokenizer> tokenizer = RequireTokenizer(c, opened.folder());
  const RequestEncoder encoder(*tokenizer, opened.shape.block_size, opened.shape.vocab_size);
  const std::vector<NamedTask> tasks = MakeTasks(c, encoder);
  const Device device = dist::DeviceOfRank(c.device, rendezvous);
  const EvaluationRanks ranks(rendezvous, static_cast<int>(c.tp), device);
  const auto model = LoadOpenedModel(
      opened, std::make_shared<dist::TensorRanks>(c.tp > 1 ? ranks.model.get() : nullptr, parts),
      device);
  std::vector<TaskResult> results;
  for (const auto& [name, task] : tasks) {
    ProgressLine line(name);
    ScoreOptions options{.batch_size = c.batch_size, .evaluators = ranks.evaluators()};
    if (is_main) options.progress = [&](int64_t done, int64_t all) { line.Show(done, all); };
    for (TaskResult& result : task->Run(*model, options)) results.push_back(std::move(result));
  }
  if (!is_main) return 0;
  std::fputs(Table(results).c_str(), stdout);
  if (!c.json.empty()) {
    WriteFileAtomically(c.json, ToJson(results) + "\n");
    std::fprintf(stderr, "evaluate: wrote %s\n", c.json.c_str());
  }
  std::fprintf(stderr, "evaluate: to sample from it:\n  %s\n",
               CommandFor("//models:sample_gpt", c).c_str());
  return 0;
}

}  // namespace

int EvaluateGpt(const EvaluateConfig& c) {
  const int processes = dist::ReadRendezvous().world_size;
  return AdviseOnMemory(c, c.batch_size > 1 ? "--batch_size=1" : "",
                        StrCat("--nproc=", 2 * processes, " --tp=", 2 * c.tp),
                        [&] { return Evaluate(c); });
}

}  // namespace lockstep::models
