// SPDX-License-Identifier: Apache-2.0
// Memory of the host: every thread works on the part that it touched first, so that on a machine with several NUMA nodes each
// reads what lies near it.
#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>

#include "base/text.hpp"
#include "machine/host.hpp"
#include "peak/parts.hpp"

namespace aisp::peak {
namespace {

constexpr std::size_t page_words = 4096 / sizeof(std::uint64_t);

// Beyond the last-level cache that so many CPUs share, but no burden to a small machine.
std::size_t array_bytes(int cpus) {
  const std::size_t wanted = std::clamp<std::size_t>(static_cast<std::size_t>(cpus) * 64 * mib, 256 * mib, 1024 * mib);
  return std::clamp<std::size_t>(machine::read_host().memory_available_bytes / 16, 32 * mib, wanted);
}

class Arrays {
 public:
  Arrays(ThreadTeam& team, std::size_t bytes)
      : team_{team}, words_{bytes / sizeof(std::uint64_t) / page_words * page_words}, a_{allocate()}, b_{allocate()} {
    team_.run([this](int worker) {
      std::ranges::fill(part(a_, worker), 1);
      std::ranges::fill(part(b_, worker), 2);
    });
    sums_.resize(static_cast<std::size_t>(team_.size()) * page_words);
  }

  double bytes() const { return static_cast<double>(words_ * sizeof(std::uint64_t)); }
  void read() {
    team_.run([this](int worker) {
      const std::span<std::uint64_t> from = part(a_, worker);
      sums_[static_cast<std::size_t>(worker) * page_words] = std::accumulate(from.begin(), from.end(), std::uint64_t{0});
    });
  }
  // The C library writes past the caches what is much larger than they are.
  void write() {
    team_.run([this](int worker) { std::memset(part(a_, worker).data(), 1, part(a_, worker).size_bytes()); });
  }
  void copy() {
    team_.run([this](int worker) {
      const std::span<std::uint64_t> from = part(a_, worker);
      std::memcpy(part(b_, worker).data(), from.data(), from.size_bytes());
    });
  }

 private:
  using Words = std::unique_ptr<std::uint64_t[]>;
  Words allocate() const { return Words{new std::uint64_t[words_]}; }  // untouched
  std::span<std::uint64_t> part(const Words& words, int worker) const {
    const std::size_t pages = words_ / page_words, team = static_cast<std::size_t>(team_.size());
    const std::size_t first = pages * static_cast<std::size_t>(worker) / team;
    const std::size_t last = pages * (static_cast<std::size_t>(worker) + 1) / team;
    return {words.get() + first * page_words, (last - first) * page_words};
  }

  ThreadTeam& team_;
  std::size_t words_;
  Words a_, b_;
  std::vector<std::uint64_t> sums_;
};

}  // namespace

void measure_host(Bench& bench, const Teller& teller) {
  const int cpus = std::max(1, bench.setup().cpus());
  const std::size_t bytes = array_bytes(cpus);
  // Two threads of one core share its path to memory, so half as many may do as well or better.
  std::vector<std::unique_ptr<Arrays>> teams;
  std::vector<std::string> how;
  for (const int workers : {cpus, cpus / 2}) {
    if (workers < 1 || (workers != cpus && cpus < 4)) continue;
    teams.push_back(std::make_unique<Arrays>(bench.setup().threads(workers, true), bytes));
    how.push_back(base::plural(static_cast<std::size_t>(workers), "thread") + ", " +
                  base::human_bytes(static_cast<double>(bytes)));
  }
  const auto measure = [&](std::string_view id, double arrays, void (Arrays::*work)()) {
    teller.figure(id, [&] {
      std::vector<std::function<Load()>> loads;
      for (std::size_t i = 0; i < teams.size(); ++i)
        loads.emplace_back([&, i] {
          return Load{how[i], arrays * teams[i]->bytes(), [&, i](Launch&) { (teams[i].get()->*work)(); }};
        });
      return bench.best_rate(std::move(loads));
    });
  };
  measure(figure_id::host_read, 1, &Arrays::read);
  measure(figure_id::host_write, 1, &Arrays::write);
  measure(figure_id::host_copy, 2, &Arrays::copy);
}

}  // namespace aisp::peak
