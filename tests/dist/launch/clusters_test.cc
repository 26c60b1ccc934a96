// The examples of models/examples/clusters: ranks are started with the environment that the
// schedulers give them.
#include <gmock/gmock-matchers.h>
#include <sys/stat.h>

#include <map>
#include <memory>
#include <sstream>

#include "core/error.h"
#include "core/io/file.h"
#include "dist/control/socket.h"
#include "tests/dist/launch/manifest.h"
#include "tests/subprocess.h"

namespace lockstep {
namespace {
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using Environment = std::map<std::string, std::string>;
using Arguments = std::vector<std::string>;

constexpr char kRank[] = "tests/dist/processes/rank";
const std::string kFolder = "models/examples/clusters/";

// Starts a program for each environment, and expects that all ranks get to the last step.
void ExpectThatTheyMeet(const Arguments& command, const std::vector<Environment>& environments) {
  std::vector<std::unique_ptr<Subprocess>> all;
  for (const Environment& e : environments) all.push_back(std::make_unique<Subprocess>(command, e));
  for (auto& one : all) {
    const Result r = one->Wait();
    EXPECT_EQ(r.exit_code, 0) << r;
    EXPECT_THAT(r.out, HasSubstr("step 20\n"));
  }
}

// ---- Slurm ----

// What srun and slurmstepd set (env_array_for_step and setup_env in Slurm's src/common/env.c), for
// the tasks of a step on the last nodes of a job's four. `tasks`: of each node of the step.
std::vector<Environment> OfSrun(const std::string& tasks_per_node, const std::vector<int>& tasks,
                                const std::string& job, const std::string& step) {
  std::vector<Environment> all;
  int size = 0;
  for (const int here : tasks) size += here;
  for (size_t node = 0; node < tasks.size(); ++node) {
    for (int local = 0; local < tasks[node]; ++local) {
      all.push_back({{"SLURM_JOB_ID", job},
                     {"SLURM_STEP_ID", step},
                     {"SLURM_STEPID", step},
                     {"SLURM_JOB_NODELIST", "no-such-node[01-04]"},
                     // The nodes of the test are all here.
                     {"SLURM_STEP_NODELIST", "localhost,no-such-node[03-04]"},
                     {"SLURM_STEP_NUM_NODES", std::to_string(tasks.size())},
                     {"SLURM_STEP_NUM_TASKS", std::to_string(size)},
                     {"SLURM_NTASKS", "16"},
                     {"SLURM_STEP_TASKS_PER_NODE", tasks_per_node},
                     {"SLURM_TASKS_PER_NODE", "4(x4)"},
                     {"SLURM_CPUS_ON_NODE", "8"},
                     {"SLURM_NODEID", std::to_string(node)},
                     {"SLURM_PROCID", std::to_string(all.size())},
                     {"SLURM_LOCALID", std::to_string(local)},
                     {"LOCKSTEP_SECRET", "of the job"}});
    }
  }
  return all;
}

TEST(Clusters, TasksOfAStepOnSomeOfTheNodesMeet) {
  ExpectThatTheyMeet({kRank, "20"}, OfSrun("2,1", {2, 1}, "4711", "0"));
}

TEST(Clusters, TwoStepsOfAJobDoNotMeet) {
  auto both = OfSrun("2", {2}, "4712", "0");
  for (const Environment& e : OfSrun("1(x2)", {1, 1}, "4712", "1")) both.push_back(e);
  ExpectThatTheyMeet({kRank, "20"}, both);
}

// Runs train.sbatch with an srun that ends with this code. Returns what srun and scontrol were
// called with.
std::string RunBatchScript(int code) {
  const std::string folder = JoinPath(testing::TempDir(), "sbatch-" + std::to_string(code));
  MakeDirectories(folder);
  const auto put = [&](const std::string& name, const std::string& script) {
    const std::string path = JoinPath(folder, name);
    WriteFileAtomically(path, "#!/bin/bash\n" + script);
    chmod(path.c_str(), 0755);
  };
  put("srun",
      "echo srun \"$@\"; echo \"${#LOCKSTEP_SECRET} digits, $SRUN_CPUS_PER_TASK processors\"\n"
      "exit " +
          std::to_string(code) + "\n");
  put("scontrol", "echo scontrol \"$@\"\n");
  const Result r = RunProgram({kFolder + "train.sbatch", "config.toml", "--out_dir=run"},
                              {{"PATH", folder + ":/usr/bin:/bin"},
                               {"SLURM_JOB_ID", "4713"},
                               {"SLURM_CPUS_PER_TASK", "8"},
                               {"LOCKSTEP_SECRET", ""}});
  EXPECT_EQ(r.exit_code, code) << r;
  return r.out;
}

TEST(Clusters, TheBatchScriptRequeuesWhatASignalStopped) {
  const std::string start =
      "srun --kill-on-bad-exit=0 train_gpt config.toml --out_dir=run\n32 digits, 8 processors\n";
  for (const int code : {128 + 10, 128 + 15}) {
    EXPECT_EQ(RunBatchScript(code), start + "scontrol requeue 4713\n");
  }
  for (const int code : {0, 1, 2, 128 + 9}) EXPECT_EQ(RunBatchScript(code), start);
}

TEST(Clusters, TheBatchScriptAsksForAWarning) {
  std::vector<std::string> asked;
  std::istringstream in(ReadFile(kFolder + "train.sbatch"));
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("#SBATCH ")) asked.push_back(line.substr(8));
  }
  // To the steps: with "B:" it would be to the script, which has no use for it.
  EXPECT_THAT(asked, testing::Contains("--signal=USR1@300"));
  EXPECT_THAT(asked, testing::Contains("--requeue"));
}

// ---- MPI ----

TEST(Clusters, RanksOfOpenMpiAndMpichMeet) {
  std::vector<Environment> open, hydra;
  for (int rank = 0; rank < 3; ++rank) {
    const std::string local = std::to_string(rank % 2), here = rank < 2 ? "2" : "1";
    const Environment of_user = {{"MASTER_ADDR", "localhost"}, {"LOCKSTEP_SECRET", "of the job"}};
    open.push_back(of_user);
    open.back().merge(Environment{{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
                                  {"OMPI_COMM_WORLD_SIZE", "3"},
                                  {"OMPI_COMM_WORLD_LOCAL_RANK", local},
                                  {"OMPI_COMM_WORLD_LOCAL_SIZE", here},
                                  {"PMIX_RANK", std::to_string(rank)},
                                  {"PMIX_NAMESPACE", "1"},
                                  {"MASTER_PORT", "29611"}});
    hydra.push_back(of_user);
    hydra.back().merge(Environment{{"PMI_RANK", std::to_string(rank)},
                                   {"PMI_SIZE", "3"},
                                   {"MPI_LOCALRANKID", local},
                                   {"MPI_LOCALNRANKS", here},
                                   {"MASTER_PORT", "29612"}});
  }
  ExpectThatTheyMeet({kRank, "20"}, open);
  ExpectThatTheyMeet({kRank, "20"}, hydra);
}

// Where Debian's packages openmpi-bin and mpich are installed.
TEST(Clusters, RanksThatMpirunStartsMeet) {
  int installed = 0;
  for (const Arguments& mpirun : {Arguments{"/usr/bin/mpirun.openmpi", "--allow-run-as-root",
                                            "--oversubscribe", "--bind-to", "none", "-np", "2"},
                                  {"/usr/bin/mpiexec.hydra", "-n", "2"}}) {
    if (!PathExists(mpirun[0])) continue;
    ++installed;
    Arguments command = mpirun;
    command.insert(command.end(), {kRank, "20"});
    const Result r = RunProgram(command, {{"MASTER_PORT", "29614"}});
    EXPECT_EQ(r.exit_code, 0) << r;
    const size_t first = r.out.find("step 20\n");
    EXPECT_NE(first, std::string::npos) << r;
    EXPECT_NE(r.out.find("step 20\n", first + 1), std::string::npos) << r;
  }
  if (installed == 0) GTEST_SKIP() << "neither Open MPI nor MPICH is installed";
}

// ---- Kubernetes ----

// The environment of the container in pod `index` of an indexed job.
Environment OfContainer(const Json& container, int index) {
  Environment all;
  for (const Json& e : container.value("env", Json::array())) {
    std::string& value = all[e["name"].get<std::string>()];
    if (e.contains("value")) {
      value = e["value"].get<std::string>();  // Kubernetes takes nothing but strings
      continue;
    }
    const Json& from = e["valueFrom"];
    if (from.contains("secretKeyRef")) {
      EXPECT_EQ(from["secretKeyRef"]["name"], "lockstep");
      value = "of the secret";
    } else {
      EXPECT_EQ(from["fieldRef"]["fieldPath"],
                "metadata.annotations['batch.kubernetes.io/job-completion-index']");
      value = std::to_string(index);
    }
  }
  return all;
}

// What both manifests must say so that pods that a signal ends are started again, and not counted.
void ExpectThatSignalsRestart(const Json& job_set, const Json& job, const Json& container) {
  const Json& policy = job_set["failurePolicy"]["rules"][0];
  EXPECT_EQ(policy["action"], "RestartJobSetAndIgnoreMaxRestarts");
  EXPECT_EQ(policy["onJobFailureReasons"], Json::array({"PodFailurePolicy"}));
  EXPECT_EQ(job["backoffLimit"], 0);
  const Json& rules = job["podFailurePolicy"]["rules"];
  EXPECT_EQ(rules[0]["onPodConditions"][0]["type"], "DisruptionTarget");
  EXPECT_EQ(rules[1]["onExitCodes"]["containerName"], container["name"]);
  EXPECT_EQ(rules[1]["onExitCodes"]["values"], Json::array({128 + 10, 128 + 15}));
  const Json& pod = job["template"]["spec"];
  EXPECT_EQ(pod["restartPolicy"], "Never") << "which a podFailurePolicy needs";
  EXPECT_GT(pod["terminationGracePeriodSeconds"].get<int>(), 30);
  for (const Json& mount : container["volumeMounts"]) {
    bool found = false;
    for (const Json& volume : pod["volumes"]) found |= volume["name"] == mount["name"];
    EXPECT_TRUE(found) << mount;
  }
}

// Starts the launcher of each pod. There is no GPU here, and no such name.
void ExpectThatPodsMeet(const Json& command, std::vector<Environment> pods) {
  ASSERT_THAT(command.get<Arguments>(),
              ElementsAre("launch", "--", "train_gpt", testing::_, testing::_));
  std::string address;
  try {
    address = dist::OutwardAddress();
  } catch (const dist::ConnectionError& e) {
    GTEST_SKIP() << e.what();
  }
  for (Environment& pod : pods) {
    EXPECT_EQ(pod["PET_NPROC_PER_NODE"], "gpu");
    EXPECT_EQ(pod["PET_MASTER_PORT"], "29500");
    pod["PET_NPROC_PER_NODE"] = "2";
    pod["PET_MASTER_ADDR"] = address;
    pod["PET_MASTER_PORT"] = "29613";
  }
  ExpectThatTheyMeet({"tools/launch", "--", kRank, "20"}, pods);
}

TEST(Clusters, PodsOfTheJobSetMeet) {
  const auto documents = ReadManifests(ReadFile(kFolder + "jobset.yaml"));
  ASSERT_EQ(documents.size(), 1u);
  const Json& spec = documents[0]["spec"];
  const Json& replicated = spec["replicatedJobs"][0];
  const Json& job = replicated["template"]["spec"];
  const Json& container = job["template"]["spec"]["containers"][0];
  ExpectThatSignalsRestart(spec, job, container);
  EXPECT_EQ(job["completions"], job["parallelism"]);
  std::vector<Environment> pods;
  for (int index = 0; index < job["completions"]; ++index) {
    pods.push_back(OfContainer(container, index));
    EXPECT_EQ(pods.back()["PET_NNODES"], std::to_string(job["completions"].get<int>()));
    const std::string name = documents[0]["metadata"]["name"];
    EXPECT_EQ(pods.back()["PET_MASTER_ADDR"],
              name + "-" + replicated["name"].get<std::string>() + "-0-0." + name)
        << "pod 0 of job 0, in the job set's service";
  }
  ExpectThatPodsMeet(container["command"], pods);
}

TEST(Clusters, PodsOfTheTrainJobMeet) {
  const auto documents = ReadManifests(ReadFile(kFolder + "trainjob.yaml"));
  ASSERT_EQ(documents.size(), 2u);
  const Json& runtime = documents[0];
  const Json& train_job = documents[1];
  const Json& reference = train_job["spec"]["runtimeRef"];
  EXPECT_EQ(reference["kind"], runtime["kind"]);
  EXPECT_EQ(reference["name"], runtime["metadata"]["name"]);
  const Json& replicated = runtime["spec"]["template"]["spec"]["replicatedJobs"][0];
  EXPECT_EQ(replicated["template"]["metadata"]["labels"],
            Json({{"trainer.kubeflow.org/trainjob-ancestor-step", "trainer"}}));
  const Json& job = replicated["template"]["spec"];
  const Json& container = job["template"]["spec"]["containers"][0];
  EXPECT_EQ(container["name"], "node") << "the one that the trainer gives its variables";
  ExpectThatSignalsRestart(runtime["spec"]["template"]["spec"], job, container);
  // What the trainer adds (pkg/runtime/framework/plugins/torch/torch.go).
  const Json& trainer = train_job["spec"]["trainer"];
  std::vector<Environment> pods;
  for (int index = 0; index < trainer["numNodes"]; ++index) {
    Environment pod = OfContainer(container, index);
    for (const auto& [name, value] : pod) EXPECT_THAT(name, Not(HasSubstr("PET_"))) << value;
    pod["PET_NNODES"] = std::to_string(trainer["numNodes"].get<int>());
    pod["PET_NPROC_PER_NODE"] = trainer["numProcPerNode"];
    pod["PET_NODE_RANK"] = std::to_string(index);
    pod["PET_MASTER_PORT"] = "29500";
    pods.push_back(pod);
  }
  ExpectThatPodsMeet(trainer["command"], pods);
}

TEST(Clusters, ManifestsBeyondWhatIsReadAreRefused) {
  EXPECT_EQ(ReadManifests("a:\n  - b: 1\n    c: \"2\"\n  - [x, 3]\n")[0],
            Json::parse(R"({"a": [{"b": 1, "c": "2"}, ["x", 3]]})"));
  for (const char* const text : {"a: |\n", "a: {b: 1}\n", "a: 1 # b\n", "a:\nb: 1\n", "a\n",
                                 "a: 1\n  b: 2\n", "a: 1\na: 2\n"}) {
    EXPECT_THROW(ReadManifests(text), std::runtime_error) << text;
  }
}

}  // namespace
}  // namespace lockstep
