#include "models/checkpoint/trainer_state.h"

#include <algorithm>
#include <concepts>
#include <limits>
#include <type_traits>

#include "core/io/file.h"
#include "core/io/json.h"

namespace lockstep::models {
namespace {

constexpr int kFormat = 1;

template <class T>
T Field(const Json& j, const char* key, const std::string& source) {
  try {
    if constexpr (std::integral<T> && !std::same_as<T, bool>) {
      return static_cast<T>(
          IntegerOf(j.at(key), std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
    } else {
      return j.at(key).get<T>();
    }
  } catch (const JsonError&) {
    throw InputError(StrCat(source, ": \"", key, "\" is missing or has the wrong type"));
  } catch (const InputError& e) {
    throw InputError(StrCat(source, ": \"", key, "\": ", e.what()));
  }
}

}  // namespace

std::string ToJson(const TrainerState& s) {
  OrderedJson j;
  j["format"] = kFormat;
  j["step"] = s.step;
  j["tokens_seen"] = s.tokens_seen;
  j["tokens_per_step"] = s.tokens_per_step;
  j["best_val_loss"] = s.best_val_loss;
  if (!s.measured_on.empty()) j["measured_on"] = s.measured_on;
  j["last_loss"] = s.last_loss;
  if (s.lr) j["lr"] = *s.lr;
  j["finished"] = s.finished;
  if (s.seconds > 0) j["seconds"] = s.seconds;
  if (s.workers > 0) j["workers"] = s.workers;
  if (s.loss_scale) {
    j["loss_scale"] = {{"scale", s.loss_scale->scale},
                       {"good_steps", s.loss_scale->good_steps},
                       {"skipped", s.loss_scale->skipped}};
  }
  if (!s.spike_history.losses.empty()) {
    j["spike_history"] = {{"losses", s.spike_history.losses}, {"norms", s.spike_history.norms}};
  }
  if (s.skips > 0) j["skips"] = s.skips;
  if (!s.unfinished_metrics.empty()) j["unfinished_metrics"] = s.unfinished_metrics;
  if (!s.arithmetic.empty()) j["arithmetic"] = s.arithmetic;
  j["data_fingerprint"] = s.data_fingerprint;
  for (const data::FileContent& file : s.data_files) j["data_files"].push_back(ToLine(file));
  j["config"] = s.config_toml;
  return j.dump(2) + "\n";
}

TrainerState ParseTrainerState(const std::string& text, const std::string& file) {
  const Json j = ParseJson(text, file);
  if (!j.is_object()) throw InputError(StrCat(file, ": not a JSON object"));
  if (const int format = Field<int>(j, "format", file); format != kFormat) {
    throw InputError(StrCat(file, ": format ", format, ", this program reads ", kFormat));
  }
  const auto read = [&](const char* key, auto* field) {
    *field = Field<std::remove_pointer_t<decltype(field)>>(j, key, file);
  };
  // Which is not in all files, or in those of earlier versions.
  const auto read_if = [&](const char* key, auto* field) {
    if (j.contains(key)) read(key, field);
  };
  TrainerState s;
  read("step", &s.step);
  read("tokens_seen", &s.tokens_seen);
  s.tokens_per_step = s.tokens_seen / std::max<int64_t>(s.step, 1);  // all steps had one size
  read_if("tokens_per_step", &s.tokens_per_step);
  // Before 0.2.0 it was null where it was not finite.
  const bool had_none = j.contains("best_val_loss") && j["best_val_loss"].is_null();
  if (!had_none) read("best_val_loss", &s.best_val_loss);
  read_if("measured_on", &s.measured_on);
  read_if("arithmetic", &s.arithmetic);
  read("last_loss", &s.last_loss);
  if (j.contains("lr")) read("lr", &s.lr.emplace());
  read("finished", &s.finished);
  read_if("seconds", &s.seconds);
  read("data_fingerprint", &s.data_fingerprint);
  std::vector<std::string> files;
  read_if("data_files", &files);
  for (const std::string& line : files) s.data_files.push_back(data::ParseFileContent(line, file));
  read("config", &s.config_toml);
  read_if("workers", &s.workers);
  if (j.contains("loss_scale")) {
    const Json& scale = j["loss_scale"];
    s.loss_scale = LossScale{.scale = Field<float>(scale, "scale", file),
                             .good_steps = Field<int32_t>(scale, "good_steps", file),
                             .skipped = Field<int64_t>(scale, "skipped", file)};
  }
  if (j.contains("spike_history")) {
    const Json& history = j["spike_history"];
    s.spike_history = {.losses = Field<std::vector<double>>(history, "losses", file),
                       .norms = Field<std::vector<double>>(history, "norms", file)};
  }
  read_if("skips", &s.skips);
  read_if("unfinished_metrics", &s.unfinished_metrics);
  if (s.step < 0) throw InputError(StrCat(file, ": \"step\" is negative"));
  return s;
}

TrainerState ReadTrainerState(const std::string& path, const std::string& kind) {
  const std::string file = StrCat(path, "/", kind, ".json");
  return ParseTrainerState(ReadFile(file), file);
}

}  // namespace lockstep::models
