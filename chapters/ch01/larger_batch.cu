// SPDX-License-Identifier: Apache-2.0
// A bf16 linear layer does one FLOP per weight byte for each row of its batch. 8192 rows that pass in batches of 32 read the
// weights, twice what L2 holds, 256 times, and the math waits for them. Larger batches share each read among more rows; past the
// ridge, near batch 165, the tensor cores set the pace, and what is left to gain is tiles that fill the GPU.
#include <cuda_bf16.h>
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include <algorithm>

namespace aisp::ch01 {
namespace {

using bf16 = __nv_bfloat16;
constexpr std::size_t in_features = 4096, out_features = 14336;
constexpr std::size_t all_rows = 8192, small_batch = 32;

class LargerBatch final : public Workload {
 public:
  explicit LargerBatch(Setup& setup)
      : rows_{setup.scaled(all_rows, small_batch)},
        x_{setup.input<bf16>(rows_ * in_features, uniform(-1, 1), {.name = "rows"})},
        w_{setup.input<bf16>(in_features * out_features, uniform(-1, 1), {.name = "weights"})},
        y_{setup.output<bf16>(rows_ * out_features, {.name = "results"})},
        cublas_{setup} {}

  Cost cost() const override {
    return {.flops = 2.0 * static_cast<double>(rows_) * in_features * out_features,
            .math = Math::bf16,
            .bytes = static_cast<double>(x_.bytes() + w_.bytes() + y_.bytes())};
  }
  double expected(std::size_t index) const override {
    const std::size_t row = index / out_features, column = index % out_features;
    double sum = 0;
    for (std::size_t k = 0; k < in_features; ++k) sum += x_.host(row * in_features + k) * w_.host(k * out_features + column);
    return sum;
  }

  template <std::size_t batch>
  void batches(Launch& launch) {
    for (std::size_t first = 0; first < rows_; first += batch) {
      const auto rows = static_cast<int>(std::min(batch, rows_ - first));
      cublas_->gemm(launch.stream, rows, out_features, in_features, x_ + first * in_features, w_, y_ + first * out_features,
                    CUDA_R_16BF);
    }
  }

 private:
  std::size_t rows_;
  Input<bf16> x_, w_;
  Output<bf16> y_;
  Opened<Cublas> cublas_;
};

template <std::size_t batch>
constexpr Variant in_batches(std::string_view name) {
  return {.name = name, .run = call<&LargerBatch::batches<batch>>};
}

}  // namespace

extern constinit const Pair larger_batch{
    .teaches = "a layer does one FLOP per weight byte and row of its batch, so one read of the weights should serve many rows",
    .lesson = "batch_256",  // the first beyond the ridge
    .make = make<LargerBatch>,
    .baseline = in_batches<small_batch>("batch_32"),
    // The whole sweep, so that the report shows where the ridge lies.
    .optimized = variants({in_batches<64>("batch_64"), in_batches<128>("batch_128"), in_batches<256>("batch_256"),
                           in_batches<512>("batch_512"), in_batches<2048>("batch_2048"), in_batches<all_rows>("batch_8192")}),
    .bound = Bound::compute,  // past the ridge, where the lesson ends; the baseline is bound by memory
    .needs = {.libraries = {Library::cublas}},
};

}  // namespace aisp::ch01
