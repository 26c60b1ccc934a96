#include "dist/launch/launch_options.h"

#include <gmock/gmock-more-matchers.h>

#include <cstdlib>
#include <map>
#include <thread>

#include "core/cuda/device.h"
#include "core/system/processors.h"
#include "dist/launch/nproc.h"
#include "tests/message_of.h"

namespace lockstep::dist {
namespace {

using dist::Launch;
using dist::LaunchOptions;
using lockstep::test::MessageOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

LaunchOptions Parse(const std::vector<std::string>& arguments) {
  std::string help;
  const auto options = ParseLaunchOptions(arguments, &help);
  EXPECT_TRUE(options) << help;
  return options.value_or(LaunchOptions());
}

std::string Refusal(const std::vector<std::string>& arguments) {
  std::string help;
  return MessageOf<InputError>([&] { ParseLaunchOptions(arguments, &help); });
}

TEST(LaunchOptions, TheProgramComesAfterTheOptions) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--nproc=4", "--", "train_gpt", "a.toml", "--nproc=9"},
        std::vector<std::string>{"--nproc", "4", "train_gpt", "a.toml", "--nproc=9"}}) {
    const LaunchOptions o = Parse(arguments);
    EXPECT_EQ(o.nproc, 4);
    EXPECT_EQ(o.nnodes, 1);
    EXPECT_EQ(o.master_port, 0);
    EXPECT_EQ(o.max_restarts, 0);
    EXPECT_THAT(o.log_dir, IsEmpty());
    EXPECT_THAT(o.command, ElementsAre("train_gpt", "a.toml", "--nproc=9"));
  }
}

TEST(LaunchOptions, TorchrunsNamesAlsoWork) {
  const LaunchOptions ours = Parse({"--nproc=2", "--nnodes=3", "--node_rank=1", "--rdzv=head:123",
                                    "--max_restarts=5", "--log_dir=logs", "x"});
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--nproc-per-node=2", "--nnodes=3", "--node-rank=1",
                                 "--rdzv-backend=c10d", "--rdzv-id=7", "--rdzv-endpoint=head:123",
                                 "--max-restarts=5", "--log-dir=logs", "x"},
        std::vector<std::string>{"--nproc_per_node", "2", "--nnodes", "3", "--node_rank", "1",
                                 "--master_addr", "head", "--master_port", "123", "--max_restarts",
                                 "5", "--log_dir", "logs", "x"}}) {
    const LaunchOptions o = Parse(arguments);
    EXPECT_EQ(o.nproc, ours.nproc);
    EXPECT_EQ(o.nnodes, ours.nnodes);
    EXPECT_EQ(o.node_rank, ours.node_rank);
    EXPECT_EQ(o.master_addr, ours.master_addr);
    EXPECT_EQ(o.master_port, ours.master_port);
    EXPECT_EQ(o.max_restarts, ours.max_restarts);
    EXPECT_EQ(o.log_dir, ours.log_dir);
    EXPECT_THAT(o.command, ElementsAre("x"));
  }
  EXPECT_EQ(ours.nproc, 2);
  EXPECT_EQ(ours.node_rank, 1);
  EXPECT_EQ(ours.master_addr, "head");
  EXPECT_EQ(ours.master_port, 123);
  EXPECT_EQ(Parse({"--standalone", "--nproc-per-node=3", "x"}).nproc, 3);
  EXPECT_EQ(Parse({"--nproc=4", "--restart_nproc=2", "x"}).restart_nproc, 2);
}

// As Kubeflow's trainer starts a node.
TEST(LaunchOptions, AreThoseOfTorchrunsVariablesUnlessGiven) {
  const std::map<std::string, std::string> variables = {{"PET_NNODES", "3"},
                                                        {"PET_NPROC_PER_NODE", "2"},
                                                        {"PET_NODE_RANK", "1"},
                                                        {"PET_MASTER_ADDR", "job-node-0-0.job"},
                                                        {"PET_MASTER_PORT", "29500"}};
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  const LaunchOptions o = Parse({"--nproc=4", "--", "x"});
  setenv("PET_NNODES", "two", 1);
  const std::string refusal = Refusal({"x"});
  for (const auto& [name, value] : variables) unsetenv(name.c_str());
  EXPECT_EQ(o.nproc, 4);
  EXPECT_EQ(o.nnodes, 3);
  EXPECT_EQ(o.node_rank, 1);
  EXPECT_EQ(o.master_addr, "job-node-0-0.job");
  EXPECT_EQ(o.master_port, 29500);
  EXPECT_THAT(o.command, ElementsAre("x"));
  EXPECT_THAT(refusal, HasSubstr("--nnodes is 'two'"));
}

TEST(LaunchOptions, RanksByNumberOrByWhatTheMachineHas) {
  EXPECT_EQ(ReadNproc("7"), 7);
  EXPECT_EQ(ReadNproc("cpu"), UsableProcessors());
  if (cuda::Simulated()) {
    EXPECT_EQ(ReadNproc("auto"), 1);
    EXPECT_THAT(MessageOf<InputError>([] { ReadNproc("gpu"); }), HasSubstr("there is no GPU"));
  } else {
    EXPECT_EQ(ReadNproc("auto"), std::max(1, cuda::DeviceCount()));
  }
  for (const char* const text : {"0", "-1", "two", "2x", ""}) {
    EXPECT_THAT(MessageOf<InputError>([&] { ReadNproc(text); }), HasSubstr("auto, gpu or cpu"));
  }
}

TEST(LaunchOptions, EndpointsAreThoseOfTorchrun) {
  const LaunchOptions six = Parse({"--nnodes=2", "--rdzv-endpoint=[::1]:29610", "x"});
  EXPECT_EQ(six.master_addr, "::1");
  EXPECT_EQ(six.master_port, 29610);
  const LaunchOptions any = Parse({"--rdzv-endpoint=localhost:0", "x"});
  EXPECT_EQ(any.master_addr, "localhost");
  EXPECT_EQ(any.master_port, 0);
  EXPECT_THAT(Refusal({"--nnodes=2", "--rdzv-endpoint=localhost:0", "x"}),
              HasSubstr("localhost:29500"));
}

TEST(LaunchOptions, ACheckStartsTheLauncherItself) {
  for (const auto& [argument, device] :
       {std::pair("--check", "auto"), {"--check=sim", "sim"}, {"--check=cpu", "cpu"}}) {
    const LaunchOptions o = Parse({"--nproc=3", argument, "--max_restarts=2"});
    EXPECT_EQ(o.nproc, 3);
    EXPECT_EQ(o.max_restarts, 0);
    ASSERT_EQ(o.command.size(), 2u);
    EXPECT_EQ(o.command[0], "launch");
    EXPECT_EQ(DeviceToCheck({o.command.begin() + 1, o.command.end()}), device);
  }
  EXPECT_EQ(DeviceToCheck({"--nproc=3", "--check=cpu"}), std::nullopt);
  EXPECT_THAT(Refusal({"--check", "x"}), HasSubstr("leave out x"));
}

TEST(LaunchOptions, RefusesNumbersThatNobodyMeans) {
  EXPECT_THAT(Refusal({"--nproc=1000000000", "x"}), HasSubstr("4096"));
  for (const char* grace : {"nan", "-1", "1e300", "inf"}) {
    EXPECT_THAT(Refusal({StrCat("--grace=", grace), "x"}), HasSubstr("--grace is")) << grace;
  }
}

TEST(LaunchOptions, Elastic) {
  EXPECT_FALSE(Parse({"--nproc=2", "x"}).elastic);
  const LaunchOptions one = Parse({"--elastic", "--nproc=4", "--least=2", "x"});
  EXPECT_TRUE(one.elastic);
  EXPECT_EQ(one.least, 2);
  EXPECT_EQ(one.max_restarts, kElasticRestarts);
  const LaunchOptions several = Parse({"--nnodes=2:3", "--nproc=4", "--max_restarts=5", "x"});
  EXPECT_TRUE(several.elastic);
  EXPECT_EQ(several.nnodes, 3);
  EXPECT_EQ(several.least, 8);
  EXPECT_EQ(several.max_restarts, 5);
}

TEST(LaunchOptions, RefusesInvalidOptions) {
  EXPECT_THAT(Refusal({"--nprocs=4", "x"}), HasSubstr("no option --nprocs=4"));
  EXPECT_THAT(Refusal({"--nnodes=1:x", "x"}), HasSubstr("--nnodes is 'x'"));
  EXPECT_THAT(Refusal({"--nnodes=0:4", "x"}), HasSubstr("--nnodes is '0'"));
  EXPECT_THAT(Refusal({"--rdzv=:99", "x"}), HasSubstr("HOST:PORT"));
  EXPECT_THAT(Refusal({"--rdzv=head:99999", "x"}), HasSubstr("HOST:PORT"));
  EXPECT_THAT(Refusal({"--max_restarts=-1", "x"}), HasSubstr("max_restarts"));
  EXPECT_THAT(Refusal({"--standalone", "--nnodes=2", "x"}), HasSubstr("--standalone"));
  std::string help;
  EXPECT_EQ(ParseLaunchOptions({"--help"}, &help), std::nullopt);
  EXPECT_THAT(help, HasSubstr("--max_restarts"));
}

TEST(LaunchOptions, LaunchRefusesContradictions) {
  const auto refusal = [](const LaunchOptions& o) {
    return MessageOf<InputError>([&] { Launch(o); });
  };
  EXPECT_THAT(refusal({}), HasSubstr("no program"));
  EXPECT_THAT(refusal({.command = {"x"}, .nnodes = 2, .node_rank = 2}),
              HasSubstr("node_rank is 2, but nnodes is 2"));
  EXPECT_THAT(refusal({.command = {"x"}, .nnodes = 2}), HasSubstr("--rdzv=HOST:PORT"));
  EXPECT_THAT(refusal({.command = {"no such program"}}), HasSubstr("cannot run no such program"));
}

}  // namespace
}  // namespace lockstep::dist
