// What most tests need, precompiled.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/bazel/standard_headers.h"
