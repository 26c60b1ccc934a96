// bazel run -c opt //tools:serve -- --checkpoint=out
#include <string>
#include <vector>

#include "dist/launch/launch.h"
#include "models/options/invocation.h"
#include "models/serve/serve_gpt.h"

int main(int argc, char** argv) {
  using namespace lockstep;
  try {
    std::vector<std::string> arguments(argv + 1, argv + argc);
    models::EnterInvocationFolder();
    models::ServeConfig config;
    models::Options options(
        {.name = "serve",
         .summary = "Serves a GPT by HTTP, to try, evaluate and demonstrate it, not for "
                    "production: OpenAI's completions and chat completions, and a page.",
         .example = "serve --checkpoint=out --port=8000",
         .takes_file = false});
    models::AddServeOptions(options, config);
    if (const auto exit_code = options.Start(arguments)) return *exit_code;
    const int exit_code = models::ServeGpt(config);
    models::CheckOutput();
    return exit_code;
  } catch (const std::exception& e) {
    return dist::EndWith("serve", e);
  }
}
