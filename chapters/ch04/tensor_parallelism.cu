// SPDX-License-Identifier: Apache-2.0
// A transformer's MLP, Y = W2 GELU(W1 X), on several GPUs that have a part of both weights each. If each layer is split by its
// outputs and made whole again, the wide activations between the layers cross the links. Split by outputs first and then by
// inputs (Megatron-LM: Shoeybi et al., 2019), a GPU's part of the activations is all that its part of W2 needs, and only the sums
// of Y are left to be added up; in chunks, while the next chunk is multiplied. Activations lie feature by feature.
#include <cuda_bf16.h>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/libraries/nccl.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "copied_sums.cuh"
#include "equal_copies.cuh"
#include "float64.hpp"
#include "gpus.hpp"
#include "products.hpp"

namespace aisp::ch04 {
namespace {

using bf16 = __nv_bfloat16;

struct Mlp {
  std::size_t width, hidden, tokens, gpus, chunks;
};

// The side of one GPU: its rows of W1, all of W2, of which it multiplies a part, activations and products.
struct Shard {
  Shard(Setup& setup, int gpu, int ordinal, const Mlp& mlp)
      : w1{setup.input<bf16>(mlp.hidden / mlp.gpus * mlp.width, normal(0, 1 / std::sqrt(static_cast<float>(mlp.width))),
                             {.name = "rows of w1", .device = gpu})},
        w1_of_all{setup.scratch<bf16>(mlp.hidden * mlp.width, {.name = "w1", .device = gpu})},
        w2{setup.scratch<bf16>(mlp.width * mlp.hidden, {.name = "w2", .device = gpu})},
        w2_columns{setup.scratch<bf16>(mlp.width * mlp.hidden / mlp.gpus, {.name = "columns of w2", .device = gpu})},
        x{setup.scratch<bf16>(mlp.width * mlp.tokens, {.name = "copy of x", .device = gpu})},
        x_of_some{setup.scratch<bf16>(mlp.width * mlp.tokens / mlp.gpus, {.name = "x of some tokens", .device = gpu})},
        h{setup.scratch<bf16>(mlp.hidden * mlp.tokens, {.name = "hidden activations", .device = gpu})},
        y{setup.output<bf16>(mlp.width * mlp.tokens, {.name = "y", .device = gpu})},
        lt{setup, ordinal},
        up{setup, lt, product(mlp.hidden / mlp.gpus, mlp.tokens, mlp.width, CUBLASLT_EPILOGUE_GELU)},
        down_to_some{setup, lt, product(mlp.width / mlp.gpus, mlp.tokens, mlp.hidden)},
        down_of_some{setup, lt, product(mlp.width, mlp.tokens, mlp.hidden / mlp.gpus)},
        down_chunk{setup, lt, product(mlp.width / mlp.chunks, mlp.tokens, mlp.hidden / mlp.gpus)},
        up_all{setup, lt, product(mlp.hidden, mlp.tokens / mlp.gpus, mlp.width, CUBLASLT_EPILOGUE_GELU)},
        down_all{setup, lt, product(mlp.width, mlp.tokens / mlp.gpus, mlp.hidden)} {}

  static MatmulProblem product(std::size_t m, std::size_t n, std::size_t k,
                               cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT) {
    return {.m = m, .n = n, .k = k, .epilogue = epilogue};
  }

  Input<bf16> w1;
  Scratch<bf16> w1_of_all, w2, w2_columns, x, x_of_some, h;
  Output<bf16> y;
  Opened<OnGpu<CublasLt>> lt;
  Opened<MatmulPlan> up, down_to_some, down_of_some, down_chunk, up_all, down_all;
};

class TensorParallelism final : public Workload {
 public:
  explicit TensorParallelism(Setup& setup)
      : gpus_{setup},
        mlp_{float64::size_of(setup, "width", 320), float64::size_of(setup, "hidden", 448),
             float64::size_of(setup, "tokens", 256), static_cast<std::size_t>(gpus_.count()), setup.size("chunks")},
        part_{mlp_.hidden / mlp_.gpus},
        x_{setup.input<bf16>(mlp_.width * mlp_.tokens, normal(0, 1), {.name = "x", .constant = true})},
        w2_{setup.input<bf16>(mlp_.width * mlp_.hidden, normal(0, 1 / std::sqrt(static_cast<float>(mlp_.hidden))),
                              {.name = "w2", .constant = true})},
        copied_sums_{setup, gpus_, mlp_.width / mlp_.chunks * mlp_.tokens},
        nccl_{setup, gpus_.ordinals(), gpus_.count()},
        reproducible_{setup.reproducible()} {
    for (const std::size_t extent : {mlp_.hidden, mlp_.width, mlp_.tokens})
      if (extent % (8 * mlp_.gpus) != 0) throw Unsupported{"sizes must be multiples of 8 on each of the GPUs"};
    if (mlp_.width % (8 * mlp_.chunks) != 0) throw Unsupported{"the width must be a multiple of 8 in each chunk"};
    for (int gpu = 0; gpu < gpus_.count(); ++gpu) {
      shards_.add(std::make_unique<Shard>(setup, gpu, gpus_.ordinal(gpu), mlp_));
      links_.push_back(setup.stream(gpu, true));
    }
  }

  Cost cost() const override {
    const auto size = [](std::size_t count) { return static_cast<double>(count); };
    const double y_bytes = size(mlp_.width * mlp_.tokens * sizeof(bf16));
    return {.flops = 2 * 2 * size(mlp_.width * mlp_.hidden) * size(mlp_.tokens) / size(mlp_.gpus),
            .math = Math::bf16,
            .bytes = 2 * y_bytes + size(shards_[0]->w1.bytes()) + size(w2_.bytes()) / size(mlp_.gpus),
            .peer_bytes = y_bytes * 2 * (size(mlp_.gpus) - 1) / size(mlp_.gpus)};
  }

  void compute_reference(Launch&) override {
    const auto& [width, hidden, tokens, gpus, chunks] = mlp_;
    float64::Matrix w1;
    for (const auto& shard : shards_) {
      const float64::Matrix rows = float64::values(shard->w1, 0, shard->w1.size());
      w1.insert(w1.end(), rows.begin(), rows.end());
    }
    float64::Matrix h = float64::product(w1, float64::values(x_, 0, x_.size()), hidden, tokens, width);
    for (double& v : h) v = 0.5 * v * (1 + std::tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)));
    y_ = float64::product(float64::values(w2_, 0, w2_.size()), h, width, tokens, hidden);
  }
  double expected_output(int, std::size_t index) const override { return y_[index]; }
  void validate(std::string_view variant) override {
    if (variant != "tokens_split") demand_equal_copies(gpus_, y(), mlp_.width * mlp_.tokens * sizeof(bf16));
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("tokens_per_second", static_cast<double>(mlp_.tokens), "tokens/s");
  }

  void prepare_gathered(Launch& launch) {
    prepare(launch,
            [&](const Shard& shard, cudaStream_t stream) { shard.down_to_some->tune(stream, shard.w2, shard.h, shard.y); });
  }
  void prepare_column_row(Launch& launch) {
    prepare(launch, [&](const Shard& shard, cudaStream_t stream) {
      shard.down_of_some->tune(stream, shard.w2_columns, shard.h, shard.y);
    });
  }
  void prepare_chunks(Launch& launch) {
    prepare(launch,
            [&](const Shard& shard, cudaStream_t stream) { shard.down_chunk->tune(stream, shard.w2_columns, shard.h, shard.y); });
  }
  void prepare_tokens(Launch& launch) {
    prepare(launch, [&](const Shard& shard, cudaStream_t stream) {
      shard.up_all->tune(stream, shard.w1_of_all, shard.x_of_some, shard.h);
      shard.down_all->tune(stream, shard.w2, shard.h, shard.y);
    });
  }

  // Splits each layer by its outputs, and makes them whole.
  void gather_each_layer(Launch& launch) {
    up(launch);
    gather(launch, part_, [](const Shard& shard) { return shard.h.get(); });
    const std::size_t rows = mlp_.width / mlp_.gpus;
    on_each([&](int gpu, const Shard& shard) {
      const std::size_t first = static_cast<std::size_t>(gpu) * rows;
      shard.down_to_some->run(launch.streams[gpu], shard.w2 + first * mlp_.hidden, shard.h, shard.y + first * mlp_.tokens);
    });
    gather(launch, rows, [](const Shard& shard) { return shard.y.get(); });
  }
  void column_row(Launch& launch) {
    up(launch);
    on_each([&](int gpu, const Shard& shard) {
      shard.down_of_some->run(launch.streams[gpu], shard.w2_columns, own_part(gpu), shard.y);
    });
    reduce(0, mlp_.width, launch.streams);
  }
  void chunked_nccl(Launch& launch) {
    in_chunks(launch, [&](std::size_t first, std::size_t rows) { reduce(first, rows, links_); });
  }
  void chunked_overlap(Launch& launch) {
    in_chunks(launch, [&](std::size_t first, std::size_t rows) { copied_sums_.sum(y(first), rows * mlp_.tokens, links_); });
  }
  // Exchanges nothing: each GPU has whole weights and its own tokens.
  void tokens_split(Launch& launch) {
    on_each([&](int gpu, const Shard& shard) {
      shard.up_all->run(launch.streams[gpu], shard.w1_of_all, shard.x_of_some, shard.h);
      shard.down_all->run(launch.streams[gpu], shard.w2, shard.h, shard.y);
    });
  }

 private:
  OnGpus<bf16> y(std::size_t first_row = 0) const {
    OnGpus<bf16> result{};
    for (int gpu = 0; gpu < gpus_.count(); ++gpu) result.at[gpu] = shards_[gpu]->y + first_row * mlp_.tokens;
    return result;
  }
  // Returns the place of the GPU's part among all hidden activations.
  bf16* own_part(int gpu) const { return shards_[gpu]->h + static_cast<std::size_t>(gpu) * part_ * mlp_.tokens; }

  template <class Queue>
  void on_each(const Queue& queue) const {
    for (int gpu = 0; gpu < gpus_.count(); ++gpu) {
      const SelectedGpu selected{gpus_.ordinal(gpu)};
      queue(gpu, *shards_[gpu]);
    }
  }
  // Copies weights and x to all GPUs, as they lie there before a layer begins.
  template <class Tune>
  void prepare(Launch& launch, const Tune& tune) const {
    const auto copy = [](bf16* to, const bf16* from, std::size_t pitch, std::size_t columns, std::size_t rows,
                         cudaStream_t stream) {
      check(cudaMemcpy2DAsync(to, columns * sizeof(bf16), from, pitch * sizeof(bf16), columns * sizeof(bf16), rows,
                              cudaMemcpyDefault, stream));
    };
    on_each([&](int gpu, const Shard& shard) {
      const auto [width, hidden, tokens, gpus, chunks] = mlp_;
      const std::size_t g = static_cast<std::size_t>(gpu), some = tokens / gpus;
      gpus_.order(0, launch.stream, launch.streams[gpu]);
      for (std::size_t of = 0; of < gpus; ++of)
        copy(shard.w1_of_all + of * part_ * width, shards_[static_cast<int>(of)]->w1, width, width, part_, launch.streams[gpu]);
      copy(shard.w2, w2_, hidden, hidden, width, launch.streams[gpu]);
      copy(shard.w2_columns, w2_ + g * part_, hidden, part_, width, launch.streams[gpu]);
      copy(shard.x, x_, tokens, tokens, width, launch.streams[gpu]);
      copy(shard.x_of_some, x_ + g * some, tokens, some, width, launch.streams[gpu]);
      if (reproducible_) return;
      shard.up->tune(launch.streams[gpu], shard.w1, shard.x, shard.h);
      tune(shard, launch.streams[gpu]);
    });
  }

  void up(Launch& launch) const {
    on_each([&](int gpu, const Shard& shard) { shard.up->run(launch.streams[gpu], shard.w1, shard.x, own_part(gpu)); });
  }
  // Sends each GPU's part, of so many rows, to all others.
  template <class Where>
  void gather(Launch& launch, std::size_t rows, const Where& where) const {
    const std::size_t count = rows * mlp_.tokens;
    nccl_->together([&] {
      on_each([&](int gpu, const Shard& shard) {
        bf16* const all = where(shard);
        nccl_->all_gather(gpu, all + static_cast<std::size_t>(gpu) * count, all, count, nccl::Type::bf16, launch.streams[gpu]);
      });
    });
  }
  void reduce(std::size_t first_row, std::size_t rows, Streams streams) const {
    const OnGpus<bf16> partial = y(first_row);
    nccl_->together([&] {
      for (int gpu = 0; gpu < gpus_.count(); ++gpu)
        nccl_->all_reduce(gpu, partial.at[gpu], partial.at[gpu], rows * mlp_.tokens, nccl::Type::bf16, streams[gpu]);
    });
  }
  // Calls reduce_rows(first, rows) for each chunk, for which the links' streams wait by then.
  template <class Reduce>
  void in_chunks(Launch& launch, const Reduce& reduce_rows) const {
    const std::size_t rows = mlp_.width / mlp_.chunks;
    up(launch);
    for (std::size_t first = 0; first < mlp_.width; first += rows) {
      on_each([&](int gpu, const Shard& shard) {
        shard.down_chunk->run(launch.streams[gpu], shard.w2_columns + first * part_, own_part(gpu),
                              shard.y + first * mlp_.tokens);
        gpus_.order(gpu, launch.streams[gpu], links_[static_cast<std::size_t>(gpu)]);
      });
      reduce_rows(first, rows);
    }
    for (int gpu = 0; gpu < gpus_.count(); ++gpu) gpus_.order(gpu, links_[static_cast<std::size_t>(gpu)], launch.streams[gpu]);
  }

  Gpus gpus_;
  Mlp mlp_;
  std::size_t part_;  // of the hidden features
  Input<bf16> x_, w2_;
  CopiedSums copied_sums_;
  Opened<Nccl> nccl_;
  bool reproducible_;
  Each<std::unique_ptr<Shard>> shards_;
  std::vector<cudaStream_t> links_;
  float64::Matrix y_;
};

constexpr Needs both{.libraries = {Library::cublaslt, Library::nccl}}, cublaslt{.libraries = {Library::cublaslt}};

}  // namespace

extern constinit const Pair tensor_parallelism{
    .teaches =
        "the first weight split by outputs and the second by inputs leave one sum per MLP to exchange, not two activations",
    .lesson = "column_row",
    .make = make<TensorParallelism>,
    .baseline = {.name = "gather_each_layer",
                 .run = call<&TensorParallelism::gather_each_layer>,
                 .prepare = call<&TensorParallelism::prepare_gathered>,
                 .needs = both},
    .optimized = variants({{.name = "column_row",
                            .run = call<&TensorParallelism::column_row>,
                            .prepare = call<&TensorParallelism::prepare_column_row>,
                            .needs = both},
                           {.name = "chunked_nccl",
                            .run = call<&TensorParallelism::chunked_nccl>,
                            .prepare = call<&TensorParallelism::prepare_chunks>,
                            .needs = both},
                           {.name = "chunked_overlap",
                            .run = call<&TensorParallelism::chunked_overlap>,
                            .prepare = call<&TensorParallelism::prepare_chunks>,
                            .needs = cublaslt,
                            .gains_over = "column_row"}}),
    .controls = variants({{.name = "tokens_split",
                           .run = call<&TensorParallelism::tokens_split>,
                           .prepare = call<&TensorParallelism::prepare_tokens>,
                           .needs = cublaslt,
                           .outputs = no_outputs}}),
    .bound = Bound::compute,
    // Hidden activations, partial sums and their sum are rounded to bf16, by 1.6e-3 each.
    .tolerance = within(5e-3),
    .needs = {.gpus = 2, .peer_access = true},
    .verification = Verification::small_shape,
    .timeline = true,
    .sizes = sizes({{.name = "tokens", .full = 8192, .multiple = 64},
                    {.name = "width", .full = 4096, .multiple = 64, .most = 8192, .scales = false},
                    {.name = "hidden", .full = 14336, .multiple = 64, .scales = false},
                    {.name = "chunks", .full = 4, .most = 8, .scales = false}}),
    .sweep = cases({{"chunks_1", "chunks=1"},
                    {"chunks_2", "chunks=2"},
                    {"chunks_4", "chunks=4"},
                    {"chunks_8", "chunks=8"},
                    {"tokens_512", "tokens=512"},
                    {"tokens_2048", "tokens=2048"},
                    {"tokens_8192", "tokens=8192"}}),
    .edges = cases({{"small", "tokens=64,width=64,hidden=64,chunks=1"}, {"uneven", "tokens=192,width=320,hidden=832,chunks=5"}}),
};

}  // namespace aisp::ch04
