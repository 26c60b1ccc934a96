// The data of train_digits and train_cnn: digits that are drawn, in place of MNIST.
#pragma once

#include "lockstep/lockstep.h"

namespace lockstep::examples {

// The seven segments: a rectangle each, in units of the digit's size, [top, left, bottom, right].
inline constexpr float kSegments[7][4] = {{0, 0, 0, 1},      {0, 1, 0.5f, 1}, {0.5f, 1, 1, 1},
                                          {1, 0, 1, 1},      {0.5f, 0, 1, 0}, {0, 0, 0.5f, 0},
                                          {0.5f, 0, 0.5f, 1}};
inline constexpr int kLit[10] = {0x3f, 0x06, 0x5b, 0x4f, 0x66, 0x6d, 0x7d, 0x07, 0x7f, 0x6f};

// A digit in the style of pocket calculators, of varying size and brightness, around the middle, in
// noise: f32 [size, size].
inline void Draw(int64_t digit, int64_t size, const Philox& random, uint64_t stream, float* image) {
  const auto uniform = [&](uint64_t i) { return ToUniform(random.At(stream, i)); };
  // Below `end`, at random.
  const auto below = [&](int64_t end, uint64_t i) {
    return static_cast<int64_t>(static_cast<float>(end) * uniform(i));
  };
  const int64_t height = size / 2 + below(size * 5 / 16, 0), width = size / 4 + below(size / 4, 1);
  const int64_t shift = size / 8, stroke = size / 14;
  const int64_t top = (size - height) / 2 - shift + below(2 * shift + 1, 2);
  const int64_t left = (size - width) / 2 - shift + below(2 * shift + 1, 3);
  const float ink = 0.5f + 0.5f * uniform(4);
  for (int64_t i = 0; i < size * size; ++i) image[i] = 0.5f * uniform(10 + i);
  for (int s = 0; s < 7; ++s) {
    if (!(kLit[digit] >> s & 1)) continue;
    const auto at = [](int64_t from, int64_t length, float share) {
      return from + static_cast<int64_t>(static_cast<float>(length - 1) * share);
    };
    const float* box = kSegments[s];
    for (int64_t y = at(top, height, box[0]); y < at(top, height, box[2]) + stroke; ++y) {
      for (int64_t x = at(left, width, box[1]); x < at(left, width, box[3]) + stroke; ++x) {
        image[y * size + x] += ink;
      }
    }
  }
}

struct Digits {
  Tensor images;  // f32 [n, 1, size, size], of mean 0 and variance 1
  Tensor labels;  // i64 [n]: which digits they are

  Digits(int64_t n, int64_t size, uint64_t seed)
      : images(Tensor::Empty({n, 1, size, size}, DType::kF32)),
        labels(ops::RandInt(0, 10, {n}, seed)) {
    for (int64_t i = 0; i < n; ++i) {
      Draw(labels.data<int64_t>()[i], size, Philox(seed), 1 + i,
           images.data<float>() + i * size * size);
    }
    images = (images - ops::Mean(images)) / ops::Std(images);
  }
};

}  // namespace lockstep::examples
