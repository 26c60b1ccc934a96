// What a training checkpoint holds, and how to restore it. checkpoint_store.h has the protocol of
// the folder.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/tokenizer/tokenizer.h"
#include "models/checkpoint/checkpoint_store.h"
#include "models/checkpoint/host_snapshot.h"
#include "models/checkpoint/tensor_parts.h"
#include "models/checkpoint/trainer_state.h"
#include "models/gpt/gpt.h"
#include "models/gpt/hf/hf_format.h"
#include "optim/optimizer.h"

namespace lockstep::models {

// The files that one rank writes of a checkpoint, with what they will hold; any thread may write
// them.
struct CheckpointFiles {
  int64_t step = 0;
  std::optional<double> val_loss;  // of these weights, if it was measured
  std::string measured_on;         // as in TrainerState
  bool pinned = false;             // as in CheckpointManifest
  std::vector<std::pair<std::string, std::vector<SafetensorsItem>>> tensors;
  std::vector<std::pair<std::string, std::string>> texts;
  std::map<std::string, std::string> metadata{};  // of the files of tensors
};

// How the writing is split across ranks.
struct CheckpointShare {
  int64_t rank = 0, ranks = 1;
  // Whether each rank writes what it holds (checkpoint/tensor_parts.h); otherwise rank 0 writes
  // all, in Hugging Face's format, after the ranks have brought a sharded model together.
  bool parts = false;
  // With parts: which copy of the model this rank has parts of. If several ranks of a copy have the
  // same part, as tensor-parallel ranks have norms, each of them writes its share of it.
  PartCopy copy{};
  // DataRanks::outer. If not null, each rank writes its own inner state beside what rank 0 writes.
  const optim::Optimizer* outer = nullptr;
};

// The names of files, without their ending, of a rank's state where each has its own ("optimizer",
// "trainer_state"); rank 0's is that of any other run. And of the outer optimizer's.
std::string WorkerFile(const std::string& kind, int64_t rank);
inline constexpr const char* kOuterFile = "optimizer.outer";

// The name of the file with a model's buffers, such as the biases of routers, if it has any: state
// that every rank has whole, and that is not a parameter.
inline constexpr const char* kBuffersFile = "buffers.safetensors";

// Rank 0's are the weights (model.safetensors, or its parts; for a model with adapters only these,
// as PEFT's files), the buffers, config.json, tokenizer.json and tokenizer_config.json (unless
// null), the optimizer's state (optimizer.safetensors, or its parts) and trainer_state.json; others
// have their parts, or their state. Tensors are copied to the snapshot, between Begin and End; if
// that is null, they are read when they are written, so the model must not change before.
// Collective, unless `share.parts`, if the model is sharded.
CheckpointFiles CollectCheckpoint(const TrainerState& state, const Gpt& model,
                                  const optim::Optimizer& optimizer,
                                  const data::Tokenizer* tokenizer, const CheckpointShare& share,
                                  HostSnapshot* snapshot);

// The checkpoint to read a model from: a run folder's best, or else its latest, also if it is the
// folder of checkpoint.mirror; that of s3://... is fetched (FetchCheckpoint). Any other folder is
// returned unchanged. InputError for a run that has no checkpoint yet, and for RUN/best of a run
// without one.
std::string CheckpointOf(const std::string& path);
// The same, for a process that reads it beside a running trainer.
HeldCheckpoint HoldCheckpoint(const std::string& path);
// The folder with the weights of a checkpoint or of a folder of PEFT's adapters: the folder itself,
// or the one to whose weights the adapters belong. InputError if that does not exist.
std::string WeightsOf(const std::string& path);
// Verifies the weights of a checkpoint, whether a model's or adapters': InputError naming a file of
// tensors that has changed since it was written. The texts beside them (config.json, tokenizer,
// chat template) may have been edited. In a folder without DONE nothing can be verified, and
// nothing is read.
// `averages`: also what LoadAverages reads.
void VerifyModel(const std::string& path, bool averages = false);
// Also verifies the weights that its adapters belong to.
void VerifyModelAndBase(const std::string& path);
// Gives the model the adapters that the folder has, if any, without their values. Call it before
// the model is parallelised or has memory.
void AddAdapters(const std::string& path, Gpt& model);
// Restores the weights from a checkpoint's folder, whichever ranks wrote it, or as LoadHfWeights
// does, and the buffers and adapters. Of files in parts, a rank reads only its own part. InputError
// if they do not fit, also if adapters are for a model that has none or belong to other weights.
void LoadWeights(const std::string& path, Gpt& model);
// Overwrites the parameters by their averages (optim.ema), after the weights, of which a rank reads
// only its own part. InputError if the folder has none, and for an average whose parameter the
// model has not, since it is quantised or the checkpoint is another's.
void LoadAverages(const std::string& path, Gpt& model);
// The averages, and for a parameter that has none what `weights` gives. InputError if there are
// none.
WeightSource AveragesOr(const WeightSource& weights, const std::string& path);
// Restores the optimizer, after the weights. `kind`: kOuterFile, or a WorkerFile.
void LoadOptimizerState(const std::string& path, optim::Optimizer& optimizer,
                        const std::string& kind = "optimizer");

// For adapters without a tokenizer, that of their base. Null if the model was trained on token
// files without a tokenizer.
std::unique_ptr<data::Tokenizer> ReadTokenizer(const std::string& path);

}  // namespace lockstep::models
