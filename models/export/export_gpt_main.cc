// bazel run -c opt //models:export_gpt -- --checkpoint=out/best --format=gguf --out=model.gguf
#include <cstdio>

#include "core/error.h"
#include "models/export/export_gpt.h"
#include "models/options/invocation.h"

int main(int argc, char** argv) {
  using namespace lockstep;
  try {
    models::EnterInvocationFolder();
    models::ExportConfig config;
    models::Options options(
        {.name = "export_gpt",
         .summary = "Writes a trained GPT for other programs: as a Hugging Face folder "
                    "(transformers, vLLM and many more), or as a GGUF file (llama.cpp, Ollama).",
         .example =
             "export_gpt --checkpoint=out/best --format=gguf --dtype=q8_0 --out=my-model.gguf",
         .takes_file = false});
    models::AddExportOptions(options, config);
    if (const auto exit_code = options.Start(argc, argv)) return *exit_code;
    return models::ExportGpt(config);
  } catch (const std::exception& e) {
    std::fflush(stdout);
    std::fprintf(stderr, "export_gpt: %s\n", e.what());
    return ExitCodeOf(e);
  }
}
