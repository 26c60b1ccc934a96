#include "dist/world.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "dist/control/file_descriptor.h"
#include "dist/control/handshake.h"
#include "dist/control/own_address.h"
#include "dist/groups/host_group.h"
#include "dist/groups/patience.h"
#include "dist/groups/tcp_transport.h"

namespace lockstep::dist {
namespace {

std::string LaunchHint(const Rendezvous& r) {
  if (r.source == "SLURM_PROCID") return "; start the program by srun, which starts all tasks";
  return "; were all ranks started, and with the same MASTER_ADDR and MASTER_PORT?";
}

// At any port except those at which rank 0, perhaps on this machine, is yet to listen.
Socket ListenForRanks(const Rendezvous& r, const std::string& address) {
  Socket socket = Listen(address, 0);
  const int port = PortOf(socket);
  const bool is_rank_0s = port >= r.master_port && port < r.master_port + r.port_choices;
  return is_rank_0s ? ListenForRanks(r, address) : std::move(socket);  // holds the port meanwhile
}

std::string PathOfRootFile(const Rendezvous& r, int port) {
  return r.store_folder.empty() ? RootFile::PathOf(port) : r.store_folder + "/rank-0";
}

uint64_t GroupsTopic() { return TopicOf("world/groups"); }

// The run's id tells runs at neighbouring ports apart; it is easy to guess, and is no secret.
std::string WithRunId(const Rendezvous& r, const std::string& secret) {
  return r.run_id.empty() ? secret : StrCat(secret, "/", r.run_id);
}

}  // namespace

World::World(const Rendezvous& rendezvous, const WorldOptions& options) : rendezvous_(rendezvous) {
  RaiseDescriptorLimit();
  const Rendezvous& r = rendezvous_;
  ControlPlane::Options o;
  o.rank = r.rank;
  o.claim = Claim::Of(r.world_size);
  o.timeout = options.timeout;
  o.heartbeat = options.heartbeat;
  o.hint = LaunchHint(r);
  if (!r.source.empty()) o.rank_variable = r.source;
  if (size() > 1) {
    o.claim.address = ChooseAddress(r, std::chrono::steady_clock::now() + options.timeout).address;
    LS_CHECK(!r.secret.empty() || !r.store_folder.empty() || IsLoopback(o.claim.address), "rank ",
             r.rank, " at ", o.claim.address,
             " can be reached from other machines and needs a secret: set LOCKSTEP_SECRET to the "
             "same value on all ranks, for example that of `openssl rand -hex 16`");
    // First, or another of this machine's listeners could get the port.
    if (r.rank == 0) o.listeners.push_back(Serve(&o));
    o.listeners.push_back(ListenForRanks(r, o.claim.address));
    o.claim.port = PortOf(o.listeners.back());
    if (r.rank != 0) o.root = Search();
  }
  control_ = std::make_shared<ControlPlane>(std::make_shared<EventLoop>(), std::move(o));
  control_->WaitUntilOpen(options.gives_up);
  plans_ = std::make_unique<Comparison>(control_, "plans of groups", AllRanks(size()));
  control_->Answer(GroupsTopic(), [this](const std::string&) { return std::to_string(groups_); });
}

World::~World() { control_->Unsubscribe(GroupsTopic()); }

std::shared_ptr<ProcessGroup> World::Group(const GroupOptions& options) {
  return MakeGroup(AllRanks(size()), options, StrCat("'", options.name, "' of all ranks"));
}

std::shared_ptr<ProcessGroup> World::Group(const Mesh& mesh, const std::vector<std::string>& axes,
                                           GroupOptions options) {
  LS_CHECK(mesh.rank() == rank() && mesh.world_size() == size(), "the mesh is that of rank ",
           mesh.rank(), " of ", mesh.world_size(), ", but this is rank ", rank(), " of ", size(),
           ": Mesh(sizes, world.rank(), world.size())");
  std::string along;
  for (const std::string& axis : axes) along += StrCat(along.empty() ? "" : "+", axis);
  const std::string plan =
      StrCat("'", options.name, "' along ", along, " of the mesh ", mesh.Describe());
  options.name += StrCat(".", mesh.GroupName(axes));
  return MakeGroup(mesh.RanksAlong(axes), options, plan);
}

std::shared_ptr<ProcessGroup> World::MakeGroup(std::vector<int> members,
                                               const GroupOptions& options,
                                               const std::string& plan) {
  const Device device = options.device;
  LS_CHECK(device.is_cpu() || gpus_ == nullptr || gpus_->device() == device, "group '",
           options.name, "' is on ", device, ", but this rank's GPU is ", gpus_->device());
  ComparePlans(StrCat(plan, device.is_cpu() ? "" : " on GPUs"), options);
  if (device.is_cpu()) {
    auto transport = MakeTcpTransport(control_, options.name, std::move(members));
    return MakeHostGroup(std::move(transport), control_, options);
  }
  if (gpus_ == nullptr) gpus_ = MakeNcclGroups(control_, device);
  return gpus_->Make(std::move(members), options);
}

void World::ComparePlans(const std::string& plan, const GroupOptions& options) {
  const int number = ++groups_;
  Patience patience(control_, options);
  patience.Begin();
  const auto parties = plans_->Run(plan, [&] { return !control_->failure() && patience.Lasts(); });
  if (!parties) {
    Failure late{.cause = CollectiveError::Cause::kTimeout, .rank = rank()};
    const auto soon = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    const auto answers = control_->Ask(AllRanks(size()), GroupsTopic(), "", soon);
    late.culprits = answers.silent;
    for (const auto& [r, groups] : answers.by_rank) {
      if (std::atoi(groups.c_str()) < number) late.culprits.push_back(r);
    }
    std::sort(late.culprits.begin(), late.culprits.end());
    late.reason =
        StrCat(late.culprits.empty() ? "some ranks" : ListRanks(late.culprits),
               " did not make the group ", plan, " within ", options.timeout.count() / 1000,
               " s, as others do: all ranks must call World::Group", SilenceClause(answers.silent),
               patience.PauseClause());
    throw ConnectionError(control_->Fail(late).reason);  // or what failed before
  }
  if (parties->size() == 1) return;
  std::string what;
  for (const Party& party : *parties) {
    what += StrCat(what.empty() ? "" : "; ", ListRanks(party.ranks), ": ", party.text);
  }
  throw ArgumentError(StrCat("the ranks make different groups (", what,
                             "): all ranks must make the same groups in the same order"));
}

// Rank 0 listens where the others look for it.
Socket World::Serve(ControlPlane::Options* o) {
  const Rendezvous& r = rendezvous_;
  const bool in_folder = !r.store_folder.empty();
  const int choices = in_folder ? 1 : r.port_choices;
  std::string address = r.master_addr;
  if (IsElsewhereToOthers(r)) {  // on all interfaces: others reach this machine at another address
    address = o->claim.address.find(':') == std::string::npos ? "0.0.0.0" : "::";
  }
  Socket listener;
  for (int choice = 0; listener.fd() < 0; ++choice) {
    try {
      listener = Listen(address, in_folder ? 0 : r.master_port + choice);
    } catch (const NoDescriptorsError&) {
      throw;
    } catch (const ConnectionError&) {
      if (choice + 1 == choices) throw;
    }
  }
  RootAddress root{NumericAddress(r.master_addr), PortOf(listener), r.secret};
  if (root.secret.empty()) root.secret = handshake::RandomSecret();
  if (in_folder) std::filesystem::create_directories(r.store_folder);
  if (in_folder || r.secret.empty()) {
    root_file_ = std::make_unique<RootFile>(PathOfRootFile(r, root.port), root);
  }
  root.secret = WithRunId(r, root.secret);
  o->root = [root] { return root; };
  return listener;
}

// How the others find it.
std::function<RootAddress()> World::Search() const {
  const Rendezvous& r = rendezvous_;
  if (!r.store_folder.empty()) {
    return [r] {
      RootAddress root = RootFile::Read(PathOfRootFile(r, 0));
      root.secret = WithRunId(r, root.secret);
      return root;
    };
  }
  return [r, next = 0]() mutable {
    // Other programs may listen on some of the ports.
    const int port = r.master_port + next++ % r.port_choices;
    RootAddress root{NumericAddress(r.master_addr), port, r.secret,
                     /*uncertain=*/r.port_choices > 1};
    if (r.secret.empty()) root = RootFile::Read(PathOfRootFile(r, port));
    root.secret = WithRunId(r, root.secret);
    return root;
  };
}

}  // namespace lockstep::dist
