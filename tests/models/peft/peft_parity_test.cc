// Adapters against PEFT: tiny models with an adapter that PEFT made have its logits, gradients,
// losses and merged weights, and its files are read and written. tests/peers/make_peft_parity.py
// made the goldens, and make_qlora_parity.py those beside bases that bitsandbytes quantised.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/autograd/engine.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "core/io/safetensors.h"
#include "data/token_file.h"
#include "models/gpt/hf/hf_format.h"
#include "models/gpt/peft/adapter.h"
#include "models/gpt/peft/layer_names.h"
#include "models/gpt/peft/merged_weights.h"
#include "models/gpt/peft/write_adapter.h"
#include "models/train/step/trainer.h"
#include "nn/lora/quantized_linear.h"
#include "optim/adamw.h"

namespace lockstep::models {
namespace {

constexpr int64_t kLength = 24;

class PeftParity : public testing::TestWithParam<const char*> {
 protected:
  std::string Base() const { return StrCat("tests/testdata/", GetParam(), "_parity"); }
  std::string Folder() const { return StrCat("tests/testdata/", GetParam(), "_peft"); }
  Tensor Ids(int64_t first) const {
    std::vector<int32_t> ids(kLength);
    data::TokenFile(Base() + "/tokens.bin").Read(first, ids);
    return Tensor::FromVector(ids, {1, kLength});
  }
  std::string BaseInBf16() const {
    Gpt model(ReadHfConfig(Base()));
    model.Materialize(kCpu, 0, DType::kBF16);
    LoadHfWeights(model, Base());
    const std::string folder = JoinPath(testing::TempDir(), StrCat("bf16/", GetParam(), "_parity"));
    RemoveTree(folder);
    WriteHfFolder(folder, ToHfConfig(model.config()), ToHfTensors(model), 1 << 30);
    return folder;
  }
  // `base`: lora.base.
  std::unique_ptr<Gpt> Load(const std::string& base = "model") const {
    GptConfig config = ReadHfConfig(Base());
    config.lora = {.base = base, .init_from = Folder()};
    auto model = std::make_unique<Gpt>(config);
    model->Materialize(kCpu, 0);
    LoadHfWeights(*model, Base());
    PeftAdapter::Open(Folder()).LoadInto(*model);
    return model;
  }
  // Against the goldens whose names begin with `golden`.
  void ExpectGradients(Gpt& model, const std::string& golden) const;
  void ExpectTenSteps(Gpt& model, const std::string& golden) const;
};

std::vector<float> Values(const SafetensorsItem& item) {
  return item.produce().Contiguous().ToVector<float>();
}

// The largest difference from the golden, over the norm of the golden.
double RelativeError(const std::vector<float>& ours, const std::vector<float>& theirs) {
  double squares = 0, error = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    squares += double{theirs[i]} * theirs[i];
    error = std::max(error, std::abs(double{ours[i]} - theirs[i]));
  }
  EXPECT_GT(squares, 0);
  return error / std::sqrt(squares);
}

// All items against the tensors of a golden of the same names.
void ExpectNear(const std::vector<SafetensorsItem>& items, const std::string& golden,
                double tolerance) {
  const SafetensorsFile file = SafetensorsFile::Open(golden);
  ASSERT_EQ(items.size(), file.entries().size());
  for (const SafetensorsItem& item : items) {
    const SafetensorsEntry* entry = file.Find(item.name);
    ASSERT_NE(entry, nullptr) << item.name;
    ASSERT_EQ(item.shape, entry->shape) << item.name;
    EXPECT_LT(RelativeError(Values(item), entry->ToTensor().ToVector<float>()), tolerance)
        << item.name;
  }
}

TEST_P(PeftParity, Logits) {
  const Json golden = Json::parse(ReadFile(Folder() + "/logits.json"));
  const auto model = Load();
  const NoGrad no_grad;
  const std::vector<float> ours = (*model)(Ids(0)).ToVector<float>();
  const size_t classes = golden[0].size();
  ASSERT_EQ(ours.size(), golden.size() * classes);
  double most = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    const double theirs = golden[i / classes][i % classes];
    most = std::max(most, std::abs(theirs));
    EXPECT_NEAR(ours[i], theirs, 2e-5) << "position " << i / classes << ", id " << i % classes;
  }
  EXPECT_GT(most, 0.3);
}

void PeftParity::ExpectGradients(Gpt& model, const std::string& golden) const {
  Backward(model.Loss(Ids(0), Ids(1)), Tensor::Full({}, 1.0 / kLength, DType::kF32));
  for (const auto& [name, p] : model.NamedParameters()) {
    EXPECT_EQ(p->grad().defined(), p->trainable()) << name;
  }
  const auto gradients = ToPeftTensors(
      model, [](const std::string&, const Parameter& p) { return p.grad().Detach(); });
  ExpectNear(gradients, golden + "gradients.safetensors", 1e-5);
}

void PeftParity::ExpectTenSteps(Gpt& model, const std::string& golden) const {
  const Json json = Json::parse(ReadFile(golden + "steps.json"));
  const Json& settings = json.at("settings");
  const auto number = [&](const char* key) { return settings.at(key).get<double>(); };
  const auto integer = [&](const char* key) { return settings.at(key).get<int64_t>(); };
  optim::AdamW optimizer(model.Parameters(), {.beta1 = number("beta1"),
                                              .beta2 = number("beta2"),
                                              .eps = number("eps"),
                                              .weight_decay = number("weight_decay")});
  const std::shared_ptr<const data::TokenSource> tokens =
      std::make_shared<data::TokenFile>(Base() + "/tokens.bin");
  data::Loader loader(tokens,
                      data::Sampler(data::Order::kSequential, 0, tokens->size(), integer("seq")),
                      {.batch_size = integer("batch"), .micro_batches = integer("accum")});
  Trainer trainer(model, optimizer,
                  optim::LrSchedule({.lr = number("lr"),
                                     .min_lr = number("min_lr"),
                                     .warmup = integer("warmup"),
                                     .decay_steps = integer("decay_steps")}),
                  loader, {.micro_batches = integer("accum"), .clip = number("clip")});
  const Json& steps = json.at("steps");
  ASSERT_EQ(steps.size(), 10u);
  for (size_t i = 0; i < steps.size(); ++i) {
    const StepMetrics ours = trainer.Step();
    const double norm = steps[i].at("grad_norm");
    EXPECT_NEAR(ours.loss, steps[i].at("loss").get<double>(), 2e-5) << "step " << i;
    EXPECT_NEAR(ours.grad_norm, norm, 1e-4 * norm) << "step " << i;
  }
  // Adam divides by the gradient's size, so that rounding of the smallest ones shows most.
  ExpectNear(ToPeftTensors(model), golden + "trained.safetensors", 1e-4);
}

TEST_P(PeftParity, Gradients) { ExpectGradients(*Load(), Folder() + "/"); }

TEST_P(PeftParity, TenStepsOfAdamW) { ExpectTenSteps(*Load(), Folder() + "/"); }

TEST_P(PeftParity, FilesAreWrittenBack) {
  const auto model = Load();
  const PeftConfig theirs = PeftAdapter::Open(Folder()).config();
  PeftConfig ours = PeftConfigOf(*model, theirs.rank_stabilized);
  ours.base = theirs.base;
  const std::string copy = JoinPath(testing::TempDir(), std::string(GetParam()) + "_copy");
  RemoveTree(copy);
  WriteAdapter(copy, *model, ours, "");
  EXPECT_EQ(ReadFile(copy + "/adapter_model.safetensors"),
            ReadFile(Folder() + "/adapter_model.safetensors"));
  const PeftConfig again = PeftAdapter::Open(copy).config();
  EXPECT_EQ(again.base, theirs.base);
  EXPECT_EQ(again.fan_in_fan_out, theirs.fan_in_fan_out);
  EXPECT_EQ(again.modules_to_save, theirs.modules_to_save);
  EXPECT_EQ(again.target_modules, theirs.target_modules);
  for (const AdaptableLayer& layer : AdaptableLayers(*model)) {
    for (const auto& part : layer.parts) {
      ASSERT_EQ(again.Targets(part.module), theirs.Targets(part.module)) << part.module;
      if (!theirs.Targets(part.module)) continue;
      EXPECT_EQ(again.RankOf(part.module), theirs.RankOf(part.module)) << part.module;
      EXPECT_EQ(again.ScaleOf(part.module), theirs.ScaleOf(part.module)) << part.module;
    }
  }
}

// For each element of scale B A, of a module's weight [out, in] or its transpose: by how much two
// ways to sum it in f32 may differ. Each has a rounding a product, one a sum, and two for the scale
// and what it multiplies, so that it is within rank + 2 units of the sum of |B| |A| from the exact
// value.
std::vector<double> SumSlack(const PeftAdapter& adapter, const std::string& module,
                             bool transposed) {
  const auto [a, b] = adapter.Matrices(module);
  if (!a.defined()) return {};
  const int64_t rank = a.dim(0), in = a.dim(1), out = b.dim(0);
  const std::vector<float> as = a.To(DType::kF32).ToVector<float>();
  const std::vector<float> bs = b.To(DType::kF32).ToVector<float>();
  const double units = 2 * static_cast<double>(rank + 2) * 0x1p-24;
  std::vector<double> slack(static_cast<size_t>(in * out));
  for (int64_t i = 0; i < out; ++i) {
    for (int64_t j = 0; j < in; ++j) {
      double sum = 0;
      for (int64_t r = 0; r < rank; ++r) {
        sum += std::abs(double{bs.at(static_cast<size_t>(i * rank + r))} *
                        as.at(static_cast<size_t>(r * in + j)));
      }
      slack.at(static_cast<size_t>(transposed ? j * out + i : i * in + j)) =
          units * std::abs(adapter.config().ScaleOf(module)) * sum;
    }
  }
  return slack;
}

// W + scale B A, rounded once. PEFT rounds B A to the weights' dtype before it adds it, so that in
// bf16 the last bit may be another.
TEST_P(PeftParity, MergedWeights) {
  const SafetensorsSet plain = SafetensorsSet::Open(Base());
  const SafetensorsFile exact = SafetensorsFile::Open(Folder() + "/merged_f32.safetensors");
  const PeftAdapter adapter = PeftAdapter::Open(Folder());
  const bool conv1d = adapter.config().fan_in_fan_out;
  const auto base_of = [&](const std::string& name) {
    const SafetensorsEntry* entry = plain.Find(name);
    if (entry == nullptr) entry = plain.Find(name.substr(std::string("transformer.").size()));
    return entry->ToTensor();
  };
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const bool half = dtype == DType::kBF16;
    const SafetensorsFile golden = SafetensorsFile::Open(
        StrCat(Folder(), half ? "/merged_bf16" : "/merged_f32", ".safetensors"));
    const std::string base = half ? BaseInBf16() : Base();
    Gpt shape(ReadHfConfig(base));
    shape.Materialize(kMeta, 0, dtype);
    std::vector<nn::LoraMergeLoss> losses;
    const WeightSource weight =
        MergedWeights(shape.config(), PeftAdapter::Open(Folder()), HfWeightSource(shape, base),
                      dtype, [&](const nn::LoraMergeLoss& loss) { losses.push_back(loss); });
    std::map<std::string, SafetensorsItem> items;
    for (const SafetensorsItem& item : ToHfTensors(shape, weight)) items[item.name] = item;
    const double unit = half ? 0x1p-8 : 0x1p-24;  // of rounding to the nearest
    for (const SafetensorsEntry& entry : golden.entries()) {
      const bool prefixed = !items.contains(entry.name);
      const SafetensorsItem& item =
          items.at(prefixed ? entry.name.substr(std::string("transformer.").size()) : entry.name);
      const std::vector<float> ours = item.produce().Contiguous().To(DType::kF32).ToVector<float>();
      const std::vector<float> theirs = entry.ToTensor().To(DType::kF32).ToVector<float>();
      const std::vector<float> sum = exact.Get(entry.name).ToTensor().ToVector<float>();
      if (entry.name == "lm_head.weight") {  // of modules_to_save
        EXPECT_EQ(ours, theirs);
        continue;
      }
      const std::vector<float> w = base_of(entry.name).ToVector<float>();
      const std::vector<float> rounded =
          base_of(entry.name).To(dtype).To(DType::kF32).ToVector<float>();
      ASSERT_EQ(ours.size(), theirs.size()) << entry.name;
      const std::vector<double> sums =
          SumSlack(adapter, entry.name.substr(0, entry.name.rfind('.')), conv1d);
      for (size_t i = 0; i < ours.size(); ++i) {
        const double update = double{sum[i]} - w[i], size = std::abs(ours[i]);
        const double slack = sums.empty() ? 0 : sums.at(i);
        ASSERT_NEAR(ours[i], theirs[i], unit * (2 * size + 1.01 * std::abs(update)) + slack)
            << entry.name << " " << i;
        ASSERT_NEAR(ours[i], rounded[i] + update, unit * size + 0x1p-24 * std::abs(sum[i]) + slack)
            << entry.name << " " << i;
      }
    }
    ASSERT_FALSE(losses.empty());
    for (const nn::LoraMergeLoss& loss : losses) {
      EXPECT_LT(loss.lost, half ? 0.1 : 1e-5) << loss.path << " " << loss.slice;
      EXPECT_GT(loss.lost, half ? 1e-4 : 0) << loss.path << " " << loss.slice;
    }
  }
}

// In memory and on their way to a file.
TEST_P(PeftParity, MergedInAModelAreTheSame) {
  Gpt base(ReadHfConfig(Base()));
  base.Materialize(kCpu, 0);
  LoadHfWeights(base, Base());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    std::map<std::string, double> lost;
    const WeightSource weight = MergedWeights(
        base.config(), PeftAdapter::Open(Folder()),
        [](const std::string&, const Parameter& p) { return p.value(); }, dtype,
        [&](const nn::LoraMergeLoss& loss) { lost[loss.path] = loss.lost; });
    const auto model = Load();
    const auto losses = nn::MergeLora(*model, dtype);
    EXPECT_TRUE(nn::LoraAdapters(*model).empty());
    const auto parameters = base.NamedParameters(), merged = model->NamedParameters();
    ASSERT_EQ(merged.size(), parameters.size());
    for (size_t i = 0; i < merged.size(); ++i) {
      const auto& [name, p] = merged[i];
      EXPECT_EQ(p->value().Detach().To(dtype).To(DType::kF32).ToVector<float>(),
                weight(name, *parameters[i].second).To(DType::kF32).ToVector<float>())
          << name;
    }
    ASSERT_EQ(losses.size(), lost.size());
    for (const nn::LoraMergeLoss& loss : losses) {
      const bool known = std::ranges::any_of(
          lost, [&](const auto& of_module) { return of_module.second == loss.lost; });
      EXPECT_TRUE(known) << loss.path << " " << loss.slice;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, PeftParity, testing::Values("llama", "qwen2", "gpt2"),
                         [](const auto& info) { return std::string(info.param); });

// ---- Beside weights of 4 bits (QLoRA). ----

class QloraParity : public PeftParity {
 protected:
  static std::string Golden(const char* base) {
    return StrCat("tests/testdata/qlora/", GetParam(), "_", base, "_");
  }
};

TEST_P(QloraParity, Gradients) {
  for (const char* base : {"nf4", "nf4_single"}) {
    SCOPED_TRACE(base);
    const auto model = Load(base);
    EXPECT_FALSE(nn::QuantizedLayers(*model).empty());
    ExpectGradients(*model, Golden(base));
  }
}

TEST_P(QloraParity, TenStepsOfAdamW) {
  for (const char* base : {"nf4", "nf4_single"}) {
    SCOPED_TRACE(base);
    ExpectTenSteps(*Load(base), Golden(base));
  }
}

INSTANTIATE_TEST_SUITE_P(All, QloraParity, testing::Values("llama", "qwen2"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace lockstep::models
