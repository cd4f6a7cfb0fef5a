// SPDX-License-Identifier: Apache-2.0
// Rows divided by their root mean square. Step by step, as array libraries compute it, the squares go to memory and come back;
// fused, a row is read and stays in the cache until it is written. Stored as bf16, the input is half as long.
#include <cuda_bf16.h>
#include <aisp/pair.hpp>

#include <cmath>

namespace aisp::sums {
namespace {

using bf16 = __nv_bfloat16;

class RmsNorm final : public Workload {
 public:
  explicit RmsNorm(Setup& setup)
      : rows_{setup.size("rows")},
        columns_{setup.size("columns")},
        // Constant: what the variants make of it in `prepare` must still be true in every run.
        in_{setup.input<float>(rows_ * columns_, normal(0, 1), {.name = "in", .constant = true})},
        squares_{setup.scratch<float>(rows_ * columns_)},
        stored_{setup.scratch<bf16>(rows_ * columns_)},
        out_{setup.output<float>(rows_ * columns_, {.name = "normalized"})},
        rms_{setup.output<float>(rows_, {.name = "root mean squares"})},
        team_{setup.threads(setup.cpus())} {}

  Cost cost() const override { return cost_of(sizeof(float)); }
  Cost variant_cost(std::string_view variant) const override {
    return cost_of(variant == "bf16_storage" ? sizeof(bf16) : sizeof(float));
  }
  // Outputs are counted in the order of their declaration.
  double expected_output(int output, std::size_t i) const override {
    return reference(output, i, [&](std::size_t k) { return in_.host(k); });
  }
  double expected_quantized(std::string_view, int output, std::size_t i) const override {
    return reference(output, i, [&](std::size_t k) { return static_cast<double>(rounded(static_cast<float>(in_.host(k)))); });
  }

  void step_by_step(Launch&) {
    for (std::size_t i = 0; i < rows_ * columns_; ++i) squares_[i] = in_[i] * in_[i];
    for (std::size_t row = 0; row < rows_; ++row) rms_[row] = root_of_mean(squares_ + row * columns_, [](float x) { return x; });
    for (std::size_t i = 0; i < rows_ * columns_; ++i) out_[i] = in_[i] / rms_[i / columns_];
  }
  void fused(Launch&) { normalize(in_.get(), 0, rows_); }
  void threads(Launch&) {
    const auto workers = static_cast<std::size_t>(team_.size());
    team_.run([&](int worker) {
      const auto w = static_cast<std::size_t>(worker);
      normalize(in_.get(), rows_ * w / workers, rows_ * (w + 1) / workers);
    });
  }
  void store_as_bf16(Launch&) {
    for (std::size_t i = 0; i < rows_ * columns_; ++i) stored_[i] = __float2bfloat16_rn(in_[i]);
  }
  void bf16_storage(Launch&) { normalize(stored_.get(), 0, rows_); }

 private:
  static float rounded(float x) { return __bfloat162float(__float2bfloat16_rn(x)); }

  Cost cost_of(std::size_t element_bytes) const {
    return {.host_bytes = static_cast<double>(in_.size() * element_bytes + out_.bytes() + rms_.bytes())};
  }
  template <class Value>
  double reference(int output, std::size_t i, Value value) const {
    const std::size_t row = output == 0 ? i / columns_ : i;
    double sum = 0;
    for (std::size_t k = row * columns_; k < (row + 1) * columns_; ++k) sum += value(k) * value(k);
    const double rms = std::sqrt(sum / static_cast<double>(columns_));
    return output == 0 ? value(i) / rms : rms;
  }
  template <class T, class Term>
  float root_of_mean(const T* row, Term term) const {
    float sums[8] = {};
    for (std::size_t c = 0; c < columns_; c += 8)
      for (std::size_t k = 0; k < 8; ++k) sums[k] += term(row[c + k]);
    float sum = 0;
    for (const float part : sums) sum += part;
    return std::sqrt(sum / static_cast<float>(columns_));
  }
  template <class T>
  void normalize(const T* in, std::size_t first, std::size_t last) {
    for (std::size_t row = first; row < last; ++row) {
      const T* const from = in + row * columns_;
      const float rms = root_of_mean(from, [](T x) { return static_cast<float>(x) * static_cast<float>(x); });
      for (std::size_t c = 0; c < columns_; ++c) out_[row * columns_ + c] = static_cast<float>(from[c]) / rms;
      rms_[row] = rms;
    }
  }

  std::size_t rows_, columns_;
  Input<float> in_;
  Scratch<float> squares_;
  Scratch<bf16> stored_;
  Output<float> out_, rms_;
  ThreadTeam& team_;
};

}  // namespace

extern constinit const Pair rms_norm{
    .teaches = "arrays between two steps cost more than the steps, and half the bytes cost half as much",
    .lesson = "fused",
    .make = make<RmsNorm>,
    .baseline = {.name = "step_by_step", .run = call<&RmsNorm::step_by_step>},
    .optimized = variants({{.name = "fused", .run = call<&RmsNorm::fused>},
                           {.name = "threads", .run = call<&RmsNorm::threads>, .needs = {.cpus = 2}, .same_bits_as = "fused"},
                           {.name = "bf16_storage",
                            .run = call<&RmsNorm::bf16_storage>,
                            .prepare = call<&RmsNorm::store_as_bf16>,
                            .changes_precision = true}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = reduction_of(8192),  // the longest row of the sweep
    .overrides = {.iterations = 10, .measurement_seconds = 30},
    .sizes = sizes({{.name = "rows", .full = 2048}, {.name = "columns", .full = 2048, .multiple = 8}}),
    .sweep = cases({{"short_rows", "rows=8192,columns=512"}, {"long_rows", "rows=512,columns=8192"}}),
    .edges = cases({{"one_row", "rows=1"}, {"narrow", "rows=3,columns=8"}}),  // verified, not timed
};

}  // namespace aisp::sums
