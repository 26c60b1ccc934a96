#include "models/report/fingerprints.h"

#include <charconv>

#include "core/error.h"
#include "core/io/json.h"
#include "models/report/json_lines.h"

namespace lockstep::models {
namespace {

constexpr size_t kDigits = 16;

std::vector<uint64_t> FromHex(const std::string& text) {
  std::vector<uint64_t> all;
  if (text.size() % kDigits != 0) throw InputError("has digits that are no whole fingerprints");
  for (size_t at = 0; at < text.size(); at += kDigits) {
    const char* const begin = text.data() + at;
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(begin, begin + kDigits, value, 16);
    if (error != std::errc() || end != begin + kDigits) throw InputError("has other digits");
    all.push_back(value);
  }
  return all;
}

void AddKinds(const StepFingerprints& step, OrderedJson* line) {
  for (size_t kind = 0; kind < kFingerprintKinds.size(); ++kind) {
    if (!step.of_kind[kind].empty()) (*line)[kFingerprintKinds[kind]] = ToHex(step.of_kind[kind]);
  }
}

}  // namespace

std::string ToHex(uint64_t fingerprint) {
  char digits[kDigits];
  const std::string_view written(digits,
                                 std::to_chars(digits, digits + kDigits, fingerprint, 16).ptr);
  return std::string(kDigits - written.size(), '0').append(written);
}

std::string ToHex(const std::vector<uint64_t>& fingerprints) {
  std::string text;
  for (const uint64_t value : fingerprints) text += ToHex(value);
  return text;
}

std::string FingerprintNames::NameOf(size_t kind, size_t i) const {
  if (kind == 0) return "tokens";
  const auto& names = kind == 1 ? activations : parameters;
  return i < names.size() ? names[i] : StrCat("tensor ", i);
}

std::string ToJson(const FingerprintNames& names, const StepFingerprints& start) {
  OrderedJson line = {
      {"step", start.step},
      {"ranks", names.ranks},
      {"arithmetic", names.arithmetic},
      {"data_fingerprint", names.data_fingerprint},
      {"names", {{"activations", names.activations}, {"parameters", names.parameters}}}};
  AddKinds(start, &line);
  return line.dump();
}

std::string ToJson(const StepFingerprints& step) {
  OrderedJson line = {{"step", step.step}};
  AddKinds(step, &line);
  return line.dump();
}

FingerprintsOfRun ReadFingerprints(const std::string& out_dir) {
  const std::string path = JoinPath(out_dir, kFingerprintsFile);
  FingerprintsOfRun run;
  int64_t number = 0;
  const auto read = [&](const std::string& text) {
    ++number;
    const Json line = TryParseJson(text);
    const auto step = StepOf(line);
    if (!step) return;
    try {
      if (line.contains("names")) {
        run.names = {IntegerOf(line.at("ranks"), 1), line.at("arithmetic"),
                     line.at("data_fingerprint"), line.at("names").at("activations"),
                     line.at("names").at("parameters")};
        // That of the process before has more.
        if (run.steps.contains(*step)) return;
      }
      StepFingerprints& of_step = run.steps[*step];
      of_step.step = *step;
      for (size_t kind = 0; kind < kFingerprintKinds.size(); ++kind) {
        if (line.contains(kFingerprintKinds[kind])) {
          of_step.of_kind[kind] = FromHex(line.at(kFingerprintKinds[kind]));
        }
      }
    } catch (const std::exception& error) {
      throw InputError(StrCat(path, ": line ", number, ": ", error.what()));
    }
  };
  ForEachLine(path, read);
  if (run.steps.empty()) {
    throw InputError(StrCat(path, ": there are no fingerprints: train with --log.fingerprints=N, ",
                            "which writes them every N steps"));
  }
  return run;
}

}  // namespace lockstep::models
