// Prints the logits of a saved model, or of an adapter's, for the given token ids, one row per
// position:
//   dump_logits FOLDER 5 17 3
// tests/peers/hf_logits.py compares them with transformers'.
#include <cstdio>
#include <cstdlib>

#include "models/checkpoint/checkpoint.h"
#include "models/gpt/hf/hf_format.h"

int main(int argc, char** argv) {
  using namespace lockstep;
  try {
    LS_CHECK(argc >= 3, "usage: dump_logits FOLDER ID ...");
    models::Gpt model(models::ReadHfConfig(models::WeightsOf(argv[1])));
    models::AddAdapters(argv[1], model);
    model.Materialize(kCpu, 0);
    models::LoadWeights(argv[1], model);
    std::vector<int32_t> ids;
    for (int i = 2; i < argc; ++i) ids.push_back(std::atoi(argv[i]));
    const NoGrad no_grad;
    const Tensor logits = model(Tensor::FromVector<int32_t>(ids, {1, argc - 2}));
    const std::vector<float> values = logits.ToVector<float>();
    for (size_t i = 0; i < values.size(); ++i) {
      std::printf("%.9g%c", values[i], (i + 1) % logits.dim(-1) == 0 ? '\n' : ' ');
    }
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "dump_logits: error: %s\n", e.what());
    return 1;
  }
}
