#include "models/options/option_parallel.h"

#include "core/error.h"

namespace lockstep::models {
namespace {

void AddContextOptions(Options& options, ParallelOptions& parallel) {
  options.Add("parallel.cp", &parallel.cp,
              {.min = 1,
               .max = 1024,
               .aliases = {"context_parallel", "context_parallel_size", "cp_size"},
               .operational = true,
               .doc = "context parallelism: how many neighbouring ranks compute each sequence "
                      "together, each a part of its positions, for sequences whose activations do "
                      "not fit one rank"});
  options.Add("virtual.cp", &parallel.virtual_cp,
              {.min = 0,
               .max = 1024,
               .operational = true,
               .doc = "with dist.reduction=ordered: the number of pairs of chunks of a sequence in "
                      "which gradients are summed. A run has the same bits with any parallel.cp "
                      "that divides it; 0: parallel.cp"});
  options.OnResolve([&parallel](Options& resolved) {
    const int64_t pairs = parallel.context_pairs(), own = pairs / parallel.cp;
    if (pairs % parallel.cp != 0 || (parallel.cp > 1 && (own & (own - 1)) != 0)) {
      resolved.Fail({"virtual.cp", "parallel.cp"},
                    StrCat(resolved.Describe("virtual.cp"), " must be parallel.cp = ", parallel.cp,
                           " times a power of two, which each rank computes: use ",
                           "virtual.cp = ", 2 * parallel.cp, ", or leave it out"));
    }
  });
}

}  // namespace

void AddParallelOptions(Options& options, ParallelOptions& parallel) {
  options.Add(
      "parallel.tp", &parallel.tp,
      {.min = 1,
       .max = 1024,
       .aliases = {"tensor_parallel", "tensor_model_parallel_size", "tp_size"},
       .operational = true,
       .doc = "tensor parallelism: how many neighbouring ranks compute each layer together, "
              "each with a part of its matrices and of the sequence"});
  options.Add(
      "virtual.tp", &parallel.virtual_tp,
      {.min = 0,
       .max = 1024,
       .operational = true,
       .doc = "with dist.reduction=ordered: the number of parts in which a layer's sums are made. "
              "A run has the same bits with any parallel.tp that divides it; 0: parallel.tp"});
  AddContextOptions(options, parallel);
  options.Add("parallel.pp", &parallel.pp,
              {.min = 1,
               .max = 1024,
               .aliases = {"pipeline_parallel", "pipeline_model_parallel_size", "pp_size"},
               .operational = true,
               .doc = "pipeline parallelism: into how many stages, each on ranks of its own, the "
                      "model is cut; the micro-batches of a step (train.grad_accum) pass through "
                      "them one after the other, and all further ranks have copies of the stages"});
  options.Add("parallel.schedule", &parallel.schedule,
              {.choices = {"1f1b", "interleaved", "zb_h1", "zbv"},
               .operational = true,
               .doc = "the order in which the ranks of a pipeline work: 1f1b; interleaved (two "
                      "stages per rank, half the idle time, twice the transfers); zb_h1 (a third "
                      "of the idle time, the first rank's memory on every rank); zbv (two stages "
                      "per rank in a V, a sixth of the idle time)"});
  options.Add(
      "parallel.ep", &parallel.ep,
      {.min = 1,
       .max = 1024,
       .aliases = {"expert_parallel", "expert_model_parallel_size", "ep_size"},
       .operational = true,
       .doc =
           "expert parallelism: how many neighbouring ranks, each with tokens of its "
           "own, split the experts of a mixture, to which tokens are sent; a power of two that "
           "divides model.n_expert. With parallel.tp it divides the experts of each "
           "tensor-parallel rank. It takes the ranks of parallel.cp first, which it must divide or "
           "be a multiple of, and then data ranks, whose number, with parallel.shard, must divide "
           "parallel.shard_ranks"});
  options.Add(
      "parallel.shard", &parallel.shard,
      {.choices = {"none", "optimizer", "gradients", "full"},
       .aliases = {"fsdp", "sharding_strategy", "zero_stage"},
       .operational = true,
       .doc = "what is sharded across data ranks: none; optimizer (its state, ZeRO 1); gradients "
              "(also gradients, ZeRO 2); full (also weights, ZeRO 3). With parallel.pp, full does "
              "what gradients does: a stage's weights are gathered once a step"});
  options.Add("parallel.shard_ranks", &parallel.shard_ranks,
              {.min = 0,
               .operational = true,
               .doc = "neighbouring data ranks that hold one sharded copy of the model; each such "
                      "group holds a copy; 0: all data ranks are one group"});
  options.Add("parallel.reshard_after_forward", &parallel.reshard_after_forward,
              {.operational = true,
               .doc = "with parallel.shard=full: whether a block's weights are released after its "
                      "forward and gathered again for its backward; false: kept in between, which "
                      "takes the memory of all weights and half the gathers"});
  options.OnResolve([&parallel](Options& resolved) {
    const ParallelOptions d;
    const int64_t parts = parallel.tensor_parts(), own = parts / parallel.tp;
    if (parts % parallel.tp != 0 || (parallel.tp > 1 && (own & (own - 1)) != 0)) {
      resolved.Fail({"virtual.tp", "parallel.tp"},
                    StrCat(resolved.Describe("virtual.tp"), " must be parallel.tp = ", parallel.tp,
                           " times a power of two, which each rank computes: use ",
                           "virtual.tp = ", 2 * parallel.tp, ", or leave it out"));
    }
    if (parallel.ep > 1 && (parallel.ep & (parallel.ep - 1)) != 0) {
      resolved.Fail({"parallel.ep"},
                    StrCat(resolved.Describe("parallel.ep"),
                           " must be a power of two, since the gradients of the ranks' samples "
                           "are added in pairs: use parallel.ep = 2, 4 or 8"));
    }
    if (parallel.ep % parallel.cp != 0 && parallel.cp % parallel.ep != 0) {
      resolved.Fail({"parallel.ep", "parallel.cp"},
                    StrCat(resolved.Describe("parallel.ep"), " neither divides ",
                           resolved.Describe("parallel.cp"),
                           " nor is a multiple of it, and the ranks that compute a sequence are "
                           "the first to split experts: use powers of two"));
    }
    if (parallel.pp == 1 && parallel.schedule != d.schedule) {
      resolved.Fail({"parallel.schedule", "parallel.pp"},
                    StrCat(resolved.Describe("parallel.schedule"),
                           " does nothing without a pipeline: add parallel.pp = 2 or more, or "
                           "leave parallel.schedule out"));
    }
    if (parallel.pp > 1 && !parallel.reshard_after_forward) {
      resolved.Fail({"parallel.reshard_after_forward", "parallel.pp"},
                    StrCat(resolved.Describe("parallel.reshard_after_forward"),
                           " does nothing with parallel.pp, whose stages keep their weights for a "
                           "step: leave parallel.reshard_after_forward out"));
    }
    if (parallel.shard == "none" && parallel.shard_ranks != d.shard_ranks) {
      resolved.Fail({"parallel.shard_ranks", "parallel.shard"},
                    StrCat(resolved.Describe("parallel.shard_ranks"),
                           " does nothing without parallel.shard = \"full\", \"gradients\" or "
                           "\"optimizer\": add one of them, or leave parallel.shard_ranks out"));
    }
    if (parallel.shard_ranks == 1) {
      resolved.Fail({"parallel.shard_ranks"},
                    StrCat(resolved.Describe("parallel.shard_ranks"),
                           " shards nothing, since each rank would have a whole copy: use 2 or "
                           "more, or parallel.shard = \"none\""));
    }
    if (parallel.shard != "full" && !parallel.reshard_after_forward) {
      resolved.Fail({"parallel.reshard_after_forward", "parallel.shard"},
                    StrCat(resolved.Describe("parallel.reshard_after_forward"),
                           " does nothing without parallel.shard = \"full\": add that, or leave "
                           "parallel.reshard_after_forward out"));
    }
  });
}

}  // namespace lockstep::models
