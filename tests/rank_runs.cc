#include "tests/rank_runs.h"

#include <chrono>
#include <csignal>
#include <sstream>
#include <thread>

#include "core/cuda/device.h"
#include "core/io/file.h"
#include "dist/control/socket.h"
#include "models/checkpoint/consolidate.h"
#include "models/checkpoint/tensor_parts.h"

namespace lockstep {
namespace {

const std::vector<std::string> kTiny = {
    "--model.n_layer=1",       "--model.n_head=2",       "--model.n_embd=16",
    "--model.block_size=16",   "--model.dropout=0.1",    "--train.batch_size=2",
    "--optim.warmup=4",        "--checkpoint.every=10",  "--checkpoint.keep=0",
    "--train.eval_every=10",   "--train.eval_batches=3", "--train.log_every=5",
    "--train.sample_tokens=5", "--dist.bucket_mib=0.01", "--dist.first_bucket_mib=0.002",
    "--dist.check_every=5",    "--dist.timeout=120",     "--threads=1"};

}  // namespace

RankRuns::RankRuns() {
  folder_ =
      JoinPath(testing::TempDir(), testing::UnitTest::GetInstance()->current_test_info()->name());
  RemoveTree(folder_);
  MakeDirectories(folder_);
}

std::string RankRuns::Path(const std::string& name) const { return JoinPath(folder_, name); }

std::map<std::string, std::string> RankRuns::Place(int rank, int ranks,
                                                   const std::string& meeting) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(ranks)},
          {"LOCAL_RANK", std::to_string(rank)},
          {"LOCAL_WORLD_SIZE", std::to_string(ranks)},
          {"CUDASIM_DEVICES", std::to_string(ranks)},
          {"LOCKSTEP_STORE_DIR", meeting}};
}

RankRuns::Arguments RankRuns::Train(const std::string& out, const Arguments& more) const {
  Arguments all = {"models/train_gpt", "--out_dir=" + Path(out)};
  all.insert(all.end(), kTiny.begin(), kTiny.end());
  // An option may be given once.
  for (const std::string& argument : more) {
    const std::string key = argument.substr(0, argument.find('=')) + "=";
    std::erase_if(all, [&](const std::string& a) { return a.starts_with(key); });
    all.push_back(argument);
  }
  return all;
}

RankRuns::Processes RankRuns::Start(int ranks, const Arguments& arguments, bool over_tcp) {
  if (!over_tcp) return Start(std::vector<Arguments>(static_cast<size_t>(ranks), arguments));
  const int port = dist::PortOf(dist::Listen("127.0.0.1", 0));
  Processes all;
  for (int r = 0; r < ranks; ++r) {
    auto place = Place(r, ranks, "");
    place["MASTER_PORT"] = std::to_string(port);
    place["LOCKSTEP_SECRET"] = "of the test";
    all.push_back(std::make_unique<Subprocess>(arguments, place));
  }
  return all;
}

RankRuns::Processes RankRuns::Start(const std::vector<Arguments>& of_rank) {
  const std::string meeting = Path("meeting-" + std::to_string(meetings_++));
  const auto ranks = static_cast<int>(of_rank.size());
  Processes all;
  for (int r = 0; r < ranks; ++r) {
    all.push_back(
        std::make_unique<Subprocess>(of_rank[static_cast<size_t>(r)], Place(r, ranks, meeting)));
  }
  return all;
}

std::vector<Result> RankRuns::Wait(Processes processes) {
  std::vector<Result> results;
  for (const auto& p : processes) results.push_back(p->Wait());
  return results;
}

void RankRuns::KillAfterCheckpoint(Processes processes, const std::string& out, int step) const {
  while (!PathExists(Checkpoint(out, step) + "/DONE")) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (const auto& p : processes) p->Signal(SIGKILL);
  Wait(std::move(processes));
}

std::vector<Result> RankRuns::Run(int ranks, const std::string& out, const Arguments& more) {
  std::vector<Result> results = Wait(Start(ranks, Train(out, more)));
  for (const Result& r : results) EXPECT_EQ(r.exit_code, 0) << r.err;
  return results;
}

std::string RankRuns::Checkpoint(const std::string& out, int step) const {
  const std::string number = std::to_string(step);
  return Path(out) + "/checkpoints/step-" + std::string(8 - number.size(), '0') + number;
}

std::string RankRuns::Bytes(const std::string& out, int step) const {
  const std::string c = Checkpoint(out, step);
  std::string bytes;
  if (models::TensorParts::Exist(c)) {
    const std::string whole = Path(out + "-whole");
    RemoveTree(whole);
    models::Consolidate(c, whole);
    bytes = ReadFile(whole + "/model.safetensors");
  } else {
    bytes = ReadFile(c + "/model.safetensors");
  }
  const auto optimizer = models::TensorParts::Open(c, "optimizer");
  for (const std::string& name : optimizer.names()) {
    const Tensor state = optimizer.Read(name);
    bytes += StrCat(name, state.dtype(), state.shape());
    bytes.append(static_cast<const char*>(state.raw_data()), static_cast<size_t>(state.bytes()));
  }
  return bytes;
}

std::vector<Json> RankRuns::Metrics(const std::string& out) const {
  std::vector<Json> lines;
  std::istringstream in(ReadFile(Path(out + "/metrics.jsonl")));
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
  return lines;
}

std::vector<std::string> RankRuns::Numbers(const std::string& out) const {
  std::vector<std::string> numbers;
  for (const auto& j : Metrics(out)) {
    for (const char* key : {"step", "loss", "grad_norm", "lr", "val_loss"}) {
      if (j.contains(key)) numbers.push_back(j[key].dump());
    }
  }
  return numbers;
}

std::string GpuOption() { return cuda::Simulated() ? "--device=sim" : "--device=cuda"; }

}  // namespace lockstep
