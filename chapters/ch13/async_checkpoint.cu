// SPDX-License-Identifier: Apache-2.0
// A training loop of 24 steps, whose host reads each step's loss, and a checkpoint of 67 MB of weights after the fourth. Written
// in the loop, it stops training for a copy over PCIe and for the file system. A thread writes the file beside the next steps; a
// snapshot on the device takes the copy out of the loop too, and several threads write blocks as they land. All variants write
// the same file, which gets its name when it is complete.
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint_file.hpp"
#include "crew.hpp"
#include "regression.cuh"

namespace aisp::ch13 {
namespace {

constexpr std::size_t steps = 24, layers = 8, first_checkpoint = 4, samples = 448;
constexpr float rate = 0.3f;
constexpr unsigned checksum_blocks = 528;
constexpr std::size_t most_layer_weights = std::size_t{1} << 21;
constexpr std::size_t block_bytes = std::size_t{4} << 20, most_blocks = layers * most_layer_weights * sizeof(float) / block_bytes;

__global__ __launch_bounds__(features) void checksum_kernel(const std::uint32_t* words, std::size_t count,
                                                            unsigned long long* sum) {
  unsigned long long of_thread = 0;
  for (std::size_t i = std::size_t{blockIdx.x} * features + threadIdx.x; i < count; i += std::size_t{gridDim.x} * features)
    of_thread += checksum_term(words[i], i);
  of_thread = device::warp_sum(of_thread);
  if (threadIdx.x % device::warp_size == 0) atomicAdd(sum, of_thread);
}

double ms_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

class AsyncCheckpoint final : public Workload {
 public:
  explicit AsyncCheckpoint(Setup& setup)
      : layer_weights_{std::min(setup.scaled(most_layer_weights, weights_of_block), most_layer_weights)},
        interval_{setup.size("interval")},
        writers_{static_cast<int>(setup.size("writers"))},
        gpu_{setup.device_ordinal(0)},
        path_{std::string{setup.scratch_directory().c_str()} + "/weights.ckpt"},
        x_{setup.input<float>(steps * samples * features, uniform(-1, 1), {.name = "features"})},
        y_{setup.input<float>(steps * samples, uniform(-1, 1), {.name = "targets"})},
        weights_{setup.inout<float>(layers * layer_weights_, uniform(-1, 1), {.name = "weights"})},
        losses_{setup.output<float>(steps, {.name = "losses", .memory = Memory::pinned})},
        snapshot_{setup.scratch<float>(layers * layer_weights_, {.name = "snapshot"})},
        pinned_{setup.scratch<float>(layers * layer_weights_, {.name = "pinned copy", .memory = Memory::pinned})},
        heap_{setup.scratch<float>(layers * layer_weights_, {.name = "pageable copy", .memory = Memory::pageable})},
        values_{setup.scratch<float>(2, {.name = "norm and loss"})},
        zero_{setup.input<float>(1, constant(0), {.name = "zero"})},
        checksum_{setup.scratch<unsigned long long>(1, {.name = "checksum"})},
        checksum_on_host_{setup.scratch<unsigned long long>(1, {.name = "checksum on the host", .memory = Memory::pinned})},
        partial_{setup.scratch<BlockSums>(1, {.name = "sums of blocks"})},
        copies_{setup.stream()},
        taken_{setup.event()} {
    for (cudaEvent_t& event : landed_) event = setup.event();
  }

  // The arithmetic of the steps; the file can be written beside it.
  Cost cost() const override {
    return {.flops = 6.0 * steps * samples * static_cast<double>(weights_.size()),
            .device_to_host = static_cast<double>(weights_.bytes())};
  }

  Cost variant_cost(std::string_view variant) const override {
    return variant == "no_checkpoint" ? Cost{.flops = cost().flops} : cost();
  }

  // Sums for the losses and single weights in float64; the bytes of the checkpoint by the same kernels, without one.
  void compute_reference(Launch& launch) override {
    batches_.clear();
    for (std::size_t step = 0; step < steps; ++step)
      batches_.push_back(moments_of(
          samples, [&](std::size_t i) -> double { return x_.host(step * samples * features + i); },
          [&](std::size_t s) -> double { return y_.host(step * samples + s); }));
    std::vector<std::vector<WeightSums>> sums(layers, std::vector<WeightSums>(features));
    expected_file_.resize(weights_.size());
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      const double weight = weights_.initial(i);
      WeightSums& of = sums[i / layer_weights_][i % features];
      of.count += 1, of.values += weight, of.squares += weight * weight;
      expected_file_[i] = static_cast<float>(weight);
    }
    for (std::size_t step = 0; step < steps; ++step) {
      expected_losses_[step] = 0;
      for (auto& layer : sums) expected_losses_[step] += descend(layer, batches_[step], rate).loss;
    }
    check(cudaMemcpyAsync(snapshot_, expected_file_.data(), weights_.bytes(), cudaMemcpyHostToDevice, launch.stream));
    check(cudaMemsetAsync(partial_, 0, partial_.bytes(), launch.stream));
    for (std::size_t step = 0; step < last_checkpoint(); ++step) queue_step(launch, step, snapshot_);
    check(cudaMemcpyAsync(expected_file_.data(), snapshot_, weights_.bytes(), cudaMemcpyDeviceToHost, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
  }
  double expected_output(int output, std::size_t index) const override {
    if (output == 1) return expected_losses_[index];
    double weight = weights_.initial(index);
    for (const auto& batch : batches_) weight = descended(weight, batch[index % features], rate);
    return weight;
  }

  // The file that the run has left, in all bytes.
  void validate(std::string_view variant) override {
    if (variant == "no_checkpoint") return;
    std::vector<std::uint32_t> words(weights_.size());
    load_checkpoint(path_, words);
    if (std::memcmp(words.data(), expected_file_.data(), weights_.bytes()) != 0)
      throw std::runtime_error{"the checkpoint does not hold the weights of its step"};
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    if (variant != "no_checkpoint") metrics.report("stall", stall_ms_, "ms", Metrics::Better::lower);
    metrics.report("goodput", 100 * (1 - (stall_ms_ + end_wait_ms_) / total_ms_), "%", Metrics::Better::higher);
    metrics.report_rate("steps", steps, "steps/s");
  }

  void remove_file(Launch&) {
    std::remove(path_.c_str());
    std::remove(partial_name(path_).c_str());
  }
  void start_writers(Launch&) {
    if (!one_writer_) one_writer_ = std::make_unique<Crew>(1);
    if (!all_writers_) all_writers_ = std::make_unique<Crew>(writers_);
  }

  void pageable_inline(Launch& launch) {
    train(
        launch,
        [&] {
          copy_and_wait(launch, heap_);
          std::FILE* const file = std::fopen(partial_name(path_).c_str(), "wb");
          if (file == nullptr) fail_to_write(partial_name(path_));
          const CheckpointTrailer trailer{weights_.bytes(), *checksum_on_host_};
          const bool is_written =
              std::fwrite(heap_, weights_.bytes(), 1, file) == 1 && std::fwrite(&trailer, sizeof(trailer), 1, file) == 1;
          if (std::fclose(file) != 0 || !is_written) fail_to_write(partial_name(path_));
          publish_checkpoint(path_);
        },
        [] {});
  }
  void pinned_inline(Launch& launch) {
    train(
        launch,
        [&] {
          copy_and_wait(launch, pinned_);
          write_all();
        },
        [] {});
  }
  void writer_thread(Launch& launch) {
    train(
        launch,
        [&] {
          one_writer_->wait();
          copy_and_wait(launch, pinned_);
          one_writer_->start([this](int) { write_all(); });
        },
        [&] { one_writer_->wait(); });
  }
  void background_writer(Launch& launch) {
    train(
        launch,
        [&] {
          one_writer_->wait();
          take_snapshot(launch);
          copy_blocks(weights_.bytes());
          one_writer_->start([this](int) {
            wait_for_block(0);
            write_all();
          });
        },
        [&] { one_writer_->wait(); });
  }
  void parallel_writers(Launch& launch) {
    train(
        launch,
        [&] {
          all_writers_->wait();
          take_snapshot(launch);
          copy_blocks(block_bytes);
          file_.reset();
          next_block_ = 0;
          blocks_left_ = (weights_.bytes() + block_bytes - 1) / block_bytes;
          all_writers_->start([this](int) { write_blocks(); });
        },
        [&] { all_writers_->wait(); });
  }
  void no_checkpoint(Launch& launch) {
    train(
        launch, [] {}, [] {});
  }

 private:
  bool is_checkpoint(std::size_t done) const { return done >= first_checkpoint && (done - first_checkpoint) % interval_ == 0; }
  std::size_t last_checkpoint() const {
    std::size_t last = first_checkpoint;
    for (std::size_t done = first_checkpoint; done <= steps; ++done)
      if (is_checkpoint(done)) last = done;
    return last;
  }

  void queue_step(Launch& launch, std::size_t step, float* weights) const {
    const Batch batch{x_ + step * samples * features, y_ + step * samples, static_cast<int>(samples)};
    const auto blocks = static_cast<unsigned>(layer_weights_ / weights_of_block);
    for (std::size_t layer = 0; layer < layers; ++layer)
      launch(descend_kernel, {blocks, features}, weights + layer * layer_weights_, batch, rate, partial_, values_, values_ + 1,
             layer == 0 ? zero_.get() : nullptr);
  }
  // Each step ends when its loss is on the host. `finish` waits for what checkpoints have left to do.
  template <class Checkpoint, class Finish>
  void train(Launch& launch, const Checkpoint& checkpoint, const Finish& finish) {
    const auto start = std::chrono::steady_clock::now();
    stall_ms_ = 0;
    check(cudaMemsetAsync(partial_, 0, partial_.bytes(), launch.stream));
    for (std::size_t step = 0; step < steps; ++step) {
      queue_step(launch, step, weights_);
      check(cudaMemcpyAsync(losses_ + step, values_ + 1, sizeof(float), cudaMemcpyDeviceToHost, launch.stream));
      check(cudaStreamSynchronize(launch.stream));
      if (!is_checkpoint(step + 1)) continue;
      const auto before = std::chrono::steady_clock::now();
      checkpoint();
      stall_ms_ += ms_since(before);
    }
    const auto before = std::chrono::steady_clock::now();
    finish();
    end_wait_ms_ = ms_since(before);
    total_ms_ = ms_since(start);
  }

  void queue_checksum(const float* weights, cudaStream_t stream) {
    check(cudaMemsetAsync(checksum_, 0, checksum_.bytes(), stream));
    launch_kernel(stream, checksum_kernel, {checksum_blocks, features}, reinterpret_cast<const std::uint32_t*>(weights),
                  weights_.size(), checksum_);
    check(cudaMemcpyAsync(checksum_on_host_, checksum_, checksum_.bytes(), cudaMemcpyDeviceToHost, stream));
  }
  void copy_and_wait(Launch& launch, float* to) {
    queue_checksum(weights_, launch.stream);
    check(cudaMemcpyAsync(to, weights_, weights_.bytes(), cudaMemcpyDeviceToHost, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
  }
  void take_snapshot(Launch& launch) {
    check(cudaMemcpyAsync(snapshot_, weights_, weights_.bytes(), cudaMemcpyDeviceToDevice, launch.stream));
    check(cudaEventRecord(taken_, launch.stream));
  }
  // The snapshot on a stream of its own, in blocks that are announced when they land.
  void copy_blocks(std::size_t bytes_of_each) {
    check(cudaStreamWaitEvent(copies_, taken_));
    queue_checksum(snapshot_, copies_);
    for (std::size_t at = 0, block = 0; at < weights_.bytes(); at += bytes_of_each, ++block) {
      const std::size_t bytes = std::min(bytes_of_each, weights_.bytes() - at);
      check(cudaMemcpyAsync(reinterpret_cast<std::byte*>(pinned_.get()) + at, reinterpret_cast<std::byte*>(snapshot_.get()) + at,
                            bytes, cudaMemcpyDeviceToHost, copies_));
      check(cudaEventRecord(landed_[block], copies_));
    }
  }
  void wait_for_block(std::size_t block) {
    check(cudaSetDevice(gpu_));
    check(cudaEventSynchronize(landed_[block]));
  }
  void write_all() {
    CheckpointWriter file{path_, weights_.bytes()};
    file.write(pinned_, weights_.bytes(), 0);
    file.commit(*checksum_on_host_);
  }
  void write_blocks() {
    for (std::size_t block; (block = next_block_++) * block_bytes < weights_.bytes();) {
      wait_for_block(block);
      const std::size_t at = block * block_bytes;
      shared_file().write(reinterpret_cast<const std::byte*>(pinned_.get()) + at, std::min(block_bytes, weights_.bytes() - at),
                          at);
      if (--blocks_left_ == 0) shared_file().commit(*checksum_on_host_);
    }
  }
  // The first writer opens it, so that the loop need not.
  CheckpointWriter& shared_file() {
    const std::lock_guard lock{opening_};
    if (!file_) file_ = std::make_unique<CheckpointWriter>(path_, weights_.bytes());
    return *file_;
  }

  std::size_t layer_weights_, interval_;
  int writers_, gpu_;
  std::string path_;
  Input<float> x_, y_;
  InOut<float> weights_;
  Output<float> losses_;
  Scratch<float> snapshot_, pinned_, heap_, values_;
  Input<float> zero_;
  Scratch<unsigned long long> checksum_, checksum_on_host_;
  Scratch<BlockSums> partial_;
  cudaStream_t copies_;
  cudaEvent_t taken_;
  std::array<cudaEvent_t, most_blocks> landed_{};
  std::mutex opening_;
  std::unique_ptr<CheckpointWriter> file_;
  std::atomic<std::size_t> next_block_{0}, blocks_left_{0};
  double stall_ms_ = 0, end_wait_ms_ = 0, total_ms_ = 1;
  std::vector<std::vector<Moments>> batches_;
  std::vector<float> expected_file_;
  std::array<double, steps> expected_losses_{};
  std::unique_ptr<Crew> one_writer_, all_writers_;  // their threads end before all that they use
};

constexpr Variant writing(std::string_view name, Method run) {
  return {
      .name = name, .run = run, .prepare = call<&AsyncCheckpoint::start_writers>, .reset = call<&AsyncCheckpoint::remove_file>};
}

}  // namespace

extern constinit const Pair async_checkpoint{
    .teaches = "a checkpoint written inside the loop stops training; a thread writes it beside the next steps",
    .lesson = "writer_thread",
    .make = make<AsyncCheckpoint>,
    .baseline = writing("pageable_inline", call<&AsyncCheckpoint::pageable_inline>),
    .optimized = variants({writing("pinned_inline", call<&AsyncCheckpoint::pinned_inline>),
                           writing("writer_thread", call<&AsyncCheckpoint::writer_thread>),
                           writing("background_writer", call<&AsyncCheckpoint::background_writer>),
                           writing("parallel_writers", call<&AsyncCheckpoint::parallel_writers>)}),
    .controls = variants({{.name = "no_checkpoint", .run = call<&AsyncCheckpoint::no_checkpoint>}}),
    .bound = Bound::host,
    // Sums of 448 terms in fp32, whose errors the steps damp; a missed update changes weights by a tenth.
    .tolerance = within(2e-5),
    .needs = {.cpus = 4},
    .start = Start::immediate,  // threads of the host write while the sample runs
    .timeline = true,
    .sizes = sizes({{.name = "writers", .full = 4, .most = 16, .scales = false},
                    {.name = "interval", .full = steps, .most = steps, .scales = false}}),
    .sweep = cases({{"writers_1", "writers=1"},
                    {"writers_2", "writers=2"},
                    {"writers_4", "writers=4"},
                    {"writers_8", "writers=8"},
                    {"interval_2", "interval=2"},
                    {"interval_4", "interval=4"},
                    {"interval_8", "interval=8"},
                    {"interval_24", "interval=24"}}),
    .edges = cases({{"every_step", "interval=1"}}),
};

}  // namespace aisp::ch13
