#include "models/serve/serve_gpt.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include "core/thread_pool.h"
#include "data/conversations/model_template.h"
#include "dist/launch/rank_device.h"
#include "models/serve/api.h"
#include "models/serve/engine.h"
#include "models/serve/http_server.h"
#include "models/train/interrupt.h"
#include "models/train/run_ranks.h"

namespace lockstep::models {
namespace {

constexpr int64_t kDefaultContext = 4096;

// Without conversations if the folder's chat template does not fit its tokenizer.
ServedModel Describe(const ServeConfig& c, const OpenedModel& opened,
                     const std::shared_ptr<const data::Tokenizer>& tokenizer) {
  const auto with = [&](std::shared_ptr<const data::ChatTemplate> chat_template) {
    return MakeServedModel(c.checkpoint, opened.shape, tokenizer, std::move(chat_template),
                           c.context > 0 ? c.context : kDefaultContext);
  };
  const std::string& folder = opened.folder();
  if (c.chat_template.empty() && !data::HasChatTemplate(folder)) return with(nullptr);
  try {
    return with(data::LoadModelTemplate(c.chat_template, {folder}, tokenizer).chat_template);
  } catch (const InputError& e) {
    if (!c.chat_template.empty()) throw;
    std::fprintf(stderr, "serve: warning: no conversations: %s\n", e.what());
    return with(nullptr);
  }
}

}  // namespace

void AddServeOptions(Options& options, ServeConfig& c) {
  AddSourceOptions(options, c);
  options.Add("host", &c.host,
              {.aliases = {"bind"},
               .doc = "the address to serve at. Who reaches it may use the model: there is no "
                      "authentication; 0.0.0.0 is for the whole network"});
  options.Add("port", &c.port, {.min = 0, .max = 65535, .doc = "its port; 0: a free one"});
  options.Add("max_batch", &c.max_batch,
              {.min = 1,
               .max = 65536,
               .aliases = {"batch_size", "max_num_seqs", "parallel"},
               .doc = "texts that grow at the same time; others wait"});
  options.Add("context", &c.context,
              {.min = 0,
               .aliases = {"max_model_len", "ctx_size"},
               .doc = "tokens of a text, prompt included, for which memory is kept; 0: the "
                      "model's context, but at most 4096"});
  options.Add("chat_template", &c.chat_template,
              {.doc = "a chat_template.jinja, or a folder with one; empty: the checkpoint's"});
}

namespace {

int Serve(const ServeConfig& c) {
  const SignalThread signals;
  SetNumThreads(ThreadsOf({.threads = c.threads}, {}));
  const OpenedModel opened = OpenModel(c, "serve", /*verifies=*/true);
  if (opened.adapters.size() > 1) throw InputError("serve takes one --adapter");
  const std::shared_ptr<const data::Tokenizer> tokenizer = RequireTokenizer(c, opened.folder());
  const ServedModel served = Describe(c, opened, tokenizer);
  const Device device = dist::DeviceOfRank(c.device, {});
  const auto model =
      LoadOpenedModel(opened, std::make_shared<dist::TensorRanks>(nullptr, 1), device);
  Engine engine(*model, std::min(tokenizer->vocab_size(), served.vocab_size),
                {.max_batch = c.max_batch, .context = served.context});
  const InterruptGuard interrupt("the texts that are being written end here");
  const HttpServer server({.host = c.host, .port = c.port}, MakeApi(served, engine));
  fmt::print(
      "serve: {} at http://{}:{}/ (a page) and .../v1 (OpenAI's interface): {} texts of up to "
      "{} tokens at once{}; Ctrl-C ends it\n",
      served.name, c.host, server.port(), c.max_batch, served.context,
      served.conversations ? "" : ", without a chat template");
  std::fflush(stdout);
  engine.Run([] { return InterruptGuard::signal() != 0; });
  return 0;
}

}  // namespace

int ServeGpt(const ServeConfig& c) {
  return AdviseOnMemory(c, "a smaller --max_batch or --context", /*more=*/"",
                        [&] { return Serve(c); });
}

}  // namespace lockstep::models
