// llm.c's file of HellaSwag: GPT-2's tokens, of contexts and endings encoded apart.
#include <array>
#include <cstring>
#include <utility>

#include "core/io/file.h"
#include "models/evaluate/eval_task.h"
#include "models/evaluate/statistics.h"

namespace lockstep::models {
namespace {

// llm.c dev/data/data_common.py, write_evalfile: a header of 256 i32 (magic, version, examples),
// then u16: 65535, bytes, index, label, choices, and each list of tokens after its length.
constexpr int32_t kMagic = 20240522, kVersion = 1;
constexpr size_t kHeaderBytes = 1024;
constexpr uint16_t kStart = 65535;

class LlmcTask : public EvalTask {
 public:
  LlmcTask(const RequestEncoder& encoder, const TaskOptions& options)
      : path_(JoinPath(options.folder, "hellaswag_val.bin")) {
    if (!PathExists(path_)) {
      throw InputError(StrCat("there is no ", path_, "; llm.c's python3 dev/data/hellaswag.py ",
                              "writes it, to dev/data/hellaswag/hellaswag_val.bin"));
    }
    const std::string bytes = ReadFile(path_);
    std::array<int32_t, 3> header{};
    if (bytes.size() >= kHeaderBytes) std::memcpy(header.data(), bytes.data(), sizeof(header));
    if (header[0] != kMagic || header[1] != kVersion || header[2] < 1 || bytes.size() % 2 != 0) {
      throw InputError(StrCat(path_, ": this is not a file of llm.c's evaluations, version 1"));
    }
    stream_.resize((bytes.size() - kHeaderBytes) / 2);
    std::memcpy(stream_.data(), bytes.data() + kHeaderBytes, bytes.size() - kHeaderBytes);
    for (int32_t i = 0; i < header[2]; ++i) {
      if (options.limit == 0 || i < options.limit) AddExample(encoder);
    }
  }

  std::vector<TaskResult> Run(Gpt& model, const ScoreOptions& options) const override {
    const std::vector<Score> scores = ScoreRequests(model, requests_, options);
    std::vector<double> by_sum, by_mean;
    for (const auto& [first, choices, label] : questions_) {
      size_t best = first, best_mean = first;
      const auto mean = [&](size_t i) {
        return scores[i].log_probability / static_cast<double>(requests_[i].scored);
      };
      for (size_t i = first; i < first + choices; ++i) {
        if (scores[i].log_probability > scores[best].log_probability) best = i;
        if (mean(i) > mean(best_mean)) best_mean = i;
      }
      by_sum.push_back(best - first == label);
      by_mean.push_back(best_mean - first == label);
    }
    return {{"hellaswag_llmc",
             0,
             std::ssize(questions_),
             {{.metric = "acc", .value = Mean(by_sum), .error = MeanError(by_sum)},
              {.metric = "acc_norm", .value = Mean(by_mean), .error = MeanError(by_mean)}}}};
  }

 private:
  struct Choices {
    size_t first, count, label;
  };

  uint16_t Take() {
    if (at_ == stream_.size()) throw InputError(StrCat(path_, ": the file ends within an example"));
    return stream_[at_++];
  }

  std::vector<int32_t> TakeTokens() {
    std::vector<int32_t> ids(Take());
    for (int32_t& id : ids) id = Take();
    return ids;
  }

  void AddExample(const RequestEncoder& encoder) {
    const std::string place = StrCat(path_, ": example ", questions_.size());
    if (Take() != kStart) throw InputError(StrCat(place, " does not begin with ", kStart));
    Take();  // bytes
    Take();  // its number
    Choices c{.first = requests_.size(), .count = 0, .label = Take()};
    c.count = Take();
    if (c.count == 0 || c.label >= c.count) {
      throw InputError(StrCat(place, ": label ", c.label, " of ", c.count, " endings"));
    }
    const std::vector<int32_t> context = TakeTokens();
    for (size_t i = 0; i < c.count; ++i) {
      std::vector<int32_t> ids = context, ending = TakeTokens();
      if (context.empty() || ending.empty())
        throw InputError(StrCat(place, ": there are no tokens"));
      ids.insert(ids.end(), ending.begin(), ending.end());
      requests_.push_back(encoder.Range(std::move(ids), std::ssize(context)));
    }
    questions_.push_back(c);
  }

  const std::string path_;
  std::vector<uint16_t> stream_;
  size_t at_ = 0;
  std::vector<Choices> questions_;
  std::vector<ScoreRequest> requests_;
};

}  // namespace

std::unique_ptr<EvalTask> MakeLlmcTask(const RequestEncoder& encoder, const TaskOptions& options) {
  return std::make_unique<LlmcTask>(encoder, options);
}

}  // namespace lockstep::models
