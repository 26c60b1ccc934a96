// Writes a saved model's gradients at random tokens, in f64 and in a 16-bit dtype, to a safetensors
// file, with the weights (rounded to that dtype) and the tokens:
//   dump_gradients FOLDER bf16 OUT.safetensors
// tests/peers/gradient_error.py compares them with PyTorch's.
#include <cstdio>

#include "core/autograd/engine.h"
#include "core/io/safetensors_writer.h"
#include "core/philox.h"
#include "models/gpt/hf/hf_format.h"

namespace lockstep {
namespace {

constexpr int64_t kRows = 12;

Tensor RandomIds(uint64_t stream, const models::GptConfig& config) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < kRows * config.block_size; ++i) {
    ids.push_back(static_cast<int32_t>(Philox(3).At(stream, static_cast<uint64_t>(i)) %
                                       static_cast<uint64_t>(config.vocab_size)));
  }
  return Tensor::FromVector<int32_t>(ids, {kRows, config.block_size});
}

void Dump(const std::string& folder, DType dtype, const std::string& path) {
  const models::GptConfig config = models::ReadHfConfig(folder);
  models::Gpt narrow(config), wide(config);
  narrow.Materialize(kCpu, 0, dtype);
  wide.Materialize(kCpu, 0, DType::kF64);
  models::LoadHfWeights(narrow, folder);
  const Tensor ids = RandomIds(0, config), targets = RandomIds(1, config);
  const auto gradients = [&](models::Gpt& model, DType root) {
    Backward(model.Loss(ids, targets),
             Tensor::Full({}, 1.0 / static_cast<double>(ids.numel()), root));
  };
  std::vector<SafetensorsItem> items = {SafetensorsItem::Of("ids", ids),
                                        SafetensorsItem::Of("targets", targets)};
  const auto from = narrow.NamedParameters(), to = wide.NamedParameters();
  for (size_t i = 0; i < from.size(); ++i) {
    to[i].second->value().Detach().CopyFrom(from[i].second->value().Detach().To(DType::kF64));
    from[i].second->leaf().SetDType(DType::kF32);
    items.push_back(SafetensorsItem::Of("weight." + from[i].first, to[i].second->value()));
  }
  gradients(narrow, DType::kF32);
  gradients(wide, DType::kF64);
  for (size_t i = 0; i < from.size(); ++i) {
    items.push_back(SafetensorsItem::Of("gradient." + from[i].first, from[i].second->grad()));
    items.push_back(SafetensorsItem::Of("exact." + from[i].first, to[i].second->grad()));
  }
  FileWriter out(path);
  WriteSafetensors(out, items);
  out.Close();
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  try {
    LS_CHECK(argc == 4, "usage: dump_gradients FOLDER bf16|f16 OUT.safetensors");
    lockstep::Dump(argv[1], lockstep::ParseDType(argv[2]), argv[3]);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "dump_gradients: error: %s\n", e.what());
    return 1;
  }
}
