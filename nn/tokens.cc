#include "nn/tokens.h"

#include <utility>

namespace lockstep::nn {
namespace {

thread_local const TokenScope* current_scope = nullptr;

}  // namespace

TokenScope::TokenScope(const Tensor& ids)
    : ids_(ids), previous_(std::exchange(current_scope, this)) {}

TokenScope::~TokenScope() { current_scope = previous_; }

Tensor CurrentTokens() { return current_scope == nullptr ? Tensor() : current_scope->ids_; }

}  // namespace lockstep::nn
