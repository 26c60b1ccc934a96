// What //tools:plan prints: the memory of published models, and changes that make them fit.
#include "models/memory/gpu_plan.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <iterator>
#include <set>
#include <sstream>

#include "core/allocator.h"
#include "core/io/file.h"
#include "models/memory/memory_advice.h"
#include "tests/models/parsed_run.h"
#include "tests/subprocess.h"

namespace lockstep::models {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Arguments = std::vector<std::string>;

constexpr double kGb = 1e9;

GpuPlan PlanOf(const std::string& gpus, const Arguments& arguments, const DeviceSet& hosts = {}) {
  ParsedRun run(arguments);
  return PlanOnGpus(run.options, run.config, ParseDeviceSet("gpus", gpus), hosts);
}

Arguments WordsOf(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<std::string>(words), {}};
}

// The changes that a plan says would fit, each with the bytes that it says.
struct Item {
  Arguments options;
  std::string bytes, gpus;  // gpus: "" as planned
};

std::vector<Item> ItemsOf(const std::string& text) {
  std::vector<Item> items;
  const std::string begin = "What would fit: ";
  size_t at = text.find(begin);
  if (at == std::string::npos) return items;
  for (at += begin.size(); at < text.size();) {
    const size_t open = text.find(" (", at), close = text.find(')', open);
    Item item;
    std::istringstream words(text.substr(at, open - at));
    std::set<std::string> keys;
    for (std::string word; words >> word;) {
      if (word == "on") {
        words >> item.gpus >> word;
        EXPECT_EQ(word, "GPUs");
        continue;
      }
      EXPECT_TRUE(word.starts_with("--")) << word << " cannot be pasted\n" << text;
      EXPECT_TRUE(keys.insert(word.substr(0, word.find('='))).second) << word << "\n" << text;
      item.options.push_back(word);
    }
    item.bytes = text.substr(open + 2, text.find_first_of(",;", open) - open - 2);
    items.push_back(item);
    if (text.compare(close, 3, "); ") != 0) break;
    at = close + 3;
  }
  return items;
}

// Each item as a user would try it: it fits, in the bytes that were said.
void ExpectItemsHold(const std::string& gpus, const Arguments& arguments) {
  const GpuPlan plan = PlanOf(gpus, arguments);
  ASSERT_FALSE(plan.fits) << plan.text;
  const std::vector<Item> items = ItemsOf(plan.text);
  EXPECT_FALSE(items.empty()) << plan.text;
  for (const Item& item : items) {
    Arguments changed = arguments;
    for (const std::string& option : item.options) {
      std::erase_if(changed, [&](const std::string& a) {
        return a.starts_with(option.substr(0, option.find('=') + 1));
      });
      changed.push_back(option);
    }
    const std::string each = gpus.substr(gpus.find('x'));
    const GpuPlan tried = PlanOf(item.gpus.empty() ? gpus : item.gpus + each, changed);
    EXPECT_TRUE(tried.fits) << testing::PrintToString(item.options) << "\n" << tried.text;
    EXPECT_THAT(tried.text, HasSubstr("fits: needs " + item.bytes + " of"));
  }
}

// ---- Golden cases of tutorials. ----

// "Parameters in fp32 are 8B x 4 = 32 GB, gradients 32 GB, Adam's two moments 64 GB: 128 GB, before
// any activation, so one copy per GPU of 80 GB, as in plain data parallelism, cannot work."
TEST(GpuPlan, EightBillionInFp32DoNotFitEightyGigabytes) {
  const double n = 8030261248;
  const GpuPlan plan = PlanOf("8x80", {"--model.preset=llama-3-8b"});
  EXPECT_EQ(plan.memory.largest.parameters, 4 * n);
  EXPECT_EQ(plan.memory.largest.gradients, 4 * n);
  EXPECT_NEAR(static_cast<double>(plan.memory.largest.optimizer), 8 * n, 1e3);
  EXPECT_NEAR(4 * n / kGb, 32, 0.2);
  EXPECT_NEAR(8 * n / kGb, 64, 0.3);
  EXPECT_FALSE(plan.fits);
  EXPECT_THAT(plan.text, AllOf(HasSubstr("does not fit: needs "), HasSubstr(" of 80.0 GB"),
                               HasSubstr("parallel.shard=")));
  // Sharded across the eight they are 16 GB each.
  const GpuPlan sharded = PlanOf(
      "8x80", {"--model.preset=llama-3-8b", "--parallel.shard=full", "--train.recompute=block"});
  EXPECT_NEAR(static_cast<double>(sharded.memory.largest.optimizer), n, 0.02 * n);
  EXPECT_TRUE(sharded.fits) << sharded.text;
}

// "4 x 24 GB: 7B in bf16 are 14 GB, their gradients another 14 GB: 28 GB before Adam's state, so
// data parallelism, which copies them to each GPU, does not work." Our ranks even sum in fp32.
TEST(GpuPlan, SevenBillionDoNotFitFourTimesTwentyFourGigabytes) {
  const double n = 6738415616;
  const Arguments bf16 = {"--model.preset=llama-2-7b", "--train.precision=bf16"};
  const GpuPlan plan = PlanOf("4x24", bf16);
  EXPECT_EQ(plan.memory.largest.parameters, 2 * n);
  EXPECT_NEAR(2 * n / kGb, 14, 0.6);
  EXPECT_GT(2 * n + 2 * n, 24 * kGb);
  EXPECT_GT(plan.memory.largest.parameters + plan.memory.largest.gradients, 24 * kGb);
  EXPECT_FALSE(plan.fits);
  // 16 bytes a parameter, and gradients in fp32, are 121 GB, more than 4 x 24 GB have together.
  EXPECT_GT((2 + 4 + 12) * n, 4 * 24 * kGb);
  EXPECT_FALSE(PlanOf("4x24", {bf16[0], bf16[1], "--parallel.shard=full"}).fits);
  ExpectItemsHold("4x24", bf16);
}

// "7B with AdamW on one GPU of 80 GB: 16 bytes a parameter, bf16 weights and gradients (2 + 2),
// fp32 originals and moments (4 + 8), are 112 GB; pure bf16, 8 bytes a parameter, is 56 GB." That
// is without accumulation: bf16 cannot add up the 1024 micro-batches of the preset.
TEST(GpuPlan, SevenBillionOnOneGpuNeedPureBf16) {
  const double n = 6738415616;
  const Arguments mixed = {"--model.preset=llama-2-7b", "--train.precision=bf16",
                           "--train.grad_dtype=bf16", "--train.recompute=block",
                           "--train.global_batch_size=8"};
  Arguments pure = mixed;
  pure.insert(pure.end(), {"--optim.master_weights=false", "--optim.state_dtype=bf16"});
  const auto states = [](const GpuPlan& plan) {
    const MemoryKinds& k = plan.memory.largest;
    return static_cast<double>(k.parameters + k.gradients + k.optimizer);
  };
  const GpuPlan with_originals = PlanOf("1x80", mixed), without = PlanOf("1x80", pure);
  EXPECT_NEAR(states(with_originals), (2 + 2 + 4 + 8) * n, 1e3);
  EXPECT_NEAR(16 * n / kGb, 112, 0.04 * 112);
  EXPECT_FALSE(with_originals.fits);
  EXPECT_NEAR(states(without), (2 + 2 + 4) * n, 1e3);
  EXPECT_NEAR(8 * n / kGb, 56, 0.04 * 56);
  EXPECT_TRUE(without.fits) << without.text;
  // With a host's memory it fits as well, and with the same numbers; then nothing else is said.
  EXPECT_THAT(with_originals.text, HasSubstr("What would fit: --train.offload=optimizer ("));
  ExpectItemsHold("1x80", mixed);
}

// With them it keeps gradients in fp32: 10 bytes a parameter.
TEST(GpuPlan, SevenBillionAccumulatedNeedTenBytesAParameter) {
  const double n = 6738415616;
  const Arguments pure = {"--model.preset=llama-2-7b", "--train.precision=bf16",
                          "--train.recompute=block", "--optim.master_weights=false",
                          "--optim.state_dtype=bf16"};
  const GpuPlan plan = PlanOf("1x80", pure);
  const MemoryKinds& k = plan.memory.largest;
  EXPECT_NEAR(static_cast<double>(k.parameters + k.gradients + k.optimizer), (2 + 4 + 4) * n, 1e3);
  EXPECT_TRUE(plan.fits) << plan.text;
  Arguments rounded = pure;
  rounded.push_back("--train.grad_dtype=bf16");
  EXPECT_THAT(test::MessageOf<InputError>([&] { PlanOf("1x80", rounded); }),
              AllOf(HasSubstr("train.grad_dtype = \"bf16\""), HasSubstr("1024 micro-batches"),
                    HasSubstr("leave train.grad_dtype out")));
  rounded.push_back("--train.global_batch_size=8");
  EXPECT_TRUE(PlanOf("1x80", rounded).fits);
}

// Not what would be refused, or would lose what it adds up.
TEST(GpuPlan, BfloatGradientsAreAdvisedForFewMicroBatchesOnly) {
  const auto advised = [](const std::string& batch) {
    const Arguments bf16 = {"--model.preset=llama-2-7b", "--train.precision=bf16",
                            "--train.recompute=block", "--train.offload=optimizer,weights",
                            "--train.global_batch_size=" + batch};
    if (batch == "8") ExpectItemsHold("1x24", bf16);
    return PlanOf("1x24", bf16).text;
  };
  EXPECT_THAT(advised("8"), HasSubstr("train.grad_dtype=bf16"));
  EXPECT_THAT(advised("16"), AllOf(HasSubstr("does not fit"), Not(HasSubstr("train.grad_dtype"))));
}

// What is offloaded is in the host's memory, page-locked, and so is what checkpoints are made from.
TEST(GpuPlan, TheHostsMemoryIsPlanned) {
  const double n = 6738415616;
  Arguments arguments = {"--model.preset=llama-2-7b", "--train.precision=bf16",
                         "--train.recompute=block"};
  const GpuPlan without = PlanOf("8x80", arguments);
  EXPECT_EQ(without.memory.host, 0);
  EXPECT_NEAR(static_cast<double>(without.memory.snapshot), (2 + 12) * n, 0.01 * n);
  EXPECT_THAT(without.text, HasSubstr("train.offload=optimizer ("));
  EXPECT_THAT(without.text, HasSubstr(" of the host's memory for each GPU; moments cross"));
  arguments.push_back("--train.offload=optimizer");
  const GpuPlan plan = PlanOf("8x80", arguments);
  EXPECT_NEAR(static_cast<double>(plan.memory.host), 12 * n, 0.01 * n);
  // As much as without, wherever it is copied from; by the first of the ranks only.
  EXPECT_NEAR(static_cast<double>(plan.memory.snapshot), (2 + 12) * n, 0.01 * n);
  EXPECT_EQ(plan.memory.needed_of_host(8), 8 * plan.memory.host + plan.memory.snapshot);
  EXPECT_THAT(plan.text, AllOf(HasSubstr("host: offload"), HasSubstr("host: saving"),
                               HasSubstr("and for each GPU 80.9 GB of its host's memory")));
  // Activations: those of all layers but two, and weights.
  arguments.back() = "--train.offload=optimizer,weights,activations";
  const GpuPlan all = PlanOf("8x80", arguments);
  EXPECT_GT(static_cast<double>(all.memory.host - all.memory.host_kept), 29.0 * 4096 * 4096 * 2);
  EXPECT_GT(static_cast<double>(all.memory.host_kept), (12 + 1.8) * n);
  // Of sharded weights each rank has its parts, and never more.
  arguments.back() = "--train.offload=weights";
  arguments.push_back("--parallel.shard=full");
  EXPECT_NEAR(static_cast<double>(PlanOf("8x80", arguments).memory.host), 2 * n / 8, 0.05 * n / 4);
}

// Eight GPUs keep 647 GB of moments and originals, and the first copies 94 GB for checkpoints.
TEST(GpuPlan, HostsMustHaveWhatIsOffloadedToThem) {
  const Arguments arguments = {"--model.preset=llama-2-7b", "--train.precision=bf16",
                               "--train.recompute=block", "--train.offload=optimizer"};
  const auto plan = [&](const std::string& hosts) {
    return PlanOf("8x80", arguments, ParseDeviceSet("hosts", hosts));
  };
  for (const char* enough : {"1x760", "2x440"}) EXPECT_TRUE(plan(enough).fits) << enough;
  for (const char* less : {"1x720", "2x400", "1x500"}) {
    const GpuPlan refused = plan(less);
    EXPECT_FALSE(refused.fits) << less;
    EXPECT_THAT(refused.text,
                AllOf(HasSubstr("of its host's memory\nbut not in the hosts' memory: "),
                      HasSubstr("offload less (train.offload)"), Not(HasSubstr("iB"))));
  }
  // Equally many GPUs in each machine, of which none is without any.
  for (const char* unequal : {"3x512", "16x512"}) {
    EXPECT_THAT(test::MessageOf<InputError>([&] { plan(unequal); }),
                AllOf(HasSubstr(StrCat("hosts = ", std::atoi(unequal))),
                      HasSubstr("does not divide the 8 GPUs")));
  }
  // What is advised fits both.
  const Arguments plain(arguments.begin(), arguments.begin() + 2);
  const std::string offload = "train.offload=optimizer (";
  EXPECT_THAT(PlanOf("8x80", plain).text, HasSubstr(offload));
  EXPECT_THAT(PlanOf("8x80", plain, ParseDeviceSet("hosts", "1x500")).text,
              Not(HasSubstr(offload)));
}

// "70B parameters in bf16 are 140 GB."
TEST(GpuPlan, SeventyBillionInBf16Are140Gigabytes) {
  for (const char* preset : {"llama-2-70b", "llama-3-70b"}) {
    const GpuPlan plan =
        PlanOf("1x9999", {"--model.preset=" + std::string(preset), "--train.precision=bf16"});
    EXPECT_NEAR(static_cast<double>(plan.memory.largest.parameters) / kGb, 140, 2.1) << preset;
  }
}

// ---- What would fit. ----

TEST(GpuPlan, WhatItSaysWouldFitDoes) {
  ExpectItemsHold("1x4", {"--model.preset=gpt2"});
  ExpectItemsHold("2x24", {"--model.preset=llama-3.2-1b", "--train.batch_size=4"});
  ExpectItemsHold("1x80", {"--model.preset=llama-3-8b"});
  ExpectItemsHold("4x6", {"--model.preset=gpt2-large", "--train.precision=bf16",
                          "--train.global_batch_size=0", "--train.grad_accum=4"});
}

// They sum what they have, but cannot be sharded.
TEST(GpuPlan, AdviceOfRanksThatCannotShareTheBatchLeavesShardsOut) {
  const Arguments gpt2 = {"--model.preset=gpt2", "--train.precision=bf16",
                          "--train.global_batch_size=8", "--train.batch_size=1"};
  for (const auto& [reduction, gpus] : {std::pair("fast", "3x2"), {"ordered", "3x4"}}) {
    Arguments all = gpt2;
    all.push_back(StrCat("--dist.reduction=", reduction));
    ExpectItemsHold(gpus, all);
    EXPECT_THAT(PlanOf(gpus, all).text,
                AllOf(HasSubstr("train.offload=optimizer"),
                      HasSubstr("3 ranks: 6 a step rather than 8 (--train.global_batch_size=6)")));
  }
}

// Rather than to deny it.
TEST(GpuPlan, AdviceSaysWhatWouldFitClosely) {
  const Arguments small = {"--model.n_layer=8", "--model.n_embd=64", "--train.batch_size=8"};
  const std::string closely = ", but so closely that the allocator, which rounds sizes up";
  const std::string text = PlanOf("1x0.62", small).text;
  EXPECT_THAT(text, testing::ContainsRegex("; --train.recompute=[a-z]+ \\([0-9]+ MB" + closely));
  ExpectItemsHold("1x0.62", small);
  EXPECT_THAT(PlanOf("1x0.65", {small[0], small[1], "--train.batch_size=64"}).text,
              AllOf(HasSubstr("What would fit: "), Not(HasSubstr(closely))));
}

// Together they give the run its micro-batches once.
TEST(GpuPlan, AdviceIsForTheCommandLine) {
  const Arguments small = {"--model.n_layer=8", "--model.n_embd=64", "--train.batch_size=8"};
  ExpectItemsHold("1x0.61", small);
  EXPECT_THAT(PlanOf("1x0.61", small).text,
              HasSubstr("What would fit: --train.batch_size=1 --train.grad_accum=8 "
                        "--train.cuda_graphs=false ("));
}

// Ranks that split experts may shard the rest, too.
TEST(GpuPlan, AdviceOfSharedOutExpertsHasShards) {
  const Arguments experts = {
      "--model.preset=gpt2",         "--model.n_expert=8",  "--model.n_expert_used=2",
      "--model.block_size=256",      "--parallel.ep=2",     "--train.batch_size=1",
      "--train.global_batch_size=0", "--train.grad_accum=4"};
  ExpectItemsHold("4x4", experts);
  EXPECT_THAT(PlanOf("4x4", experts).text, HasSubstr("parallel.shard="));
}

// As from a file that says both, which agree.
TEST(GpuPlan, AdviceKeepsBothWaysToSayTheBatchInAgreement) {
  const Arguments both = {"--model.preset=gpt2", "--train.batch_size=8",
                          "--train.global_batch_size=64", "--train.grad_accum=4"};
  ExpectItemsHold("2x4", both);
  EXPECT_THAT(PlanOf("2x4", both).text, HasSubstr("train.grad_accum="));
  // On more GPUs too, and with a micro-batch that cannot be smaller.
  ExpectItemsHold("1x4", {"--model.preset=gpt2-medium", "--train.batch_size=1",
                          "--train.global_batch_size=32", "--train.grad_accum=32"});
}

TEST(GpuPlan, AdviceOfBf16TakesTheLossScaleOfFp16Back) {
  const Arguments fp16 = {"--model.preset=llama-2-7b",  "--train.precision=fp16",
                          "--train.loss_scale=1024",    "--train.loss_scale_every=500",
                          "--train.recompute=block",    "--train.offload=optimizer,weights",
                          "--train.global_batch_size=8"};
  ExpectItemsHold("1x24", fp16);
  EXPECT_THAT(PlanOf("1x24", fp16).text,
              AllOf(HasSubstr("train.precision=bf16"), HasSubstr("train.loss_scale=65536")));
}

// What crosses to the host least often comes first, and what is there already stays.
TEST(GpuPlan, ItSaysTheCheapestOffload) {
  const Arguments bf16 = {"--model.preset=llama-3.2-1b", "--train.precision=bf16",
                          "--train.batch_size=1"};
  const auto offloads = [&](const std::string& gpus, const std::string& now) {
    Arguments all = bf16;
    all.push_back("--train.offload=" + now);
    ExpectItemsHold(gpus, all);
    const std::string text = PlanOf(gpus, all).text;
    const std::string key = "train.offload=";
    const size_t at = text.find(key);
    return at == std::string::npos
               ? std::string("none")
               : text.substr(at + key.size(), text.find(' ', at) - at - key.size());
  };
  EXPECT_EQ(offloads("1x24", "none"), "optimizer");
  EXPECT_EQ(offloads("1x24", "weights"), "optimizer,weights");
  EXPECT_EQ(offloads("1x14", "optimizer"), "optimizer,activations");
  // None is enough by itself: two, with what else it takes.
  EXPECT_EQ(offloads("1x10", "none"), "optimizer,weights");
}

// Rather than that each of many GPUs keeps its activations in terabytes of a host that is not
// known.
TEST(GpuPlan, RecomputationComesBeforeTerabytesOfHosts) {
  Arguments all = {"--model.preset=llama-3.1-405b", "--train.precision=bf16"};
  for (const char* gpus : {"8x80", "512x80"}) {
    const GpuPlan plan = PlanOf(gpus, all);
    EXPECT_THAT(plan.text, AllOf(HasSubstr("train.recompute="), Not(HasSubstr(" TB of the host"))));
  }
  ExpectItemsHold("8x80", all);
}

// A larger one does not fit, and of the recomputations and levels no cheaper one does.
TEST(GpuPlan, ItSaysTheCheapestOfEachKind) {
  const Arguments base = {"--model.preset=gpt2", "--train.batch_size=64",
                          "--train.global_batch_size=512"};
  const GpuPlan plan = PlanOf("2x32", base);
  ASSERT_FALSE(plan.fits) << plan.text;
  const auto fits = [&](const std::string& option) {
    Arguments changed = base;
    std::erase_if(changed, [&](const std::string& a) {
      return a.starts_with(option.substr(0, option.find('=') + 1));
    });
    changed.push_back(option);
    const int64_t needed = PlanOf("2x32", changed).memory.needed({DeviceType::kCuda, 0});
    return static_cast<double>(needed) <= (1 - kPlanTolerance) * 32 * kGb;
  };
  const auto said = [&](const std::string& text) {
    return plan.text.find(text + " (") != std::string::npos;
  };
  bool larger = false;
  for (const char* batch : {"32", "16", "8", "4", "2", "1"}) {
    const std::string option = "train.batch_size=" + std::string(batch);
    const bool fit = fits("--" + option);
    EXPECT_EQ(said(option), fit && !larger) << option << "\n" << plan.text;
    larger = larger || fit;
  }
  EXPECT_TRUE(larger);
  bool cheaper = false;
  for (const char* what : {"layer_norm", "mlp", "block"}) {
    const std::string option = "train.recompute=" + std::string(what);
    const bool fit = fits("--" + option);
    EXPECT_EQ(said(option), fit && !cheaper) << option << "\n" << plan.text;
    cheaper = cheaper || fit;
  }
  EXPECT_THAT(plan.text, Not(HasSubstr("other numbers")));
}

// Parts of grouped queries and keys have no formula for the places of their elements.
TEST(GpuPlan, StochasticRoundingOfPartsOfGroupedKeysIsRefused) {
  const auto error = [](const std::string& preset, const Arguments& more) {
    Arguments all = {"--model.preset=" + preset, "--train.precision=bf16", "--parallel.tp=2"};
    all.insert(all.end(), more.begin(), more.end());
    return test::MessageOf<InputError>([&] { PlanOf("2x80", all); });
  };
  const Arguments pure = {"--optim.master_weights=false"}, state = {"--optim.state_dtype=bf16"};
  for (const Arguments& more : {pure, state}) {
    EXPECT_THAT(error("llama-3.2-1b", more),
                AllOf(HasSubstr("'h.0.attn.c_attn.weight'"), HasSubstr("parallel.tp = 2"),
                      HasSubstr("optim.master_weights = true"), HasSubstr("parallel.shard")));
    EXPECT_EQ(error("llama-2-7b", more), "no error");
  }
  EXPECT_EQ(error("llama-3.2-1b", {}), "no error");
  EXPECT_EQ(error("llama-3.2-1b", {pure[0], "--parallel.tp=1"}), "no error");
}

TEST(GpuPlan, SaysWhatRanksShareOut) {
  EXPECT_THAT(PlanOf("8x80", {"--model.preset=gpt2", "--model.vocab_size=50304", "--parallel.pp=2",
                              "--parallel.tp=2", "--parallel.cp=2"})
                  .text,
              AllOf(HasSubstr("pipelines of 2 ranks by 1f1b"),
                    HasSubstr(", parallel.tp=2, parallel.cp=2")));
}

// Beside the total the verdict says what is kept of freed blocks: no line of the table is above
// both.
TEST(GpuPlan, SaysWhatTheAllocatorKeeps) {
  const GpuPlan plan = PlanOf("2x24", {"--model.preset=gpt2", "--train.recompute=block"});
  const int64_t cuda = 600'000'000, kept = plan.memory.reserved + cuda;
  ASSERT_TRUE(plan.fits) << plan.text;
  ASSERT_FALSE(plan.memory.graphs);
  ASSERT_GT(kept, plan.memory.needed({DeviceType::kCuda, 0}));
  EXPECT_THAT(plan.text, HasSubstr(StrCat("(", FormatDecimalBytes(static_cast<double>(kept)),
                                          " with the freed blocks that the allocator keeps")));
}

// Of 12 layers of 12 * 768^2 weights of 4.13 bits (of parts, 4.5), with the embedding in f32.
TEST(GpuPlan, RanksDivideWeightsOfFourBits) {
  const Arguments arguments = {"--model.preset=gpt2", "--train.batch_size=1", "--lora.rank=4",
                               "--lora.base=nf4"};
  const auto parameters = [&](const Arguments& plan) {
    Arguments all = arguments;
    all.insert(all.end(), plan.begin(), plan.end());
    return static_cast<double>(PlanOf("2x24", all).memory.largest.parameters);
  };
  constexpr double kQuantized = 12. * 12 * 768 * 768 / 8, kTable = 4. * 768 * (50304 + 1024);
  const double alone = parameters({});
  EXPECT_NEAR(alone, kQuantized * 4.13 + kTable, 0.03 * alone);
  EXPECT_LT(parameters({"--parallel.shard=full"}), 0.6 * alone);
  EXPECT_LT(parameters({"--parallel.tp=2"}), 0.6 * alone);
}

TEST(GpuPlan, AModelThatNothingFitsIsToBeSmaller) {
  const GpuPlan plan = PlanOf("1x1", {"--model.preset=llama-3.1-405b"});
  EXPECT_FALSE(plan.fits);
  EXPECT_THAT(plan.text, HasSubstr("model.n_layer (now 126) or model.n_embd (now 16384)"));
}

TEST(GpuPlan, RecomputesAsMuchAsNeeded) {
  const Arguments arguments = {"--model.preset=gpt2", "--train.batch_size=64",
                               "--train.recompute=auto"};
  const GpuPlan plan = PlanOf("1x24", arguments);
  EXPECT_TRUE(plan.fits);
  EXPECT_THAT(plan.text, HasSubstr("recomputes the blocks of the first "));
}

// ---- The tool itself. ----

TEST(GpuPlan, TakesNoMemoryOfTheModel) {
  Allocator& allocator = GetAllocator(kCpu);
  const int64_t before = allocator.stats().live_bytes;
  allocator.ResetPeak();
  PlanOf("1024x80",
         {"--model.preset=llama-3.1-405b", "--parallel.shard=full", "--train.global_batch_size=0"});
  EXPECT_LT(allocator.stats().peak_bytes - before, 1 << 20);
}

TEST(GpuPlan, TheProgramSaysWhetherItFits) {
  const Arguments command = {"tools/plan", "--model.preset=llama-3-8b", "--train.precision=bf16",
                             "--parallel.shard=full", "--train.recompute=block"};
  for (const auto& [gpus, exit_code] : {std::pair("8x80", 0), {"8x8", 1}, {"eight", 2}}) {
    Arguments all = command;
    all.push_back(StrCat("--gpus=", gpus));
    const Result run = RunProgram(all);
    EXPECT_EQ(run.exit_code, exit_code) << run;
    const char* const text = exit_code == 0   ? "\nfits: needs "
                             : exit_code == 1 ? "\ndoes not fit: needs "
                                              : "gpus = \"eight\" must be";
    EXPECT_THAT(run.out + run.err, HasSubstr(text));
    EXPECT_EQ(run.err.find("searching for what would fit") != std::string::npos, exit_code == 1);
  }
}

TEST(GpuPlan, TheProgramRefusesOptionsWithoutEffect) {
  const auto expect = [](const Arguments& more, const char* text) {
    Arguments all = {"tools/plan", "--model.preset=gpt2"};
    all.insert(all.end(), more.begin(), more.end());
    const Result run = RunProgram(all);
    EXPECT_EQ(run.exit_code, 2) << run;
    EXPECT_THAT(run.err, HasSubstr(text));
  };
  for (const char* option : {"--write=plan.toml", "--picture=plan.html", "--tokens=1e9"}) {
    expect({option}, "does nothing without cluster");
  }
  expect({"--cluster=8xH100", "--gpus=8x80"}, "does nothing with cluster");
  expect({"--cluster=8xH100", "--hosts=1x512"}, "does nothing with cluster");
  expect({"--cluster=8xH100", "--train.grad_accum=4"}, "train.global_batch_size");
}

// The lines of a page may be broken where the program's are not.
TEST(GpuPlan, IsWhatThePageShows) {
  std::istringstream page(ReadFile("models/memory/README.md"));
  std::string line, shown;
  const std::string command = "    $ bazel run -c opt //tools:plan -- ";
  while (std::getline(page, line) && !line.starts_with(command)) {
  }
  ASSERT_TRUE(line.starts_with(command));
  Arguments all = {"tools/plan"};
  for (const std::string& argument : WordsOf(line.substr(command.size()))) all.push_back(argument);
  while (std::getline(page, line) && line.starts_with("    ")) shown += line;
  const Result run = RunProgram(all);
  EXPECT_EQ(run.exit_code, 1) << run;
  EXPECT_EQ(WordsOf(shown), WordsOf(run.out)) << run;
}

// The search takes longer than the plan.
TEST(GpuPlan, SaysWhatItKnowsBeforeItSearches) {
  const ParsedRun run({"--model.preset=gpt2"});
  const auto plan = [&](const std::string& gpus, std::string* early) {
    return PlanOnGpus(run.options, run.config, ParseDeviceSet("gpus", gpus), {},
                      [early](const std::string& text) { *early = text; });
  };
  std::string early;
  const GpuPlan too_large = plan("1x4", &early);
  EXPECT_THAT(early, AllOf(HasSubstr("\n  needed "), testing::EndsWith(" of 4.00 GB")));
  EXPECT_THAT(too_large.text, testing::StartsWith(early + "\nWhat would fit: "));
  early.clear();
  EXPECT_TRUE(plan("1x80", &early).fits);
  EXPECT_EQ(early, "");
}

TEST(GpuPlan, ASearchEndsInTime) {
  const ParsedRun run({"--model.preset=gpt2"});
  const RunSetup setup = PrepareShape(run.options, run.config, {DeviceType::kCuda, 0}, 1);
  const std::vector<MemoryAim> all = {{[](const MemoryPlan&) { return true; }}};
  EXPECT_THAT(MemoryAdvice(setup, all), HasSubstr("What would fit: "));
  EXPECT_EQ(MemoryAdvice(setup, all, FormatBytes, /*seconds=*/0),
            "Nothing was found that would fit. The search was ended after 0 s");
}

TEST(GpuPlan, AVocabularyOfTheDataIsRead) {
  const GpuPlan plan = PlanOf("1x1", {});
  EXPECT_TRUE(plan.fits) << plan.text;
  EXPECT_GT(plan.memory.largest.parameters, 4 * 800000);
}

TEST(GpuPlan, GpusAreANumberAndTheirGigabytes) {
  EXPECT_EQ(ParseDeviceSet("gpus", "8x80").count, 8);
  EXPECT_EQ(ParseDeviceSet("gpus", "8x80").bytes, 80'000'000'000);
  EXPECT_EQ(ParseDeviceSet("gpus", "1x0.5").bytes, 500'000'000);
  for (const char* bad : {"", "8", "x80", "8x", "0x80", "-1x80", "8x0", "8x80x2", "8x80GB", "8 x80",
                          "8x1e3", "8xnan"}) {
    EXPECT_THAT(test::MessageOf<InputError>([&] { ParseDeviceSet("gpus", bad); }),
                HasSubstr("--gpus=8x80"))
        << bad;
  }
  EXPECT_THAT(test::MessageOf<InputError>([&] { ParseDeviceSet("hosts", "foo"); }),
              HasSubstr("must be a number of hosts and the GB of each, as in --hosts=1x512"));
}

}  // namespace
}  // namespace lockstep::models
