// bazel run -c opt //tools:watch -- FOLDER
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/io/file.h"
#include "dist/launch/launch.h"
#include "models/options/invocation.h"
#include "models/options/options.h"
#include "models/sweep/watch_runs.h"

int main(int argc, char** argv) {
  using namespace lockstep;
  try {
    models::EnterInvocationFolder();
    std::vector<std::string> arguments(argv + 1, argv + argc);
    if (!arguments.empty() && !arguments[0].starts_with("-")) {
      arguments[0] = "--folder=" + arguments[0];
    }
    std::string folder = "out";
    models::ServerOptions server{.port = 6006};
    models::Options options(
        {.name = "watch",
         .summary = "Shows the runs of a folder, and of all folders below it, live in a browser, "
                    "until Ctrl-C.",
         .example = "watch sweep",
         .takes_file = false});
    options.Add("folder", &folder, {.operational = true, .doc = "a run, or a folder of runs"});
    options.Add("host", &server.host,
                {.operational = true,
                 .doc = "the address to listen at; everyone who reaches it sees the runs"});
    options.Add("port", &server.port,
                {.min = 0, .max = 65535, .operational = true, .doc = "0: a free one"});
    if (const auto exit_code = options.Start(arguments)) return *exit_code;
    if (!IsDirectory(folder)) {
      throw InputError(
          StrCat(folder, " is no folder: name a run, or a folder of runs, by --folder"));
    }
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : {SIGINT, SIGTERM}) sigaddset(&signals, signal);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // the server's threads inherit it
    models::RunsPages pages(folder);
    const models::HttpServer http(
        server, [&](const models::ServerRequest& request) { return pages.Answer(request); });
    std::printf("the runs of %s: http://%s:%d/\n", folder.c_str(), server.host.c_str(),
                static_cast<int>(http.port()));
    models::CheckOutput();
    int signal = 0;
    sigwait(&signals, &signal);
    return 0;
  } catch (const std::exception& e) {
    return dist::EndWith("watch", e);
  }
}
