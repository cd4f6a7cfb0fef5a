// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>

#include "base/text.hpp"
#include "peak/kernels.hpp"
#include "peak/parts.hpp"

namespace aisp::peak {
namespace {

// Far beyond any L2, and three of them leave room on a small GPU.
std::size_t stream_bytes(const machine::Gpu& gpu) {
  return std::min(gib, std::bit_floor(std::max<std::size_t>(gpu.memory_bytes / 16, std::size_t{64} << 20)));
}

void measure_streams(Bench& bench, const Teller& teller) {
  const std::size_t bytes = stream_bytes(bench.gpu());
  const base::DeviceMemory a{bytes}, b{bytes}, c{bytes}, sink{sizeof(std::uint32_t)};
  for (const base::DeviceMemory* memory : {&a, &b, &c})
    launch_fill(memory->data(), machine::NumberType::fp32, bytes / 4, 1, bench.stream());
  const auto amount = static_cast<double>(bytes);
  const auto kernel = [](double bytes_moved, Work work) { return [=] { return Load{"16 bytes a thread", bytes_moved, work}; }; };
  // Lines that a read finds in L2 were not read from memory. Lines that a write leaves there are written by the next sample
  // instead, so writers are timed in their steady state.
  teller.figure(figure_id::hbm_read, [&] {
    return bench.best_rate(figure_id::hbm_read,
                           {kernel(amount, [&](Launch& l) { launch_read(a.data(), bytes, sink.as<std::uint32_t>(), l.stream); })},
                           Cache::cold);
  });
  teller.figure(figure_id::hbm_write, [&] {
    return bench.best_rate(
        figure_id::hbm_write,
        {kernel(amount, [&](Launch& l) { launch_write(a.data(), bytes, l.stream); }), [&] {
           return Load{"cudaMemsetAsync", amount, [&](Launch& l) { check(cudaMemsetAsync(a.data(), 1, bytes, l.stream)); }};
         }});
  });
  teller.figure(figure_id::hbm_copy, [&] {
    const auto engine = [&](Launch& l) { check(cudaMemcpyAsync(b.data(), a.data(), bytes, cudaMemcpyDeviceToDevice, l.stream)); };
    return bench.best_rate(figure_id::hbm_copy,
                           {kernel(2 * amount, [&](Launch& l) { launch_copy(a.data(), b.data(), bytes, l.stream); }), [&] {
                              return Load{"cudaMemcpyAsync", 2 * amount, engine};
                            }});
  });
  teller.figure(figure_id::hbm_triad, [&] {
    return bench.best_rate(figure_id::hbm_triad,
                           {kernel(3 * amount, [&](Launch& l) { launch_triad(b.data(), c.data(), a.data(), bytes, l.stream); })});
  });
}

void measure_on_chip(Bench& bench, const Teller& teller) {
  const base::DeviceMemory sink{sizeof(std::uint32_t)};
  auto* const word = sink.as<std::uint32_t>();
  const int sms = bench.gpu().sm_count;
  teller.figure(figure_id::l2_read, [&] {
    // A third of L2 at most: the rest is for whatever else lives there.
    const std::size_t bytes = std::bit_floor(std::max<std::size_t>(bench.gpu().l2_bytes / 3, std::size_t{1} << 20));
    const base::DeviceMemory data{bytes};
    launch_fill(data.data(), machine::NumberType::fp32, bytes / 4, 1, bench.stream());
    constexpr int passes = 512;
    const double amount = launch_l2_read(data.data(), bytes, sms, passes, word, bench.stream());
    return bench.best_rate(figure_id::l2_read, {[&] {
                             return Load{base::human_bytes(static_cast<double>(bytes)), amount,
                                         [&](Launch& l) { launch_l2_read(data.data(), bytes, sms, passes, word, l.stream); }};
                           }});
  });
  teller.figure(figure_id::shared_read, [&] {
    constexpr int rounds = 2048;
    const double amount = launch_shared_read(sms, rounds, word, bench.stream());
    return bench.best_rate(
        figure_id::shared_read, {[&] {
          return Load{"16 bytes a thread", amount, [&](Launch& l) { launch_shared_read(sms, rounds, word, l.stream); }};
        }});
  });
}

}  // namespace

void measure_memory(Bench& bench, const Teller& teller) {
  measure_streams(bench, teller);
  measure_on_chip(bench, teller);
}

}  // namespace aisp::peak
