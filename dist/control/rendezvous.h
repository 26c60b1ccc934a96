// This process's rank and rank 0's address, from the environment that launchers set.
#pragma once

#include <string>

#include "core/system/environment.h"

namespace lockstep::dist {

inline constexpr int kDefaultMasterPort = 29500;

struct Rendezvous {
  int rank = 0, world_size = 1;
  // On this machine.
  int local_rank = 0, local_world_size = 1;
  // Of this machine, for all of its ranks together; 0: the launcher does not say.
  int processors = 0;
  // Rank 0 listens on the first free one of `port_choices` ports from master_port on.
  std::string master_addr = "127.0.0.1";
  int master_port = 0, port_choices = 1;
  // If there are several ports: part of the secret, so that no other run's rank 0 is mistaken for
  // this one's.
  std::string run_id;
  std::string secret;
  // The folder in which rank 0 says where it listens; empty: at master_addr.
  std::string store_folder;
  // "RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK", or "" for a process on its own.
  std::string source;
};

// Reads the first of these that is set:
//   RANK WORLD_SIZE [LOCAL_RANK LOCAL_WORLD_SIZE]      torchrun, tools/launch
//   OMPI_COMM_WORLD_RANK _SIZE _LOCAL_RANK _LOCAL_SIZE  mpirun of Open MPI
//   PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS   mpirun of MPICH and Intel MPI
//   SLURM_PROCID SLURM_STEP_NUM_TASKS SLURM_LOCALID SLURM_NODEID SLURM_STEP_TASKS_PER_NODE
//       SLURM_CPUS_ON_NODE                              srun, but not the script of a batch job
//   PMI_RANK PMI_SIZE                                   others, on one machine
// and then MASTER_ADDR, MASTER_PORT (default 29500), LOCKSTEP_SECRET and LOCKSTEP_STORE_DIR. Under
// Slurm the default is the first host of the step's SLURM_STEP_NODELIST, and the first free one of
// eight ports that follow from SLURM_JOB_ID and SLURM_STEP_ID.
// With TORCHELASTIC_USE_AGENT_STORE=True (PyTorch's torchrun) its agent occupies MASTER_PORT, and
// rank 0 is at one of the eight ports above it; TORCHELASTIC_RUN_ID tells runs apart. If none of
// the rank variables is set: a single process. Throws InputError, naming the variables, if one is
// missing, not a number, out of range, or contradicts another.
Rendezvous ReadRendezvous(const Environment& environment = ProcessEnvironment());

// The first host of Slurm's notation: "node[07-09,12],gpu1" is "node07".
std::string FirstHost(const std::string& node_list);

}  // namespace lockstep::dist
