#include "models/options/option_dist.h"

namespace lockstep::models {

void AddDistOptions(Options& options, DistOptions& dist) {
  constexpr double kMaxMib = 65536;
  options.Add("dist.backend", &dist.backend,
              {.choices = {"auto", "tcp", "nccl"},
               .operational = true,
               .doc = "library that moves data between ranks: auto (nccl on GPUs, tcp on CPUs), "
                      "tcp, nccl"});
  options.Add(
      "dist.reduction", &dist.reduction,
      {.choices = {"fast", "ordered"},
       .aliases = {"reduce_op", "deterministic"},
       .doc = "how gradients are summed: fast (in the library's order), or ordered (weights have "
              "the same bits at any number of ranks that share the same micro-batches)"});
  options.Add(
      "dist.compress", &dist.compress,
      {.choices = {"none", "bf16"},
       .aliases = {"comm_hook", "gradient_compression"},
       .doc = "dtype in which gradients travel: none (their own) or bf16, half the bytes; a "
              "single process sends none, so there it does nothing"});
  options.Add("dist.bucket_mib", &dist.bucket_mib,
              {.min = 0,
               .max = kMaxMib,
               .aliases = {"bucket_cap_mb"},
               .operational = true,
               .doc = "gradients that are summed at once, in MiB; 0: 2 on the CPU, 25 on GPUs"});
  options.Add("dist.first_bucket_mib", &dist.first_bucket_mib,
              {.above = 0,
               .max = kMaxMib,
               .operational = true,
               .doc = "size of the first bucket, so that communication begins early, and of the "
                      "last, so that it ends early"});
  options.AddRemoved("dist.packing", std::string("auto"),
                     "messages are no longer packed, which changes no bit: leave dist.packing out");
  options.Add("dist.check", &dist.check,
              {.choices = {"basic", "full"},
               .operational = true,
               .doc = "when ranks check that they make the same collective calls: basic: before "
                      "each one on the CPU, once a step on GPUs; full: before each one everywhere "
                      "(slow on GPUs), and on the CPU messages are hashed"});
  options.Add("dist.check_every", &dist.check_every,
              {.min = 0,
               .operational = true,
               .doc = "steps between comparisons of the ranks' weights, bit by bit; 0: never"});
  options.Add("dist.timeout", &dist.timeout,
              {.min = 1,
               .max = 86400,
               .operational = true,
               .doc = "how long a rank waits, in seconds, for others that are alive but late, not "
                      "counting the time in which rank 0 writes, samples or prints"});
  options.Add("dist.heartbeat", &dist.heartbeat,
              {.min = 0,
               .max = 86400,
               .operational = true,
               .doc = "seconds within which the other ranks name a rank whose process shows no "
                      "sign of life, and end; 0: only dist.timeout counts"});
}

}  // namespace lockstep::models
