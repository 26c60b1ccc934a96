#include "dist/failure_board.h"

#include <nlohmann/json.hpp>

namespace lockstep::dist {
namespace {

using nlohmann::json;

constexpr char kKey[] = "failure";

std::string Serialize(const Failure& f) {
  const Collective& c = f.operation;
  return json{{"cause", static_cast<int>(f.cause)},
              {"rank", f.rank},
              {"operation",
               {static_cast<int>(c.kind), static_cast<int>(c.op), static_cast<int>(c.dtype), c.root,
                c.count, c.sequence}},
              {"culprits", f.culprits},
              {"reason", f.reason}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

Failure Parse(const std::string& text, const std::string& store) {
  try {
    const json j = json::parse(text);
    Failure f;
    f.cause = static_cast<CollectiveError::Cause>(j.at("cause").get<int>());
    f.rank = j.at("rank").get<int>();
    const auto c = j.at("operation").get<std::vector<int64_t>>();
    if (c.size() != 6) throw StoreError("an operation has " + std::to_string(c.size()) + " parts");
    f.operation = {static_cast<CollectiveKind>(c[0]),
                   static_cast<ReduceOp>(c[1]),
                   static_cast<DType>(c[2]),
                   static_cast<int>(c[3]),
                   c[4],
                   c[5]};
    f.culprits = j.at("culprits").get<std::vector<int>>();
    f.reason = j.at("reason").get<std::string>();
    return f;
  } catch (const std::exception& error) {
    Failure f;
    f.reason = StrCat(store, " holds a failure that cannot be read: ", error.what());
    return f;
  }
}

}  // namespace

CollectiveError ErrorOf(const Failure& failure, const std::string& group, int rank,
                        const Collective& operation) {
  std::string what =
      StrCat("rank ", rank, ", group '", group, "', ", Describe(operation), ": ", failure.reason);
  const bool by_itself = failure.culprits == std::vector<int>{failure.rank};
  if (failure.rank != rank) {
    // Whoever gave up says so in the reason.
    if (!by_itself)
      what += StrCat(" (reported by rank ", failure.rank, " in ", Describe(failure.operation), ")");
  } else if (failure.operation != operation) {
    what += StrCat(" (in ", Describe(failure.operation), ")");
  }
  return CollectiveError(what, failure.cause, rank, operation, failure.culprits);
}

FailureBoard::FailureBoard(Store& store, int rank, std::function<void(const Failure&)> on_failure)
    : rank_(rank), on_failure_(std::move(on_failure)), post_(store.Clone()), watch_(store.Clone()) {
  Failure gone;
  gone.cause = CollectiveError::Cause::kLostRank;
  gone.rank = rank;
  gone.culprits = {rank};
  gone.reason = StrCat("rank ", rank, " is gone: its process ended");
  post_->SetWill(kKey, Serialize(gone));
  thread_ = std::thread([this] { Watch(); });
}

FailureBoard::~FailureBoard() {
  stop_ = true;
  watch_->Interrupt();
  thread_.join();
}

void FailureBoard::Leave() {
  try {
    post_->ClearWill();
  } catch (const StoreError&) {
    // Then the store is gone, and so is the will.
  }
}

Failure FailureBoard::Post(const Failure& failure) {
  try {
    return Parse(post_->SetIfAbsent(kKey, Serialize(failure)), post_->Describe());
  } catch (const StoreError& error) {
    Failure with = failure;
    with.reason += StrCat("; the other ranks could not be told: ", error.what());
    return with;
  }
}

void FailureBoard::Watch() {
  try {
    std::optional<std::string> text;
    while (!text && !stop_) text = watch_->Get(kKey, std::chrono::hours(1));
    if (text) on_failure_(Parse(*text, watch_->Describe()));
  } catch (const StoreError& error) {
    if (stop_) return;
    Failure failure;
    failure.cause = CollectiveError::Cause::kLostRank;
    failure.rank = rank_;
    failure.reason = error.what();
    on_failure_(failure);
  }
}

}  // namespace lockstep::dist
