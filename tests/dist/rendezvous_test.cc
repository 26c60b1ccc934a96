// How the variables of launchers are interpreted (reliability promise 20).
#include "dist/control/rendezvous.h"

#include <gmock/gmock-matchers.h>

#include <map>

#include "tests/message_of.h"

namespace lockstep::dist {
namespace {

using lockstep::test::MessageOf;
using testing::AllOf;
using testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

Rendezvous Read(const Variables& variables) { return ReadRendezvous(variables); }

std::string ErrorOf(const Variables& variables) {
  return MessageOf<InputError>([&] { Read(variables); });
}

TEST(RendezvousTest, AloneWithoutAnyVariable) {
  const Rendezvous r = Read({});
  EXPECT_EQ(r.rank, 0);
  EXPECT_EQ(r.world_size, 1);
  EXPECT_EQ(r.source, "");
}

TEST(RendezvousTest, AsTorchrunSetsIt) {
  const Rendezvous r = Read({{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "10.0.0.1"},
                             {"MASTER_PORT", "12345"},
                             {"LOCKSTEP_SECRET", "s"},
                             // Under torchrun, Slurm's variables describe the node.
                             {"SLURM_PROCID", "1"},
                             {"SLURM_NTASKS", "2"}});
  EXPECT_EQ(r.rank, 5);
  EXPECT_EQ(r.world_size, 8);
  EXPECT_EQ(r.local_rank, 1);
  EXPECT_EQ(r.local_world_size, 4);
  EXPECT_EQ(r.master_addr, "10.0.0.1");
  EXPECT_EQ(r.master_port, 12345);
  EXPECT_EQ(r.secret, "s");
  EXPECT_EQ(r.source, "RANK");
}

TEST(RendezvousTest, BesideTheStoreOfTorchrunsAgent) {
  Variables variables = {{"RANK", "1"},
                         {"WORLD_SIZE", "2"},
                         {"LOCAL_RANK", "1"},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "node0"},
                         {"MASTER_PORT", "29500"},
                         {"TORCHELASTIC_RUN_ID", "7"},
                         {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  Rendezvous r = Read(variables);
  EXPECT_EQ(r.master_addr, "127.0.0.1") << "all ranks are here";
  EXPECT_EQ(r.master_port, 29501);
  EXPECT_EQ(r.port_choices, 8);
  EXPECT_EQ(r.run_id, "7:29500");
  variables["MASTER_PORT"] = "65530";
  variables["WORLD_SIZE"] = "4";
  r = Read(variables);
  EXPECT_EQ(r.master_addr, "node0");
  EXPECT_EQ(r.master_port, 65522);
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  r = Read(variables);
  EXPECT_EQ(r.master_port, 65530);
  EXPECT_EQ(r.port_choices, 1);
  EXPECT_EQ(r.run_id, "");
}

TEST(RendezvousTest, OnOneMachineTheRestFollows) {
  const Rendezvous r = Read({{"RANK", "1"}, {"WORLD_SIZE", "2"}});
  EXPECT_EQ(r.local_rank, 1);
  EXPECT_EQ(r.local_world_size, 2);
  EXPECT_EQ(r.master_addr, "127.0.0.1");
  EXPECT_EQ(r.master_port, 29500);
}

TEST(RendezvousTest, AsMpirunSetsIt) {
  const Rendezvous r = Read({{"OMPI_COMM_WORLD_RANK", "3"},
                             {"OMPI_COMM_WORLD_SIZE", "4"},
                             {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                             {"MASTER_ADDR", "head"}});
  EXPECT_EQ(r.rank, 3);
  EXPECT_EQ(r.local_rank, 1);
  EXPECT_EQ(r.master_addr, "head");
}

TEST(RendezvousTest, AsMpichAndIntelMpiSetIt) {
  const Rendezvous r = Read({{"PMI_RANK", "3"},
                             {"PMI_SIZE", "4"},
                             {"MPI_LOCALRANKID", "1"},
                             {"MPI_LOCALNRANKS", "2"},
                             {"MASTER_ADDR", "head"}});
  EXPECT_EQ(r.rank, 3);
  EXPECT_EQ(r.world_size, 4);
  EXPECT_EQ(r.local_rank, 1);
  EXPECT_EQ(r.local_world_size, 2);
  EXPECT_EQ(Read({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}).local_world_size, 2);
}

// What mpirun starts on a node by srun inherits the variables of that one task.
TEST(RendezvousTest, AsMpichSetsItInAJobOfSlurm) {
  const Rendezvous r = Read({{"PMI_RANK", "5"},
                             {"PMI_SIZE", "8"},
                             {"MPI_LOCALRANKID", "1"},
                             {"MPI_LOCALNRANKS", "4"},
                             {"SLURM_PROCID", "1"},
                             {"SLURM_STEP_NUM_TASKS", "2"},
                             {"MASTER_ADDR", "head"}});
  EXPECT_EQ(r.rank, 5);
  EXPECT_EQ(r.world_size, 8);
  EXPECT_EQ(r.source, "PMI_RANK");
}

Variables OfSrun() {
  return {{"SLURM_PROCID", "6"},
          {"SLURM_STEP_NUM_TASKS", "8"},
          {"SLURM_NTASKS", "16"},  // the job's, as srun --preserve-env leaves it
          {"SLURM_LOCALID", "2"},
          {"SLURM_NODEID", "1"},
          {"SLURM_JOB_ID", "123456"},
          {"SLURM_STEP_ID", "1"},
          {"SLURM_STEP_NODELIST", "gpu[07-08]"},
          {"SLURM_JOB_NODELIST", "gpu[05-08]"},
          {"SLURM_CPUS_ON_NODE", "48"},
          {"PMI_RANK", "6"},  // with --mpi=pmi2
          {"PMI_SIZE", "8"}};
}

TEST(RendezvousTest, AsSrunSetsIt) {
  const Rendezvous r = Read(OfSrun());
  EXPECT_EQ(r.rank, 6);
  EXPECT_EQ(r.world_size, 8);
  EXPECT_EQ(r.local_rank, 2);
  EXPECT_EQ(r.processors, 48);
  EXPECT_EQ(r.master_addr, "gpu07") << "the first node of the step, not of the job";
  EXPECT_EQ(r.source, "SLURM_PROCID");
}

TEST(RendezvousTest, StepsOfSlurmDoNotMeet) {
  const auto of = [](const std::string& job, const std::string& step) {
    Variables variables = OfSrun();
    variables["SLURM_JOB_ID"] = job;
    variables["SLURM_STEP_ID"] = step;
    return Read(variables);
  };
  const Rendezvous r = of("123456", "1");
  EXPECT_GE(r.master_port, 20000);
  EXPECT_EQ(r.port_choices, 8);
  EXPECT_EQ(of("123456", "1").master_port, r.master_port);
  for (const Rendezvous& other : {of("123456", "0"), of("123457", "1"), of("123457", "0")}) {
    EXPECT_NE(other.master_port, r.master_port);
    EXPECT_NE(other.run_id, r.run_id);
  }
  // That of an interactive step.
  EXPECT_LE(of("4294967294", "4294967290").master_port + 8, 65535);
  Variables given = OfSrun();
  given["MASTER_PORT"] = "12345";
  EXPECT_EQ(Read(given).master_port, 12345);
  EXPECT_EQ(Read(given).port_choices, 1);
}

// What its script starts without srun is no rank: a sample after the training, or launch.
TEST(RendezvousTest, TheScriptOfABatchJobIsNoRank) {
  Variables script = {{"SLURM_PROCID", "0"},
                      {"SLURM_LOCALID", "0"},
                      {"SLURM_NODEID", "0"},
                      {"SLURM_JOB_ID", "123456"},
                      {"SLURM_JOB_NODELIST", "gpu[05-08]"},
                      {"SLURM_TASKS_PER_NODE", "2(x4)"}};
  EXPECT_EQ(Read(script).world_size, 1);
  script["SLURM_NTASKS"] = "8";
  EXPECT_EQ(Read(script).world_size, 1);
}

// Processors are divided among the ranks of a node, not of the job.
TEST(RendezvousTest, SrunsRanksOnThisNode) {
  const auto here = [](int rank, int local, int node, const std::string& tasks) {
    return Read({{"SLURM_PROCID", StrCat(rank)},
                 {"SLURM_STEP_NUM_TASKS", "7"},
                 {"SLURM_LOCALID", StrCat(local)},
                 {"SLURM_NODEID", StrCat(node)},
                 {"SLURM_STEP_TASKS_PER_NODE", tasks},
                 {"SLURM_STEP_NODELIST", "gpu[07-10]"}})
        .local_world_size;
  };
  EXPECT_EQ(here(3, 1, 1, "2(x3),1"), 2);
  EXPECT_EQ(here(6, 0, 3, "2(x3),1"), 1);
  EXPECT_EQ(here(3, 0, 1, "3,4"), 4);
  EXPECT_EQ(here(3, 3, 0, "7"), 7);
  // Inconsistent values are ignored.
  for (const char* const tasks : {"", "2", "2(x3)", "2(x", "x", "3,4", "-7", "9(x-1)", "8,-1"}) {
    EXPECT_EQ(here(3, 3, 0, tasks), 7) << tasks;
  }
}

TEST(RendezvousTest, PmixDoesNotSayHowManyRanksThereAre) {
  EXPECT_THAT(ErrorOf({{"PMIX_RANK", "1"}}),
              AllOf(HasSubstr("PMIX_RANK"), HasSubstr("WORLD_SIZE")));
  EXPECT_EQ(Read({{"PMIX_RANK", "1"}, {"RANK", "1"}, {"WORLD_SIZE", "2"}}).world_size, 2);
}

TEST(RendezvousTest, FirstHostOfANodeList) {
  EXPECT_EQ(FirstHost("node1"), "node1");
  EXPECT_EQ(FirstHost("node1,node2"), "node1");
  EXPECT_EQ(FirstHost("node[07-09,12],gpu1"), "node07");
  EXPECT_EQ(FirstHost("a,node[07-09]"), "a");
  EXPECT_EQ(FirstHost("rack[3]-n,b"), "rack3-n");
  EXPECT_THAT(MessageOf<InputError>([] { FirstHost("node["); }), HasSubstr("MASTER_ADDR"));
  EXPECT_THAT(MessageOf<InputError>([] { FirstHost("node[]"); }), HasSubstr("node[]"));
}

TEST(RendezvousTest, MissingAndContradictoryVariables) {
  EXPECT_THAT(ErrorOf({{"RANK", "0"}}), AllOf(HasSubstr("RANK is set"), HasSubstr("WORLD_SIZE")));
  EXPECT_THAT(ErrorOf({{"WORLD_SIZE", "2"}}), HasSubstr("RANK is not"));
  EXPECT_THAT(ErrorOf({{"RANK", "2"}, {"WORLD_SIZE", "2"}}),
              HasSubstr("RANK is 2, but WORLD_SIZE is 2; ranks count from 0"));
  EXPECT_THAT(ErrorOf({{"RANK", "one"}, {"WORLD_SIZE", "2"}}),
              HasSubstr("RANK is 'one'; it must be a whole number"));
  EXPECT_THAT(ErrorOf({{"RANK", "1"}, {"WORLD_SIZE", "2x"}}), HasSubstr("WORLD_SIZE is '2x'"));
  EXPECT_THAT(ErrorOf({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}), HasSubstr("'-1'"));
  EXPECT_THAT(ErrorOf({{"RANK", "99999999999999999999"}, {"WORLD_SIZE", "2"}}), HasSubstr("99999"));
  EXPECT_THAT(ErrorOf({{"RANK", "0"}, {"WORLD_SIZE", "0"}}), HasSubstr("WORLD_SIZE is '0'"));
  EXPECT_THAT(
      ErrorOf({{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}}),
      HasSubstr("LOCAL_RANK is 2, but LOCAL_WORLD_SIZE is 2"));
  EXPECT_THAT(ErrorOf({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "4"}}),
              HasSubstr("LOCAL_WORLD_SIZE"));
  EXPECT_THAT(ErrorOf({{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "2"}}),
              AllOf(HasSubstr("MASTER_ADDR is not set"), HasSubstr("2 of 4")));
  EXPECT_THAT(ErrorOf({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "70000"}}),
              HasSubstr("MASTER_PORT is '70000'"));
}

}  // namespace
}  // namespace lockstep::dist
