// bazel run -c opt //tools:flight -- out/flight
#include <CLI/CLI.hpp>
#include <cstdio>

#include "core/io/file.h"
#include "dist/flight/flight_verdict.h"
#include "models/options/invocation.h"

int main(int argc, char** argv) {
  using namespace lockstep;
  CLI::App app{
      "Tells from the flight records of a run's ranks which rank failed first, in which call, and\n"
      "what each did last. Exits with 1 if the records show no failure."};
  std::string folder;
  app.add_option("FOLDER", folder,
                 "the records' folder: out_dir/flight, or the out_dir of train_gpt")
      ->required();
  CLI11_PARSE(app, argc, argv);
  try {
    models::EnterInvocationFolder();
    const std::string below = JoinPath(folder, "flight");
    const auto records = dist::ReadFlightRecords(IsDirectory(below) ? below : folder);
    const dist::FlightVerdict verdict = dist::FindVerdict(records);
    std::fputs(dist::Explain(verdict, records).c_str(), stdout);
    return verdict.failed ? 0 : 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "flight: %s\n", e.what());
    return 2;
  }
}
