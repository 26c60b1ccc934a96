#include "models/checkpoint/checkpoint.h"

#include <nlohmann/json.hpp>

#include "core/io/file.h"
#include "core/io/json.h"
#include "core/io/safetensors.h"
#include "models/gpt/hf_format.h"

namespace lockstep::models {
namespace {

constexpr int kFormat = 1;

std::string ToJson(const TrainerState& s) {
  nlohmann::ordered_json j;
  j["format"] = kFormat;
  j["step"] = s.step;
  j["tokens_seen"] = s.tokens_seen;
  j["best_val_loss"] = s.best_val_loss;
  j["last_loss"] = s.last_loss;
  j["finished"] = s.finished;
  if (s.loss_scale) {
    j["loss_scale"] = {{"scale", s.loss_scale->scale},
                       {"good_steps", s.loss_scale->good_steps},
                       {"skipped", s.loss_scale->skipped}};
  }
  j["data_fingerprint"] = s.data_fingerprint;
  j["config"] = s.config_toml;
  return DumpJson(j, 2) + "\n";
}

template <class T>
T Field(const nlohmann::json& j, const char* key, const std::string& source) {
  try {
    return j.at(key).get<T>();
  } catch (const nlohmann::json::exception&) {
    throw InputError(StrCat(source, ": \"", key, "\" is missing or has the wrong type"));
  }
}

// The tensors of a checkpoint's files. If the model is sharded, ranks produce them together, each
// when the file that it goes into is written.
class CheckpointTensors {
 public:
  CheckpointTensors(Gpt& model, optim::Optimizer& optimizer) : model_(ToHfTensors(model)) {
    for (const auto& p : model.Parameters()) sharded_ |= !p->layout().is_whole();
    optimizer.ForEachState([this](const std::string& name, const Parameter& p, const Tensor& part) {
      optimizer_.push_back(SafetensorsItem::Of(name, part.dtype(), p.logical_shape(),
                                               [&p, part] { return p.WholeOf(part); }));
    });
    for (auto* items : {&model_, &optimizer_}) Schedule(*items);
  }
  CheckpointTensors(const CheckpointTensors&) = delete;
  CheckpointTensors& operator=(const CheckpointTensors&) = delete;

  std::span<const SafetensorsItem> of_model() const { return model_; }
  std::span<const SafetensorsItem> of_optimizer() const { return optimizer_; }
  // Produces those that were not, for the other ranks.
  void JoinRest() {
    while (sharded_ && produced_ < schedule_.size()) schedule_[produced_++]();
  }

 private:
  void Schedule(std::vector<SafetensorsItem>& items) {
    std::vector<size_t> order;
    SafetensorsHeader(items, {}, &order);
    for (const size_t i : order) {
      schedule_.push_back(items[i].produce);
      items[i].produce = [this, at = schedule_.size() - 1] {
        produced_ = at + 1;
        return schedule_[at]();
      };
    }
  }

  std::vector<SafetensorsItem> model_, optimizer_;
  bool sharded_ = false;
  std::vector<std::function<Tensor()>> schedule_;  // in the order in which files are written
  size_t produced_ = 0;
};

}  // namespace

void SaveCheckpoint(CheckpointStore& store, const TrainerState& state, Gpt& model,
                    optim::Optimizer& optimizer, const data::Tokenizer* tokenizer,
                    std::optional<double> val_loss) {
  CheckpointTensors tensors(model, optimizer);
  const auto write = [&](CheckpointWriter& out) {
    out.AddSafetensors("model.safetensors", tensors.of_model());
    out.AddFile("config.json",
                ToHfConfig(model.config(), model.Parameters().at(0)->value().dtype()));
    if (tokenizer) out.AddFile("tokenizer.json", tokenizer->ToJson());
    out.AddSafetensors("optimizer.safetensors", tensors.of_optimizer());
    out.AddFile("trainer_state.json", ToJson(state));
  };
  try {
    store.Save(state.step, write, val_loss);
  } catch (const IoError&) {
    tensors.JoinRest();  // the other ranks know nothing of this one's disk
    throw;
  }
}

void JoinCheckpoint(Gpt& model, optim::Optimizer& optimizer) {
  CheckpointTensors(model, optimizer).JoinRest();
}

void LoadOptimizerState(const std::string& path, optim::Optimizer& optimizer) {
  const SafetensorsFile file = SafetensorsFile::Open(path + "/optimizer.safetensors");
  NamedTensors state;
  for (const SafetensorsEntry& entry : file.entries()) {
    state.emplace_back(entry.name, entry.ToTensor());
  }
  try {
    optimizer.LoadState(state);
  } catch (const InputError& e) {
    throw InputError(StrCat(file.source(), ": ", e.what()));
  }
}

TrainerState ReadTrainerState(const std::string& path) {
  const std::string file = path + "/trainer_state.json";
  const nlohmann::json j = ParseJson(ReadFile(file), file);
  if (!j.is_object()) throw InputError(StrCat(file, ": not a JSON object"));
  if (const int format = Field<int>(j, "format", file); format != kFormat) {
    throw InputError(StrCat(file, ": format ", format, ", this program reads ", kFormat));
  }
  TrainerState s;
  s.step = Field<int64_t>(j, "step", file);
  s.tokens_seen = Field<int64_t>(j, "tokens_seen", file);
  s.best_val_loss = Field<double>(j, "best_val_loss", file);
  s.last_loss = Field<double>(j, "last_loss", file);
  s.finished = Field<bool>(j, "finished", file);
  s.data_fingerprint = Field<std::string>(j, "data_fingerprint", file);
  s.config_toml = Field<std::string>(j, "config", file);
  if (j.contains("loss_scale")) {
    const nlohmann::json& scale = j["loss_scale"];
    s.loss_scale = LossScale{.scale = Field<float>(scale, "scale", file),
                             .good_steps = Field<int32_t>(scale, "good_steps", file),
                             .skipped = Field<int64_t>(scale, "skipped", file)};
  }
  if (s.step < 0) throw InputError(StrCat(file, ": \"step\" is negative"));
  return s;
}

std::unique_ptr<data::Tokenizer> ReadTokenizer(const std::string& path) {
  // Ours, or those of a Hugging Face folder.
  for (const char* file : {"tokenizer.json", "vocab.json", "encoder.json"}) {
    if (PathExists(JoinPath(path, file))) return data::LoadTokenizer(path);
  }
  return nullptr;
}

}  // namespace lockstep::models
