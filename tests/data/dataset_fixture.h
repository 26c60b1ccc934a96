// What tests of data sets share.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "core/error.h"
#include "data/dataset.h"
#include "data/tokenizer/tokenizer.h"
#include "tests/data/data_test_util.h"

namespace lockstep::data {

inline std::string Text(const Dataset& dataset, const TokenSource& source) {
  return dataset.tokenizer->Decode(All(source));
}

inline std::string OpenError(const DatasetOptions& options) {
  return MessageOf<Error>([&] { OpenDataset(options); });
}

inline std::vector<int32_t> DocumentStarts(const TokenSource& source) {
  std::vector<int32_t> starts(source.size());
  source.ReadDocumentStarts(0, starts);
  return starts;
}

inline std::vector<int32_t> OnesAt(int64_t size, std::initializer_list<int64_t> positions) {
  std::vector<int32_t> ones(size);
  for (const int64_t position : positions) ones[position] = 1;
  return ones;
}

class DatasetTest : public testing::Test {
 protected:
  const std::string folder_ = TestFolder();
  const std::string path_ = folder_ + "/text.txt";
  DatasetOptions options_ = {.path = path_};
};

}  // namespace lockstep::data
