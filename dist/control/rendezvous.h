// Which rank this process is, and where rank 0 is: from the environment that launchers set.
#pragma once

#include <string>

#include "core/system/environment.h"

namespace lockstep::dist {

struct Rendezvous {
  int rank = 0, world_size = 1;
  // On this machine; where all ranks see all its devices, local_rank is the index of the rank's.
  int local_rank = 0, local_world_size = 1;
  // Where rank 0 serves the store: on the first free one of so many ports.
  std::string master_addr = "127.0.0.1";
  int master_port = 0, port_choices = 1;
  // Where there are several: part of the secret, so that no other run's store is taken for this
  // one's.
  std::string run_id;
  std::string secret;
  // A folder for a file store instead; empty: TCP.
  std::string store_folder;
  // "RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", or "" for a process on its own.
  std::string source;
};

// Reads, and the first that is there counts:
//   RANK WORLD_SIZE [LOCAL_RANK LOCAL_WORLD_SIZE]      torchrun, tools/launch
//   OMPI_COMM_WORLD_RANK _SIZE _LOCAL_RANK _LOCAL_SIZE  mpirun
//   SLURM_PROCID SLURM_NTASKS SLURM_LOCALID SLURM_NODEID SLURM_STEP_TASKS_PER_NODE  srun
// With TORCHELASTIC_USE_AGENT_STORE=True (PyTorch's torchrun) MASTER_PORT is taken by its agent,
// and the store is at one of the eight ports above; TORCHELASTIC_RUN_ID tells runs apart. Then
// MASTER_ADDR, MASTER_PORT (29500; under Slurm the first host of SLURM_JOB_NODELIST and a port made
// of SLURM_JOB_ID), LOCKSTEP_SECRET, LOCKSTEP_STORE_DIR. Without any of them: one process, on its
// own. Throws InputError naming the variables if one is missing, is no number, out of range, or
// contradicts another.
Rendezvous ReadRendezvous(const Environment& environment = ProcessEnvironment());

// The first host of Slurm's notation: "node[07-09,12],gpu1" is "node07".
std::string FirstHost(const std::string& node_list);

}  // namespace lockstep::dist
