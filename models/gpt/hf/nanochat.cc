// nanochat (Karpathy, 2025) in its first form: ReLU squared, RMS norms without weights, also of the
// embedding, and of queries and keys once they are turned, the other way than elsewhere. (Without
// weights a norm of queries and keys is the same before they are turned.)
#include "models/gpt/hf/llama_keys.h"

namespace lockstep::models {
namespace {

GptConfig Read(const Fields& f) {
  f.Expect("hidden_act", "relu2");
  f.Expect("attention_bias", false);  // the MLPs have none
  GptConfig c = ReadLlamaSizes(f, {});
  c.rope = ReadRope(f, c.rope, c.block_size);
  c.rope.reverse = true;
  c.activation = nn::MlpActivation::kRelu2;
  c.norm_weight = false;
  c.qk_norm = nn::QkNorm::kHead;
  c.embed_norm = true;
  c.logit_softcap = f.NumberOrNull("final_logit_softcapping", 15);
  return c;
}

OrderedJson Write(const GptConfig& c) {
  OrderedJson j = WriteLlamaKeys(c, "nanochat", "NanoChatForCausalLM");
  j["hidden_act"] = "relu2";
  j["attention_bias"] = false;
  j["final_logit_softcapping"] =
      c.logit_softcap > 0 ? OrderedJson(c.logit_softcap) : OrderedJson(nullptr);
  j["pad_token_id"] = nullptr;
  return j;
}

}  // namespace

const HfFamily kHfNanochat = {.model_type = "nanochat",
                              .title = "nanochat",
                              .read = Read,
                              .write = Write,
                              .names = {{"mlp.c_fc", "mlp.fc1"}, {"mlp.c_proj", "mlp.fc2"}}};

}  // namespace lockstep::models
