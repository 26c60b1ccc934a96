// A key-value store that all ranks share: how they find each other, and how they learn that one of
// them has failed.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/error.h"

namespace lockstep::dist {

// The store cannot be reached, refuses a request, or was interrupted.
class StoreError : public Error {
 public:
  using Error::Error;
};

// The key of a rank's value of a kind: "calls/3".
inline std::string RankKey(const char* kind, int rank) { return StrCat(kind, "/", rank); }

// A map from keys to values that all ranks share. Keys stay until they are deleted, so code that
// keeps setting keys must delete or overwrite them. Thread-safe, but a handle does one thing at a
// time: a thread that waits long needs its own (Clone).
class Store {
 public:
  static constexpr size_t kMaxKey = 1024;           // bytes
  static constexpr size_t kMaxValue = 1024 * 1024;  // bytes
  using Milliseconds = std::chrono::milliseconds;

  virtual ~Store() = default;

  // Overwrites.
  virtual void Set(const std::string& key, const std::string& value) = 0;
  // Writes only if the key is not set; returns the value that the key then has.
  virtual std::string SetIfAbsent(const std::string& key, const std::string& value) = 0;
  // Waits until the key exists; nullopt after the timeout (0: does not wait).
  virtual std::optional<std::string> Get(const std::string& key, Milliseconds timeout) = 0;
  // Adds to a number that starts at 0, and returns the sum. Of the other calls only Delete may use
  // such keys.
  virtual int64_t Add(const std::string& key, int64_t delta) = 0;
  // Removes the key of either kind; does nothing if there is none.
  virtual void Delete(const std::string& key) = 0;
  // The size of all that the store now holds.
  virtual int64_t Bytes() = 0;

  // Makes the store do SetIfAbsent(key, value) when this handle's connection ends, unless ClearWill
  // is called first, so that others learn of a process that ended in any way. One will per handle.
  // Stores without connections ignore it.
  void SetWill(const std::string& key, const std::string& value) { SetWill(key, value, "", {}); }
  // If `silence` is not 0, the store also sets the key, to `silent_value`, when this handle has
  // called nothing for that long; and this handle's calls wait no longer than that for the store to
  // answer.
  virtual void SetWill(const std::string& /*key*/, const std::string& /*value*/,
                       const std::string& /*silent_value*/, Milliseconds /*silence*/) {}
  virtual void ClearWill() {}
  // The rank whose process serves the store, if any.
  virtual std::optional<int> ServedBy() const { return std::nullopt; }

  // Another handle on the same store.
  virtual std::unique_ptr<Store> Clone() = 0;
  // This handle's calls throw StoreError from now on, including those in progress in other threads.
  virtual void Interrupt() = 0;
  // "the store at 127.0.0.1:29500, served by rank 0"
  virtual std::string Describe() const = 0;

 protected:
  // Throw ArgumentError for sizes out of bounds.
  static void CheckKey(const std::string& key);
  static void CheckValue(const std::string& key, const std::string& value);
};

// The same store, with a prefix before each key.
class PrefixStore : public Store {
 public:
  PrefixStore(std::unique_ptr<Store> store, std::string prefix)
      : store_(std::move(store)), prefix_(std::move(prefix)) {}

  void Set(const std::string& key, const std::string& value) override {
    store_->Set(prefix_ + key, value);
  }
  std::string SetIfAbsent(const std::string& key, const std::string& value) override {
    return store_->SetIfAbsent(prefix_ + key, value);
  }
  std::optional<std::string> Get(const std::string& key, Milliseconds timeout) override {
    return store_->Get(prefix_ + key, timeout);
  }
  int64_t Add(const std::string& key, int64_t delta) override {
    return store_->Add(prefix_ + key, delta);
  }
  void Delete(const std::string& key) override { store_->Delete(prefix_ + key); }
  int64_t Bytes() override { return store_->Bytes(); }
  using Store::SetWill;
  void SetWill(const std::string& key, const std::string& value, const std::string& silent_value,
               Milliseconds silence) override {
    store_->SetWill(prefix_ + key, value, silent_value, silence);
  }
  void ClearWill() override { store_->ClearWill(); }
  std::optional<int> ServedBy() const override { return store_->ServedBy(); }
  std::unique_ptr<Store> Clone() override {
    return std::make_unique<PrefixStore>(store_->Clone(), prefix_);
  }
  void Interrupt() override { store_->Interrupt(); }
  std::string Describe() const override { return store_->Describe(); }

 private:
  std::unique_ptr<Store> store_;
  std::string prefix_;
};

}  // namespace lockstep::dist
