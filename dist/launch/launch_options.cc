#include "dist/launch/launch_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <string_view>

#include "core/error.h"
#include "dist/launch/nproc.h"

namespace lockstep::dist {
namespace {

constexpr std::string_view kCheckRank = "--check_rank=";

// HOST:PORT, or only HOST; an IPv6 address is in brackets. Port 0 is torchrun's for any free one.
void ReadEndpoint(const std::string& text, LaunchOptions* o) {
  const size_t bracket = text.starts_with("[") ? text.find(']') : std::string::npos;
  const size_t colon = text.find(':', bracket == std::string::npos ? text.rfind(':') : bracket);
  o->master_addr = text.substr(0, colon);
  if (bracket != std::string::npos) o->master_addr = text.substr(1, bracket - 1);
  if (colon != std::string::npos)
    o->master_port = ReadWhole("the port of --rdzv", text.substr(colon + 1), 0);
  if (o->master_addr.empty() || o->master_port > 65535)
    throw InputError(StrCat("--rdzv is '", text, "'; it must be HOST:PORT"));
  if (o->master_port == 0 && colon != std::string::npos && o->nnodes > 1) {
    throw InputError(StrCat("--rdzv is '", text, "', but the machines must agree on a port: write ",
                            "one, such as ", o->master_addr, ":29500"));
  }
}

}  // namespace

std::optional<LaunchOptions> ParseLaunchOptions(const std::vector<std::string>& arguments,
                                                std::string* help) {
  LaunchOptions o;
  CLI::App app{
      "Starts the ranks of a distributed run on this machine, and says which rank failed first.\n"
      "torchrun's option names also work. On several machines, run it on each, with the same\n"
      "LOCKSTEP_SECRET in the environment.",
      "launch"};
  app.prefix_command();
  std::string nproc = "auto", nnodes = "1", endpoint, check;
  bool standalone = false;
  double grace = static_cast<double>(o.grace.count()) / 1e3;
  app.add_option("--nproc,--nproc-per-node,--nproc_per_node", nproc,
                 "ranks on this machine: a number, auto (GPUs, else 1), gpu or cpu")
      ->capture_default_str();
  app.add_option("--nnodes", nnodes,
                 "machines; MIN:MAX means --elastic, on MAX of them, of which all but MIN may go")
      ->capture_default_str();
  app.add_option("--node_rank,--node-rank", o.node_rank, "index of this machine, from 0")
      ->capture_default_str();
  app.add_option("--rdzv,--rdzv-endpoint,--rdzv_endpoint", endpoint,
                 "HOST:PORT of the first machine; not needed on one machine");
  app.add_option("--master-addr,--master_addr", o.master_addr, "the same in two options");
  app.add_option("--master-port,--master_port", o.master_port)->check(CLI::Range(1, 65535));
  app.add_flag("--standalone", standalone, "one machine and a free port: the default");
  app.add_option("--max_restarts,--max-restarts", o.max_restarts,
                 "how often to restart all ranks after a failure")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_flag(
      "--elastic", o.elastic,
      "go on without ranks that end, and start them again one by one, at most "
      "--max_restarts times (100, unless it is given); for programs that are made for it, as "
      "train_gpt is with dist.elastic");
  app.add_option("--least", o.least, "with --elastic: ranks without which the run ends")
      ->check(CLI::PositiveNumber);
  app.add_option("--restart_nproc,--restart-nproc", o.restart_nproc,
                 "ranks on this machine after a restart, if not --nproc; train_gpt needs "
                 "train.global_batch_size for it")
      ->check(CLI::PositiveNumber);
  app.add_option("--log_dir,--log-dir", o.log_dir, "folder for each rank's output");
  app.add_option("--grace", grace, "seconds that ranks have to end after SIGTERM")
      ->capture_default_str();
  app.add_flag("--check{auto}", check,
               "start no program, but find out in a minute what a run would depend on: the speed "
               "of each pair of ranks, the network, clocks, versions; --check=cpu, cuda or sim "
               "names the device");
  // As in torchrun: Kubeflow's trainer sets its options by these variables.
  for (const std::string name : {"nproc_per_node", "nnodes", "node_rank", "rdzv_endpoint",
                                 "master_addr", "master_port", "max_restarts", "log_dir"}) {
    std::string variable = "PET_" + name;
    std::ranges::transform(variable, variable.begin(), ::toupper);
    app.get_option("--" + name)->envname(variable);
  }
  // torchrun's options without meaning here: there is only one kind of rendezvous.
  std::string backend, id;
  app.add_option("--rdzv-backend,--rdzv_backend", backend)->group("");
  app.add_option("--rdzv-id,--rdzv_id", id)->group("");
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    *help = app.help();
    return std::nullopt;
  } catch (const CLI::ParseError& e) {
    throw InputError(StrCat(e.what(), "; launch --help lists the options"));
  }
  o.nproc = ReadNproc(nproc);
  if (const size_t colon = nnodes.find(':'); colon != std::string::npos) {
    const int least = ReadWhole("--nnodes", nnodes.substr(0, colon), 1);
    nnodes.erase(0, colon + 1);
    o.elastic = true;
    if (app.count("--least") == 0) o.least = least * o.nproc;
  }
  o.nnodes = ReadWhole("--nnodes", nnodes, 1);
  if (o.elastic && app.count("--max_restarts") == 0) o.max_restarts = kElasticRestarts;
  if (!endpoint.empty()) ReadEndpoint(endpoint, &o);
  if (standalone && (o.nnodes != 1 || o.master_port != 0)) {
    throw InputError(
        "--standalone is for one machine and picks the port itself: omit --nnodes, "
        "--rdzv and --master_port");
  }
  constexpr double kDay = 86400;
  if (!(grace >= 0 && grace <= kDay)) {  // nan is neither
    throw InputError(StrCat("--grace is ", grace, "; it must be seconds, from 0 to ", kDay));
  }
  o.grace = std::chrono::milliseconds(static_cast<int64_t>(grace * 1e3));
  o.command = app.remaining();
  if (!o.command.empty() && o.command[0] == "--") o.command.erase(o.command.begin());
  if (!o.command.empty() && o.command[0].starts_with("-")) {
    throw InputError(
        StrCat("there is no option ", o.command[0], "; launch --help lists the options"));
  }
  if (!check.empty()) {
    if (!o.command.empty()) {
      throw InputError(StrCat("--check starts no program: leave out ", o.command[0]));
    }
    o.command = {"launch", StrCat(kCheckRank, check)};
    o.only_rank_0_prints = true;
    o.max_restarts = 0;
    o.grace = std::min(o.grace, std::chrono::milliseconds(5000));  // there is nothing to save
  }
  return o;
}

std::optional<std::string> DeviceToCheck(const std::vector<std::string>& arguments) {
  if (arguments.size() != 1 || !arguments[0].starts_with(kCheckRank)) return std::nullopt;
  return arguments[0].substr(kCheckRank.size());
}

}  // namespace lockstep::dist
