// SPDX-License-Identifier: Apache-2.0
// Host and GPU take turns with managed records: the host patches a field of each, a kernel reduces each to a score, the host
// reads the scores; twice, so that the second patch finds the records on the GPU. Alone, pages move when a fault asks for them. A
// prefetch moves them before they are needed, in parts also while the host patches others; advice leaves them on the host and
// lets the GPU read them there, so that they cross the link once and no page moves. Where the time goes is told by the marks:
// when each patch and each scoring is done.
#include <sys/resource.h>
#include <aisp/device/vector.cuh>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>

namespace aisp::ch06 {
namespace {

constexpr int fields = 1024;  // floats of a record: 4 KiB
constexpr int warps_per_block = 8;
constexpr std::size_t rounds = 2, parts = 16;
constexpr const char *patched[rounds] = {"first_patch_done", "second_patch_done"},
                     *scored[rounds] = {"first_scores_read", "second_scores_read"};

// One warp per record. No load waits for another one's value, so that many are under way at once: records may lie across PCIe.
__global__ __launch_bounds__(warps_per_block * 32) void score_kernel(const float* records, float* scores) {
  constexpr int loads = fields / (4 * 32);
  const std::size_t record = static_cast<std::size_t>(blockIdx.x) * warps_per_block + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const auto* from = reinterpret_cast<const float4*>(records + record * fields) + lane;
  float4 values[loads];
#pragma unroll
  for (int k = 0; k < loads; ++k) values[k] = device::load_once(from + k * 32);
  float sum = 0;
#pragma unroll
  for (const float4& v : values) sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, distance);
  if (lane == 0) scores[record] = sum;
}

long minor_faults() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
}

class UnifiedMemory final : public Workload {
 public:
  explicit UnifiedMemory(Setup& setup)
      : gpu_{.type = cudaMemLocationTypeDevice, .id = setup.device_ordinal(0)},
        count_{setup.scaled(16384, warps_per_block)},
        records_{setup.inout<float>(count_ * fields, uniform(-1, 1), {.name = "records", .memory = Memory::managed})},
        scores_{setup.scratch<float>(count_, {.name = "managed scores", .memory = Memory::managed})},
        patched_{setup.input<std::int32_t>(rounds * count_, integers(0, fields - 1),
                                           {.name = "patched fields", .memory = Memory::pageable})},
        values_{setup.input<float>(rounds * count_, uniform(-1, 1), {.name = "new values", .memory = Memory::pageable})},
        results_{setup.output<float>(rounds * count_, {.name = "scores", .memory = Memory::pageable})},
        back_{setup.stream()},
        forked_{setup.event()} {
    for (cudaEvent_t& event : arrived_) event = setup.event();
    // Host memory is provided here in one go, rather than page by page at the harness's first touch.
    const cudaStream_t stream = setup.stream();
    prefetch_all(host, stream);
    check(cudaStreamSynchronize(stream));
  }

  // The scores are for the host, the records come from it: both cross the link once a round.
  Cost cost() const override {
    return {.host_to_device = static_cast<double>(rounds * records_.bytes()),
            .device_to_host = static_cast<double>(results_.bytes())};
  }

  double expected_output(int output, std::size_t index) const override {
    if (output == 0) return field_after(rounds - 1, index / fields, static_cast<int>(index % fields));
    double sum = 0;
    for (int field = 0; field < fields; ++field) {
      const double value = field_after(index / count_, index % count_, field);
      sum += value * value;
    }
    return sum;
  }

  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report("minor_faults", static_cast<double>(faults_), "faults", Metrics::Better::lower);
  }

  void page_faults(Launch& launch) {
    in_rounds(launch, [&](std::size_t round) {
      patch(round, 0, count_);
      launch.mark(patched[round]);
      score(launch.stream);
    });
  }

  void prefetch(Launch& launch) {
    in_rounds(launch, [&](std::size_t round) {
      move(records_.get(), records_.bytes(), host, launch.stream);
      check(cudaStreamSynchronize(launch.stream));  // a patch under way with the pages would fault after all
      patch(round, 0, count_);
      launch.mark(patched[round]);
      prefetch_all(gpu_, launch.stream);
      score(launch.stream);
      move(scores_.get(), scores_.bytes(), host, launch.stream);
    });
  }

  // While the host patches a part, the next ones come back to it and those before go to the GPU.
  void prefetch_in_parts(Launch& launch) {
    const auto first = [this](std::size_t part) { return count_ * part / parts; };
    const auto move_part = [&](std::size_t part, cudaMemLocation to, cudaStream_t stream) {
      move(records_.get() + first(part) * fields, (first(part + 1) - first(part)) * fields * sizeof(float), to, stream);
    };
    in_rounds(launch, [&](std::size_t round) {
      check(cudaEventRecord(forked_, launch.stream));
      check(cudaStreamWaitEvent(back_, forked_));
      for (std::size_t part = 0; part < parts; ++part) {
        move_part(part, host, back_);
        check(cudaEventRecord(arrived_[part], back_));
      }
      for (std::size_t part = 0; part < parts; ++part) {
        check(cudaEventSynchronize(arrived_[part]));
        patch(round, first(part), first(part + 1));
        move_part(part, gpu_, launch.stream);
      }
      launch.mark(patched[round]);
      move(scores_.get(), scores_.bytes(), gpu_, launch.stream);
      score(launch.stream);
      move(scores_.get(), scores_.bytes(), host, launch.stream);
    });
  }

  // The code of the baseline: only where pages live has changed.
  void advise(Launch& launch) { page_faults(launch); }

  // Every execution starts with all pages on the host and the advice of its variant. Advice that is taken back leaves the GPU's
  // mappings of host pages behind; they go when the pages have moved once.
  void reset_plain(Launch& launch) {
    for_both([&](void* data, std::size_t bytes) {
      check(cudaMemAdvise(data, bytes, cudaMemAdviseUnsetAccessedBy, gpu_));
      check(cudaMemAdvise(data, bytes, cudaMemAdviseUnsetPreferredLocation, host));
    });
    prefetch_all(gpu_, launch.stream);
    prefetch_all(host, launch.stream);
  }

  // Advice belongs to an allocation and is given once in its life; here it is repeated because other variants take it back.
  void reset_advised(Launch& launch) {
    prefetch_all(host, launch.stream);
    check(cudaStreamSynchronize(launch.stream));  // so that the GPU's mappings are made of pages at their final place
    for_both([&](void* data, std::size_t bytes) {
      check(cudaMemAdvise(data, bytes, cudaMemAdviseSetPreferredLocation, host));
      check(cudaMemAdvise(data, bytes, cudaMemAdviseSetAccessedBy, gpu_));
    });
  }

 private:
  static constexpr cudaMemLocation host{.type = cudaMemLocationTypeHost, .id = 0};

  double field_after(std::size_t round, std::size_t record, int field) const {
    for (std::size_t k = round + 1; k-- > 0;)
      if (patched_.host(k * count_ + record) == field) return values_.host(k * count_ + record);
    return records_.initial(record * fields + static_cast<std::size_t>(field));
  }

  template <class Round>
  void in_rounds(Launch& launch, Round one) {
    const long before = minor_faults();
    for (std::size_t round = 0; round < rounds; ++round) {
      one(round);
      check(cudaStreamSynchronize(launch.stream));
      read_scores(round);
      launch.mark(scored[round]);
    }
    faults_ = minor_faults() - before;
  }

  void patch(std::size_t round, std::size_t begin, std::size_t end) {
    float* const data = records_;
    const std::int32_t* const field = patched_.get() + round * count_;
    const float* const value = values_.get() + round * count_;
    for (std::size_t r = begin; r < end; ++r) data[r * fields + static_cast<std::size_t>(field[r])] = value[r];
  }

  void score(cudaStream_t stream) {
    score_kernel<<<static_cast<unsigned>(count_ / warps_per_block), warps_per_block * 32, 0, stream>>>(records_, scores_);
    check(cudaGetLastError());
  }

  void read_scores(std::size_t round) { std::copy_n(scores_.get(), count_, results_.get() + round * count_); }

  static void move(void* data, std::size_t bytes, cudaMemLocation to, cudaStream_t stream) {
    check(cudaMemPrefetchAsync(data, bytes, to, 0, stream));
  }
  template <class Action>
  void for_both(Action action) {
    action(records_.get(), records_.bytes());
    action(scores_.get(), scores_.bytes());
  }
  void prefetch_all(cudaMemLocation to, cudaStream_t stream) {
    for_both([&](void* data, std::size_t bytes) { move(data, bytes, to, stream); });
  }

  cudaMemLocation gpu_;
  std::size_t count_;
  InOut<float> records_;
  Scratch<float> scores_;
  Input<std::int32_t> patched_;
  Input<float> values_;
  Output<float> results_;
  cudaStream_t back_;
  cudaEvent_t forked_;
  std::array<cudaEvent_t, parts> arrived_{};
  long faults_ = 0;
};

}  // namespace

extern constinit const Pair unified_memory{
    .teaches = "managed memory moves on page faults; a prefetch spares the faults of the GPU, advice spares the move",
    .lesson = "advise",
    .make = make<UnifiedMemory>,
    .baseline = {.name = "page_faults", .run = call<&UnifiedMemory::page_faults>, .reset = call<&UnifiedMemory::reset_plain>},
    .optimized =
        variants({{.name = "prefetch", .run = call<&UnifiedMemory::prefetch>, .reset = call<&UnifiedMemory::reset_plain>},
                  {.name = "prefetch_in_parts",
                   .run = call<&UnifiedMemory::prefetch_in_parts>,
                   .reset = call<&UnifiedMemory::reset_plain>},
                  {.name = "advise",
                   .run = call<&UnifiedMemory::advise>,
                   .reset = call<&UnifiedMemory::reset_advised>,
                   .gains_over = "page_faults"}}),
    .bound = Bound::transfer,
    .tolerance = within(1e-5),  // sums of 1024 squares in fp32
    .needs = {.attributes = {cudaDevAttrConcurrentManagedAccess}},
    // The host waits for the GPU inside the sample, and pages cannot move behind a blocked stream.
    .start = Start::immediate,
};

}  // namespace aisp::ch06
