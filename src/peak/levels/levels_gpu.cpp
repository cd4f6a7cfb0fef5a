// SPDX-License-Identifier: Apache-2.0
// The staircase of a GPU: one thread chases through growing working sets, then all SMs read through them.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <memory>

#include "measure/statistics/statistics.hpp"
#include "peak/kernels.hpp"
#include "peak/levels/levels.hpp"
#include "peak/parts.hpp"

namespace aisp::peak {
namespace {

constexpr std::size_t gpu_line_bytes = 128;
constexpr std::size_t gpu_page_bytes = 2 * mib;  // that the driver maps device memory in
constexpr std::size_t longest_gpu_warm_up = 16384, least_steps = 8192;
constexpr int gpu_repetitions = 3;

struct DeviceArea {
  std::size_t bytes = 0;
  std::unique_ptr<base::DeviceMemory> memory;
};

DeviceArea as_much_as_possible(std::size_t most) {
  for (std::size_t bytes = std::bit_floor(most);; bytes /= 2) try {
      return {bytes, std::make_unique<base::DeviceMemory>(bytes)};
    } catch (const CudaError&) {
      cudaGetLastError();
      if (bytes <= gib) throw;
    }
}

// Returns the most bytes that the pages may span: as far as address caches are known to reach, and half of the free memory.
std::size_t span_bytes() {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total));
  return std::min(free / 2, 64 * gib);
}

// Returns the amount that a launch says it handles, a second.
double amount_s(Bench& bench, const std::function<double(cudaStream_t)>& launch_load) {
  double amount = 0;
  const double seconds = bench.seconds([&](Launch& launch) { amount = launch_load(launch.stream); });
  return amount / seconds;
}

class ChasedStaircase {
 public:
  explicit ChasedStaircase(Bench& bench) : bench_{bench}, area_{as_much_as_possible(span_bytes())}, order_{order_bytes()} {}

  std::vector<ChasePoint> lines() {
    std::vector<ChasePoint> points;
    for (const std::size_t bytes : chase_sizes(level_chunk_bytes, most_lines_bytes(), 8, level_chunk_bytes)) {
      ChasePoint point = chase(chase_of_lines(bytes, gpu_line_bytes, gpu_page_bytes, bytes), true);
      point.bytes = static_cast<double>(bytes);
      point.bytes_s = read_rate(bytes);
      points.push_back(point);
    }
    return points;
  }

  // Past L1, whose own reach would be a step among those of the address caches.
  std::vector<ChasePoint> pages() {
    std::vector<ChasePoint> points;
    for (const std::size_t bytes : chase_sizes(4 * gpu_page_bytes, area_.bytes, 8, gpu_page_bytes)) {
      ChasePoint point = chase(chase_of_pages(bytes, gpu_line_bytes, gpu_page_bytes, bytes), false);
      point.bytes = static_cast<double>(bytes);
      points.push_back(point);
    }
    return points;
  }

  std::optional<TwoKinds> halves_of_l2() {
    constexpr std::size_t count = 4096;
    std::vector<std::uint64_t> order = chase_of_lines(16 * count * gpu_line_bytes, gpu_line_bytes, gpu_page_bytes, 1);
    order.resize(count);
    put_order(order, Links::self);
    const base::DeviceMemory cycles{count * sizeof(float)};
    launch_line_latencies(area_.memory->data(), order_.as<std::uint64_t>(), count, cycles.as<float>(), bench_.stream());
    std::vector<float> values(count);
    fetch(values.data(), cycles.data(), count * sizeof(float));
    return two_kinds({values.begin(), values.end()});
  }

  std::pair<ChasePoint, ChasePoint> on_chip() {
    launch_on_chip_chase(time_.as<ChaseTime>(), time_.as<ChaseTime>() + 1, sink_.as<std::uint32_t>(), bench_.stream());
    std::array<ChaseTime, 2> times;
    fetch(times.data(), time_.data(), sizeof times);
    return {point_of(times[0], on_chip_steps), point_of(times[1], on_chip_steps)};
  }

 private:
  std::size_t most_lines_bytes() const {
    return std::min(area_.bytes, std::clamp<std::size_t>(std::bit_ceil(bench_.gpu().l2_bytes) * 8, 256 * mib, gib));
  }
  std::size_t order_bytes() const {
    return sizeof(std::uint64_t) * std::max(most_lines_bytes() / gpu_line_bytes, area_.bytes / gpu_page_bytes);
  }
  static ChasePoint point_of(const ChaseTime& time, std::size_t steps) {
    const auto count = static_cast<double>(steps);
    return {.ns = static_cast<double>(time.ns) / count, .cycles = static_cast<double>(time.cycles) / count};
  }

  void fetch(void* to, const void* from, std::size_t bytes) {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, bench_.stream()));
    check(cudaStreamSynchronize(bench_.stream()));
  }

  void put_order(const std::vector<std::uint64_t>& order, Links links) {
    check(cudaMemcpyAsync(order_.data(), order.data(), order.size() * sizeof order[0], cudaMemcpyHostToDevice, bench_.stream()));
    launch_link(area_.memory->data(), order_.as<std::uint64_t>(), order.size(), links, bench_.stream());
    check(cudaStreamSynchronize(bench_.stream()));
  }

  ChasePoint chase(const std::vector<std::uint64_t>& order, bool through_l1) {
    put_order(order, Links::cycle);
    // An order too long for a chase to warm up in time is warmed up by all SMs.
    const bool warms_up = order.size() <= 2 * longest_gpu_warm_up;
    const std::size_t wanted = std::clamp(order.size(), least_steps, 2 * longest_gpu_warm_up);
    const std::size_t steps = (wanted + chase_unroll - 1) / chase_unroll * chase_unroll;
    const char* const first = area_.memory->as<char>() + order.front();
    std::vector<double> ns, cycles;
    for (int i = 0; i < gpu_repetitions; ++i) {
      if (!warms_up)
        launch_touch(area_.memory->data(), order_.as<std::uint64_t>(), order.size(), sink_.as<std::uint32_t>(), bench_.stream());
      launch_chase(first, warms_up ? order.size() : 0, steps, through_l1, time_.as<ChaseTime>(), bench_.stream());
      ChaseTime time;
      fetch(&time, time_.data(), sizeof time);
      const ChasePoint point = point_of(time, steps);
      ns.push_back(point.ns);
      cycles.push_back(point.cycles);
    }
    return {.ns = measure::median(ns), .cycles = measure::median(cycles)};
  }

  double read_rate(std::size_t bytes) {
    return amount_s(bench_, [&](cudaStream_t stream) {
      return launch_level_read(area_.memory->data(), bytes, bench_.gpu().sm_count, bench_.gpu().l2_bytes,
                               sink_.as<std::uint32_t>(), stream);
    });
  }

  Bench& bench_;
  DeviceArea area_;
  base::DeviceMemory order_;
  base::DeviceMemory time_{2 * sizeof(ChaseTime)}, sink_{sizeof(std::uint32_t)};
};

}  // namespace

MemoryLevels measure_gpu_levels(Bench& bench) {
  const machine::Gpu& gpu = bench.gpu();
  MemoryLevels levels{.page_bytes = gpu_page_bytes};
  ChasedStaircase staircase{bench};
  // First, and long enough for the clock to rise.
  constexpr int multiply_rounds = 256, read_rounds = 2048;
  constexpr double bytes_of_an_operation = 6;  // a multiply-add counts as two, and has three operands of four bytes
  const base::DeviceMemory sink{sizeof(std::uint64_t)};
  const double operations_s =
      amount_s(bench, [&](cudaStream_t stream) { return launch_fma_fp32(gpu.sm_count, multiply_rounds, sink.data(), stream); });
  const double shared_bytes_s = amount_s(bench, [&](cudaStream_t stream) {
    return launch_shared_read(gpu.sm_count, read_rounds, sink.as<std::uint32_t>(), stream);
  });
  auto [registers, shared] = staircase.on_chip();
  registers.bytes = 4.0 * gpu.attribute(cudaDevAttrMaxRegistersPerMultiprocessor);
  registers.bytes_s = operations_s * bytes_of_an_operation;
  shared.bytes = gpu.attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  shared.bytes_s = shared_bytes_s;
  levels.registers = registers;
  levels.shared = shared;
  levels.lines = staircase.lines();
  levels.pages = staircase.pages();
  levels.l2 = staircase.halves_of_l2();
  return levels;
}

}  // namespace aisp::peak
