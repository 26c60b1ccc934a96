// Shared by the tests of data.
#pragma once

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "data/token_source.h"
#include "tests/message_of.h"

namespace lockstep::data {

using test::MessageOf;

// An empty folder for the running test.
std::string TestFolder();

void WriteText(const std::string& path, std::string_view contents);

// A file of tests/data/testdata.
std::string TestData(const std::string& name);

// Finds a file outside of Lockstep that some tests use if it exists: in $LOCKSTEP_TEST_DATA, then
// in shared/data beside the workspace or beside a folder above it.
std::optional<std::string> SharedData(const std::string& name);

// Runs f in a child process; returns by how many KiB its resident memory grew at most.
int64_t GrowthKib(const std::function<void()>& f);
// Matches a growth below `kib`. A sanitizer's shadow and the freed memory that it keeps count, too:
// with one, f need only have returned.
testing::Matcher<int64_t> GrewLessThan(int64_t kib);

std::vector<int32_t> All(const TokenSource& source);
std::vector<int32_t> RandomIds(std::mt19937* random, int64_t count, int32_t limit);

}  // namespace lockstep::data
