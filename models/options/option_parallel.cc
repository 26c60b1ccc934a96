#include "models/options/option_parallel.h"

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
}

}  // namespace lockstep::models
